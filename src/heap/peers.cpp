// Other devices: who may reach the memory, and streams of theirs that use it.
#include <algorithm>
#include <new>
#include <utility>

#include "device/state.hpp"
#include "heap/central_heap.hpp"

namespace weir::inline v0::heap {
namespace {

detail::stream_registry& streams_of(weir::device owner) noexcept {
  return detail::device_state::of(owner).known_streams;
}

/// Whether the error means that nothing runs on the device any more.
bool does_no_work(const error& reason) noexcept {
  return reason.code == errc::device_lost || reason.code == errc::driver_gone;
}

}  // namespace

result<void> central_heap::enable_peer(weir::device peer) try {
  WEIR_TRY(usable());
  if (peer == device_)
    return error{.code = errc::invalid_argument, .detail = "a device is no peer of itself"};
  WEIR_TRY_VALUE(reaches, peer.can_access_peer(device_));
  if (!reaches)
    return error{.code = errc::not_supported, .detail = "the device cannot reach the allocator's"};
  // Memory of the driver's own is reached by whole contexts.
  if (policy_ == placement_policy::classic) WEIR_TRY(peer.enable_peer_access(device_));
  const detail::mutex_lock lock{mutex_};
  while (moving_ != 0) moved_.wait(mutex_);  // those have their rights already
  WEIR_TRY(usable());
  const vmm::access right = vmm::access_for(peer);
  const auto is_granted = [&](const vmm::access& each) {
    return each.location.id == right.location.id;
  };
  std::vector<vmm::access>& rights = placement_.rights;
  if (std::any_of(rights.begin(), rights.end(), is_granted)) return {};
  rights.reserve(rights.size() + 1);
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  for (const auto& each : pools_)
    if (each->memory != nullptr) WEIR_TRY(each->memory->grant(right, driver.enter()));
  rights.push_back(right);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> central_heap::wait_for_devices(const std::vector<vmm::access>& rights,
                                            const event* own_work) const {
  WEIR_TRY(own_work == nullptr ? device_.synchronize() : own_work->synchronize());
  for (const vmm::access& each : rights) {
    WEIR_TRY_VALUE(reaching, home_->owner->device(device_id{each.location.id}));
    if (reaching == device_) continue;
    auto done = reaching.synchronize();
    if (!done && !does_no_work(done.error())) return done;
  }
  return {};
}

// --- Streams of other devices -------------------------------------------------------------------
//
// An event belongs to the device of the stream it is recorded on, so marks on a stream of another
// device are nothing that stream_order could keep. Instead a stream of this device, the joint one,
// is made to wait for the foreign ones when the block is freed, and the block waits for the joint
// stream.

result<void> central_heap::record_foreign_stream(void* pointer, const stream_ref& stream) {
  if (detail::device_state::of(stream.device()).owner != home_->owner)
    return error{.code = errc::bad_stream, .detail = "the stream is of another runtime"};
  if (stream.is_per_thread()) {
    return error{.code = errc::bad_stream,
                 .detail = "the stream is of another device and depends on the thread that asks"};
  }
  auto identified = stream.identified();
  if (!identified) {
    error refused = std::move(identified).error();
    if (order::says_gone(refused)) refused.code = errc::bad_stream;
    return refused;
  }
  const foreign_use use{*identified,
                        streams_of(stream.device()).registration_of(identified->known_id())};
  // Without the lock: a stream that is destroyed tells every allocator of its device.
  std::optional<weir::stream> created;
  bool is_first = false;
  {
    const detail::mutex_lock lock{mutex_};
    is_first = !joint_stream_;
  }
  if (is_first) {
    WEIR_TRY_VALUE(fresh, stream::create(device_));
    created.emplace(std::move(fresh));
  }
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(index, find_live(pointer));
  if (!joint_stream_) joint_stream_ = std::move(created);
  std::vector<foreign_use>& uses = foreign_uses_[index];
  const auto is_known = [&](const foreign_use& each) { return each.stream == use.stream; };
  if (std::none_of(uses.begin(), uses.end(), is_known)) {
    // Whatever cannot be waited for at the free finds room among what is owed.
    unjoined_.reserve(unjoined_.size() + foreign_count_ + 1);
    uses.push_back(use);
    ++foreign_count_;
  }
  pending_.record(index, order_.meet(joint_stream_->ref(), joint_stream_->id()));
  blocks_[index].recorded = true;
  blocks_[index].out.home = 0;  // nobody frees it without looking
  emit_recorded(blocks_[index], identified->known_id());
  return {};
}

void central_heap::join_foreign_streams(block_index index) noexcept {
  const auto entry = foreign_uses_.find(index);
  if (entry == foreign_uses_.end()) return;
  foreign_count_ -= entry->second.size();
  for (const foreign_use& each : entry->second)
    if (!join(each)) unjoined_.push_back(each);
  foreign_uses_.erase(entry);
  hold_joint_stream();
}

/// Makes the joint stream wait for all that the other was given. False: that cannot be had now.
bool central_heap::join(const foreign_use& use) noexcept {
  const stream_ref& other = use.stream;
  const bool ended =
      use.registration != 0 &&
      streams_of(other.device()).registration_of(other.known_id()) != use.registration;
  if (!ended) {
    const auto capturing = other.is_capturing();
    if (!capturing) return does_no_work(capturing.error());
    if (*capturing) return false;
    auto mark = event::create(other.device());
    if (mark && mark->record(other) && joint_stream_->wait(*mark)) return true;
  }
  // Neither of a stream that is gone nor of a driver in trouble an event can be had: the whole
  // device must come to rest.
  const auto rested = other.device().synchronize();
  return rested || does_no_work(rested.error());
}

bool central_heap::join_late() noexcept {
  if (unjoined_.empty()) return true;
  std::erase_if(unjoined_, [this](const foreign_use& each) {
    mutex_.assert_held();
    return join(each);
  });
  hold_joint_stream();
  return unjoined_.empty();
}

/// A mark on the joint stream would be reached too early while it does not wait for everybody.
void central_heap::hold_joint_stream() noexcept {
  const stream_slot joint = order_.known(joint_stream_->id());
  if (joint != no_stream) order_.expect_capture(joint, !unjoined_.empty());
}

}  // namespace weir::inline v0::heap
