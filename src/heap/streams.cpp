// The streams of an allocator: which they are, and how far they have come.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"
#include "order/all_work_wait.hpp"

namespace weir { inline namespace v0 { namespace heap {

result<central_heap::identified_stream> central_heap::identify(const stream_ref& stream,
                                                               thread_cache* cache) {
  if (stream.device() != device_) {
    return error{.code = errc::bad_stream, .detail = "the stream is of another device"};
  }
  if (stream.known_id() != stream_id{}) return identified_stream{stream, stream.known_id()};
  if (stream.is_legacy()) return identified_stream{stream, legacy_stream_};
  if (stream.is_per_thread() && cache != nullptr && cache->per_thread_stream != stream_id{}) {
    return identified_stream{stream, cache->per_thread_stream};
  }
  const bool per_thread = stream.is_per_thread();  // its reference never knows its id
  stream_id id{};
  const auto identified = stream.identified();
  std::optional<error> refused;
  if (!identified) {
    refused = identified.error();
  } else if (per_thread) {
    auto number = stream.id();
    if (number) {
      id = *number;
    } else {
      refused = std::move(number).error();
    }
  } else {
    id = identified->known_id();
  }
  if (refused) {
    if (refused->code == errc::capture_forbidden) return identified_stream{stream, {}};
    if (order::says_gone(*refused)) refused->code = errc::bad_stream;
    return *std::move(refused);
  }
  if (per_thread && cache != nullptr) cache->per_thread_stream = id;
  return identified_stream{*identified, id};
}

result<stream_slot> central_heap::slot_of(const identified_stream& stream, driver_access& driver) {
  if (stream.id != stream_id{}) return order_.meet(stream.ref, stream.id);
  WEIR_TRY(driver.entered());
  return order_.slot_of(stream.ref, driver.enter());
}

void central_heap::retire(pool_state& pool) noexcept {
  if (pool.memory == nullptr) return;
  for (stream_slot slot = 1; slot <= order_.count(); ++slot) pool.memory->retire(slot);
}

bool central_heap::retire_all() noexcept {
  for (const auto& each : pools_)
    if (!each->keeps_to_streams()) retire(*each);
  return pending_.take_completed(order_, [&](block_index index, stamp freed) {
    mutex_.assert_held();
    end_waiting(blocks_[index]);
    free_to_store(index, freed);
  });
}

result<bool> central_heap::poll_streams(driver_access& driver, stream_slot spared) {
  if (!order_.any_behind()) return false;
  foreign_uses_.join_late(order_);
  WEIR_TRY(driver.entered());
  WEIR_TRY(order_.close_others(spared, driver.enter()));
  WEIR_TRY_VALUE(grew, order_.poll(driver.enter()));
  if (grew) static_cast<void>(retire_all());
  return grew;
}

result<bool> central_heap::any_capturing(driver_access& driver) {
  if (captures_.any_declared() || order_.paused()) return true;
  WEIR_TRY(driver.entered());
  return order_.any_capturing(driver.enter());
}

result<void> central_heap::wait_for_all_work(driver_access& driver) {
  WEIR_TRY(driver.entered());
  const order::all_work_wait work{order_, driver.enter(), other_devices()};
  foreign_uses_.wait_begins(order_);
  result<void> waited;
  WEIR_TRY(without_lock([&] { waited = work.wait(driver.enter()); }));
  WEIR_TRY(waited);
  learn_from(work);
  return {};
}

void central_heap::learn_from(const order::all_work_wait& work) noexcept {
  work.apply(order_);
  foreign_uses_.waited(work.until(), order_);
  static_cast<void>(retire_all());
}

result<void> central_heap::wait_for_streams(driver_access& driver) {
  WEIR_TRY(poll_streams(driver, no_stream));
  if (order_.paused()) return {};
  // Also where nothing is left to wait for: streams that ended may have completed what was freed.
  if (!order_.any_behind()) static_cast<void>(retire_all());
  if (!order_.any_behind()) return {};
  const order::epoch until = order_.last_ended();
  const order::awaited_marks marks = order_.unreached_marks();
  result<void> waited;
  WEIR_TRY(without_lock([&] { waited = marks.wait(); }));
  WEIR_TRY(waited);
  WEIR_TRY(order_.poll(driver.enter()));
  static_cast<void>(retire_all());
  if (order_.any_behind(until)) WEIR_TRY(wait_for_all_work(driver));
  return {};
}

void central_heap::share_now() noexcept try {
  driver_access driver{device_};
  share_freed(driver);
} catch (const std::bad_alloc&) {
  // Marks that cannot be made now are made by the next call that needs them.
}

void central_heap::share_freed(driver_access& driver) {
  const stream_slot slot = std::exchange(to_share_, no_stream);
  if (!driver.entered()) return;
  // Marks of now are seldom reached: they are looked at next time.
  const auto grew = order_.poll(driver.enter());
  static_cast<void>(order_.close(slot, driver.enter()));
  if (grew && *grew) static_cast<void>(retire_all());
}

}}}  // namespace weir::v0::heap
