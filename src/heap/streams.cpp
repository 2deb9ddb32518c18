// Epochs: one event closes many frees.
#include "heap/streams.hpp"

#include <utility>

#include "weir/driver.hpp"

namespace weir::inline v0::heap {
bool says_gone(const error& reason) noexcept {
  return reason.code == errc::bad_stream || reason.code == errc::invalid_handle ||
         reason.native == driver::CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

streams::streams(weir::device where) : device_{where}, events_{where}, entries_(1) {}
streams::~streams() = default;

stream_slot streams::known(stream_id id) const noexcept {
  const auto found = slots_.find(id);
  return found == slots_.end() ? nobody : found->second;
}

stream_ref streams::ref(stream_slot slot) const noexcept {
  return {device_, entries_[slot].handle};
}

result<stream_slot> streams::slot_of(const stream_ref& stream, const context_scope& bound) {
  if (stream.device() != device_) return errc::bad_stream;
  auto asked = stream.id(bound);
  if (!asked) {
    // A stream that is being captured cannot be asked; its handle cannot have changed hands since.
    const auto found = by_handle_.find(stream.handle());
    if (asked.code() == errc::capture_forbidden && found != by_handle_.end()) return found->second;
    return std::move(asked).error();
  }
  return meet(stream, *asked);
}

stream_slot streams::meet(const stream_ref& stream, stream_id id) {
  if (const stream_slot slot = known(id); slot != nobody) {
    met_alive(slot);
    return slot;
  }
  if (mutated(mutation::streams_known_by_handle) && by_handle_.contains(stream.handle()))
    return by_handle_.at(stream.handle());
  const auto slot = static_cast<stream_slot>(entries_.size());
  entry& met = entries_.emplace_back();
  met.id = id;
  met.handle = stream.handle();
  slots_.emplace(id, slot);
  if (!stream.is_per_thread()) by_handle_.insert_or_assign(stream.handle(), slot);
  return slot;
}

bool streams::still_there(entry& stream, const context_scope& bound) {
  if (stream.lost) return false;
  const stream_ref there{device_, stream.handle};
  const auto id = there.id(bound);
  const bool same = id ? *id == stream.id : !says_gone(id.error());
  // The per-thread handle means another stream on every thread: ours is there, but not from here.
  stream.lost = !same && !there.is_per_thread();
  return same;
}

result<bool> streams::may_be_asked(entry& stream, const context_scope& bound) {
  if (stream.lost || stream.released) return false;
  // Also the legacy stream while somebody else's capture forbids to use it.
  const auto capture = stream_ref{device_, stream.handle}.capture(bound);
  if (!capture && says_gone(capture.error())) stream.lost = true;
  if (!capture && !stream.lost && capture.code() != errc::not_supported) return capture.error();
  if (!capture || capture->status != capture_status::none) return false;
  return still_there(stream, bound);
}

result<bool> streams::close(stream_slot slot, const context_scope& bound) {
  if (paused() || entries_[slot].capture_expected) return !entries_[slot].used;
  return close_now(slot, bound);
}

result<bool> streams::close_now(stream_slot slot, const context_scope& bound) {
  entry& stream = entries_[slot];
  if (!stream.used) return true;
  WEIR_TRY_VALUE(askable, may_be_asked(stream, bound));
  if (!askable) return false;
  WEIR_TRY_VALUE(mark_event, events_.take());
  WEIR_TRY(mark_event.record(ref(slot), bound));
  ++events_recorded_;
  // Another thread may have begun to capture the stream in between. The event is the capture's
  // then: it says nothing of earlier work, and whoever waited for it would be captured, too.
  const auto capturing = ref(slot).is_capturing(bound);
  if (!capturing || *capturing) return false;
  stream.marks.push_back({stream.open, std::move(mark_event)});
  ++stream.open;
  stream.freed = 0;
  stream.frees = 0;
  stream.used = false;
  return true;
}

result<bool> streams::settle(stream_slot slot, const context_scope& bound) {
  entry& stream = entries_[slot];
  if (!stream.used) return true;
  if (paused() || stream.capture_expected) return false;
  WEIR_TRY_VALUE(askable, may_be_asked(stream, bound));
  if (!askable) return false;
  WEIR_TRY_VALUE(idle, ref(slot).ready(bound));
  if (!idle) return close(slot, bound);
  came_to_rest(stream);
  return true;
}

result<void> streams::release(stream_slot slot, const context_scope& bound) {
  entry& stream = entries_[slot];
  if (stream.lost || stream.released) return {};
  stream.used = true;  // blocks that are still live may have been used by any of its work
  WEIR_TRY_VALUE(closed, close_now(slot, bound));  // whose end is near is not being captured
  stream.released = closed;
  return {};
}

result<bool> streams::poll(stream_slot slot, const context_scope& bound) {
  entry& stream = entries_[slot];
  bool grew = false;
  while (!stream.marks.empty() && !paused()) {
    const auto reached = stream.marks.front().reached.reached(bound);
    if (!reached && reached.error().native == driver::CUDA_ERROR_CAPTURED_EVENT) {
      // Of a capture that came and went while it was recorded. A later mark will do for both.
      stream.marks.pop_front();
      stream.used = true;
      continue;
    }
    if (!reached) return reached.error();
    if (!*reached) break;
    stream.passed = stream.marks.front().epoch;
    WEIR_TRY(events_.give_back(std::move(stream.marks.front().reached)));
    stream.marks.pop_front();
    grew = true;
  }
  return grew;
}

result<bool> streams::synchronize(stream_slot slot, const context_scope& bound) {
  entry& stream = entries_[slot];
  if (stream.marks.empty() || paused()) return false;
  WEIR_TRY(stream.marks.back().reached.synchronize());
  return poll(slot, bound);
}

result<bool> streams::synchronize_oldest(stream_slot slot, const context_scope& bound) {
  entry& stream = entries_[slot];
  if (stream.marks.empty() || paused()) return false;
  WEIR_TRY(stream.marks.front().reached.synchronize());
  return poll(slot, bound);
}

result<bool> streams::wait(stream_slot waiter, stamp until, const context_scope& bound) {
  if (until.stream == waiter || has_passed(until)) return true;
  if (paused()) return false;
  entry& owner = entries_[until.stream];
  if (until.epoch == owner.open) {
    WEIR_TRY_VALUE(closed, close(until.stream, bound));
    if (!closed) return false;
  }
  entry& behind = entries_[waiter];
  const auto earlier = behind.waited_for.find(until.stream);
  if (earlier != behind.waited_for.end() && !is_after(until.epoch, earlier->second)) return true;
  // Events are reached in order: the first that closes the epoch or a later one will do.
  for (const mark& candidate : owner.marks) {
    if (is_after(until.epoch, candidate.epoch) && !mutated(mutation::wait_for_older_epoch))
      continue;
    WEIR_TRY(ref(waiter).wait(candidate.reached, bound));
    ++waits_queued_;
    behind.waited_for[until.stream] = candidate.epoch;
    return true;
  }
  return false;
}

void streams::came_to_rest(entry& stream) noexcept {
  if (stream.used) {
    stream.passed = stream.open++;
    stream.used = false;
  } else if (!stream.marks.empty()) {
    stream.passed = stream.marks.back().epoch;
  }
  for (mark& old : stream.marks) static_cast<void>(events_.give_back(std::move(old.reached)));
  stream.marks.clear();
}

void streams::device_synchronized() noexcept {
  for (entry& stream : entries_) came_to_rest(stream);
}

std::size_t streams::footprint() const noexcept {
  std::size_t total = entries_.size() * sizeof(entry);
  for (const entry& stream : entries_) total += stream.marks.size() * sizeof(mark);
  return total;
}

}  // namespace weir::inline v0::heap
