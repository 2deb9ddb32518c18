// Other devices: who may reach the memory, and streams of theirs that use it.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

result<void> central_heap::enable_peer(weir::device peer) try {
  WEIR_TRY(usable());
  if (peer == device_)
    return error{.code = errc::invalid_argument, .detail = "a device is no peer of itself"};
  WEIR_TRY_VALUE(reaches, peer.can_access_peer(device_));
  if (!reaches)
    return error{.code = errc::not_supported, .detail = "the device cannot reach the allocator's"};
  // It may be recorded beside a capture, and cannot be asked then.
  static_cast<void>(stream_ref::legacy(peer).id());
  // Memory of the driver's own is reached by whole contexts.
  if (policy_ == placement_policy::classic) WEIR_TRY(peer.enable_peer_access(device_));
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(residency_.await_moves());  // those have their rights already
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

result<void> central_heap::record_foreign_stream(void* pointer, const stream_ref& stream) {
  WEIR_TRY_VALUE(use, foreign_uses::describe(stream, device_));
  foreign_listening_.add(stream.device());
  bool has_joint_stream = false;
  {
    const detail::mutex_lock lock{mutex_};
    has_joint_stream = foreign_uses_.has_joint_stream();
  }
  WEIR_TRY_VALUE(joint, foreign_uses::make_joint_stream(device_, has_joint_stream));
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(index, find_live(pointer));
  pending_.record(index, foreign_uses_.add(index, use, std::move(joint), order_));
  blocks_[index].recorded = true;
  blocks_[index].out.home = 0;  // nobody frees it without looking
  emit_recorded(blocks_[index], use.stream.known_id());
  return {};
}

}}}  // namespace weir::v0::heap
