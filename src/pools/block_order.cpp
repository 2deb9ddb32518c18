// SPDX-License-Identifier: Apache-2.0
// How far streams have come, and what that makes of the blocks they freed.
#include "pools/block_cache.hpp"

namespace weir { inline namespace v0 { namespace pools {

using order::no_stream;

bool block_cache::others_completed(block& pending) const noexcept {
  for (const stamp& other : pending.others)
    if (!order_.stream_completed(other)) return false;
  for (foreign_use& use : pending.foreign)
    if (!use.poll()) return false;
  return true;
}

result<void> block_cache::usable() const {
  if (closed_) return errc::closed;
  return {};
}

void block_cache::retire() {
  while (block* const first = without_bin_.front) {
    cached_.prepare(first->size, first->freed_on);
    without_bin_.remove(*first);
    cached_.put_back(*first);
  }
  for (block* next = pending_.front; next != nullptr;) {
    block& candidate = *next;
    next = candidate.after;
    if (!others_completed(candidate)) continue;
    cached_.prepare(candidate.size, candidate.freed_on);
    pending_.remove(candidate);
    stats_.pending -= bytes{candidate.size};
    candidate.others.clear();
    candidate.foreign.clear();
    candidate.state = block_state::cached;
    cached_.put(candidate);
  }
  cached_.retire(order_);
}

result<block*> block_cache::poll_for_cached(const block_request& request, driver_access& driver) {
  if (!cached_.any_stream_bound(request.rounded) && pending_.empty())
    return static_cast<block*>(nullptr);
  WEIR_TRY(driver.entered());
  // The host touches pinned memory in no stream's order: its own stream must be done, too.
  WEIR_TRY(update_progress(source_.host_touches ? no_stream : request.slot, driver));
  block* cached = take_cached(request);
  // A device at rest reaches a mark within microseconds; new memory costs far more than to poll.
  for (int polls = 0; polls < 32 && cached == nullptr && cached_.any_stream_bound(request.rounded);
       ++polls) {
    WEIR_TRY(order_.poll(driver.enter()));
    retire();
    cached = take_cached(request);
  }
  return cached;
}

result<void> block_cache::update_progress(stream_slot spared, driver_access& driver) {
  WEIR_TRY(waiter_.poll(spared, driver));
  retire();
  return {};
}

result<void> block_cache::wait_for_streams(driver_access& driver) {
  WEIR_TRY(driver.entered());
  WEIR_TRY(update_progress(no_stream, driver));
  WEIR_TRY(wait_for_foreign_streams());
  return waiter_.wait_for_streams(driver);
}

result<void> block_cache::wait_for_foreign_streams() {
  foreign_wait work;
  for (const block* each = pending_.front; each != nullptr; each = each->after)
    for (const foreign_use& use : each->foreign) work.add(use);
  if (work.empty()) return {};
  const std::uint64_t until = next_order_;
  result<void> waited;
  static_cast<void>(without_lock([&] { waited = work.wait(); }));
  WEIR_TRY(waited);
  for (block* each = pending_.front; each != nullptr; each = each->after) {
    if (each->order >= until) continue;
    for (foreign_use& use : each->foreign)
      if (work.covers(use)) use.set_done();
  }
  retire();
  return {};
}

result<block*> block_cache::take_behind_wait(const block_request& request, driver_access& driver) {
  WEIR_TRY(driver.entered());
  for (block* const candidate : cached_.stream_bound(request.rounded)) {
    WEIR_TRY_VALUE(waits, order_.wait(request.slot, candidate->freed, driver.enter()));
    if (!waits) continue;
    cached_.take(*candidate);
    return candidate;
  }
  return static_cast<block*>(nullptr);
}

}}}  // namespace weir::v0::pools
