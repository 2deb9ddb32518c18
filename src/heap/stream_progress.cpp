// Streams of an allocator: who they are, how far they have come, and telling the others.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/allocator_state.hpp"
#include "order/mutation.hpp"

namespace weir::inline v0::heap {
result<allocator_state::caller> allocator_state::identify(const stream_ref& stream,
                                                          thread_cache* cache) {
  if (stream.device() != device_) {
    return error{.code = errc::bad_stream, .detail = "the stream is of another device"};
  }
  if (stream.known_id() != stream_id{}) return caller{stream, stream.known_id()};
  if (stream.is_legacy()) return caller{stream, legacy_stream_};
  if (stream.is_per_thread() && cache != nullptr && cache->per_thread_stream != stream_id{}) {
    return caller{stream, cache->per_thread_stream};
  }
  const bool per_thread = stream.is_per_thread();  // its reference never knows its id
  stream_id id{};
  const auto asked = stream.identified();
  std::optional<error> refused;
  if (!asked) {
    refused = asked.error();
  } else if (per_thread) {
    auto number = stream.id();
    if (number) {
      id = *number;
    } else {
      refused = std::move(number).error();
    }
  } else {
    id = asked->known_id();
  }
  if (refused) {
    if (refused->code == errc::capture_forbidden) return caller{stream, {}};
    if (order::says_gone(*refused)) refused->code = errc::bad_stream;
    return *std::move(refused);
  }
  if (per_thread && cache != nullptr) cache->per_thread_stream = id;
  return caller{*asked, id};
}

result<stream_slot> allocator_state::slot_of(const caller& who, driver_access& driver) {
  if (who.id != stream_id{}) return order_.meet(who.ref, who.id);
  WEIR_TRY(driver.entered());
  return order_.slot_of(who.ref, driver.enter());
}

void allocator_state::retire(pool_state& in) noexcept {
  if (in.memory == nullptr) return;
  for (stream_slot slot = 1; slot <= order_.count(); ++slot) in.memory->retire(slot);
}

bool allocator_state::retire_all() noexcept {
  for (const auto& each : pools_)
    if (!each->keeps_to_streams()) retire(*each);
  return pending_.take_passed(order_, [&](block_index which, stamp freed) {
    const block& what = blocks_[which];
    accounts_.waited(what.account, what.size() - what.out.waste, what.size());
    give_back(which, freed);
  });
}

result<bool> allocator_state::poll_streams(driver_access& driver, stream_slot close_but) {
  if (!order_.any_behind()) return false;
  WEIR_TRY(driver.entered());
  WEIR_TRY(order_.close_others(close_but, driver.enter()));
  WEIR_TRY_VALUE(grew, order_.poll(driver.enter()));
  if (grew) static_cast<void>(retire_all());
  return grew;
}

result<bool> allocator_state::any_capturing(driver_access& driver) {
  if (captures_.any_declared() || order_.paused()) return true;
  WEIR_TRY(driver.entered());
  return order_.any_capturing(driver.enter());
}

/// Only the whole device's rest tells about streams that cannot be asked any more. False: somebody
/// captures, and would be disturbed.
result<bool> allocator_state::wait_for_device(driver_access& driver) {
  WEIR_TRY_VALUE(capturing, any_capturing(driver));
  if (capturing) return false;
  if (!mutated(mutation::device_never_waited_for)) {
    const auto rested = device_.synchronize();
    // Somebody captures a stream that this allocator never met.
    if (!rested && rested.code() == errc::capture_forbidden) return false;
    WEIR_TRY(rested);
  }
  order_.device_synchronized();
  static_cast<void>(retire_all());
  return true;
}

result<void> allocator_state::wait_for_streams(driver_access& driver) {
  WEIR_TRY(poll_streams(driver, nobody));
  WEIR_TRY(driver.entered());
  WEIR_TRY(order_.synchronize(driver.enter()));
  static_cast<void>(retire_all());
  if (order_.any_behind()) WEIR_TRY(wait_for_device(driver));
  return {};
}

void allocator_state::share_if_due() noexcept {
  if (to_share_ == nobody) [[likely]]
    return;
  driver_access driver{device_};
  share_freed(driver);
}

void allocator_state::share_freed(driver_access& driver) noexcept {
  const stream_slot slot = std::exchange(to_share_, nobody);
  if (!driver.entered()) return;
  static_cast<void>(order_.close(slot, driver.enter()));
  const auto grew = order_.poll(driver.enter());
  if (grew && *grew) static_cast<void>(retire_all());
}

}  // namespace weir::inline v0::heap
