// SPDX-License-Identifier: Apache-2.0
// Events and waits, with a vector clock for every stream that says what they amount to.
#include "happens_before.hpp"

#include <algorithm>
#include <utility>

#include "weir/device/stream_watch.hpp"

namespace weir::order_test {

void vector_clock::raise(stream_index stream, std::uint64_t time) {
  if (times_.size() <= stream) times_.resize(stream + 1);
  times_[stream] = std::max(times_[stream], time);
}

void vector_clock::merge(const vector_clock& other) {
  for (stream_index i = 0; i < other.times_.size(); ++i) raise(i, other.times_[i]);
}

void access_history::add(stream_index stream, std::uint64_t operation, bool writes) {
  auto last = std::find_if(entries.begin(), entries.end(),
                           [&](const entry& each) { return each.stream == stream; });
  if (last == entries.end()) {
    entries.push_back({.stream = stream});
    last = std::prev(entries.end());
  }
  (writes ? last->write : last->read) = operation;
}

// --- Streams -------------------------------------------------------------------------------------

stream_index happens_before::add_owned(bool blocking) {
  if (random_.one_in(2)) {
    driver::CUstream handle = nullptr;
    const unsigned flags = blocking ? driver::CU_STREAM_DEFAULT : driver::CU_STREAM_NON_BLOCKING;
    if (!fixture_.expect_ok(fixture_.cuda().stream_create(&handle, flags), "stream"))
      return no_stream;
    const auto ref = stream_ref{fixture_.gpu(), handle}.identified();
    if (!fixture_.expect_ok(ref, "its id")) return no_stream;
    const bool watched = random_.one_in(2);
    if (watched && !fixture_.expect_ok(watch_stream(*ref), "watch_stream")) return no_stream;
    entries_.push_back({.owner = std::nullopt,
                        .ref = *ref,
                        .id = ref->known_id(),
                        .owned = true,
                        .blocking = blocking,
                        .watched = watched});
    if (watched) set_known(entries_.size() - 1);
    return entries_.size() - 1;
  }
  auto created = stream::create(fixture_.gpu(), {.non_blocking = !blocking});
  if (!fixture_.expect_ok(created, "stream")) return no_stream;
  const stream_ref ref = created->ref();
  entries_.push_back({.owner = *std::move(created),
                      .ref = ref,
                      .id = ref.known_id(),
                      .owned = true,
                      .blocking = blocking});
  set_known(entries_.size() - 1);
  return entries_.size() - 1;
}

stream_index happens_before::add_default(stream_ref ref, std::optional<std::size_t> thread) {
  const auto id = ref.id();
  if (!fixture_.expect_ok(id, "the id of a default stream")) return no_stream;
  entries_.push_back(
      {.owner = std::nullopt, .ref = ref, .id = *id, .blocking = true, .thread = thread});
  return entries_.size() - 1;
}

bool happens_before::is_nameable(stream_index stream) const {
  const entry& named = entries_[stream];
  return named.alive && (!named.thread || *named.thread == thread_);
}

bool happens_before::is_usable(stream_index stream) const {
  return is_nameable(stream) && !entries_[stream].captured;
}

stream_index happens_before::any() {
  for (;;) {
    const stream_index stream = random_.below(entries_.size());
    if (is_usable(stream)) return stream;
  }
}

stream_index happens_before::any_owned() {
  for (int attempts = 0; attempts < 32; ++attempts) {
    const stream_index stream = random_.below(entries_.size());
    if (is_usable(stream) && is_owned(stream)) return stream;
  }
  return no_stream;
}

void happens_before::record_last_event(entry& stream) {
  if (!stream.last) {
    auto created = event::create(fixture_.gpu());
    if (!fixture_.expect_ok(created, "event")) return;
    stream.last = *std::move(created);
  }
  fixture_.expect_ok(stream.last->record(stream.ref), "record");
}

void happens_before::destroy(stream_index stream) {
  entry& destroyed = entries_[stream];
  record_last_event(destroyed);
  destroyed.alive = false;
  destroyed.owned = false;
  if (destroyed.owner) {
    fixture_.expect_ok(destroyed.owner->close(), "destroying a stream");
    destroyed.owner.reset();
  } else {
    if (destroyed.watched) fixture_.expect_ok(unwatch_stream(destroyed.ref), "unwatch_stream");
    fixture_.expect_ok(fixture_.cuda().stream_destroy(destroyed.ref.handle()),
                       "destroying a stream");
  }
}

void happens_before::leave_thread(std::size_t thread, bool for_good) {
  for (entry& each : entries_) {
    if (!each.alive || each.thread != thread) continue;
    record_last_event(each);
    each.alive = !for_good;
  }
}

void happens_before::begin_capture(stream_index stream) {
  record_last_event(entries_[stream]);
  entries_[stream].captured = true;
}

// --- Order ---------------------------------------------------------------------------------------

std::uint64_t happens_before::queue(stream_index stream) {
  vector_clock& seen = entries_[stream].seen;
  seen.raise(stream, seen[stream] + 1);
  return seen[stream];
}

bool happens_before::comes_after(stream_index next, stream_index other,
                                 std::uint64_t operation) const {
  return entries_[next].seen[other] >= operation;
}

bool happens_before::wait_for(stream_index next, const event& until, const vector_clock& seen) {
  if (!fixture_.expect_ok(entries_[next].ref.wait(until), "wait")) return false;
  entries_[next].seen.merge(seen);
  return true;
}

bool happens_before::put_after(stream_index next, stream_index other, std::uint64_t operation) {
  if (comes_after(next, other, operation)) return true;
  if (!is_usable(next)) return false;
  if (!is_usable(other) || random_.one_in(2)) {
    for (const recorded_event& each : events_)
      if (each.seen[other] >= operation) return wait_for(next, each.completion, each.seen);
  }
  const entry& before = entries_[other];
  if (!is_usable(other)) return before.last && wait_for(next, *before.last, before.seen);
  record_event(other);
  return !events_.empty() && wait_for(next, events_.back().completion, events_.back().seen);
}

bool happens_before::put_after(stream_index next, const access_history& accesses, bool writes) {
  for (const access_history::entry& each : accesses.entries) {
    if (each.stream == next) continue;
    const std::uint64_t last = writes ? std::max(each.read, each.write) : each.write;
    if (last != 0 && !put_after(next, each.stream, last)) return false;
  }
  return true;
}

bool happens_before::queue_deferred_waits(stream_index next) {
  const vector_clock deferred = std::exchange(entries_[next].deferred, {});
  for (stream_index other = 0; other < deferred.size(); ++other)
    if (deferred[other] != 0 && !put_after(next, other, deferred[other])) return false;
  return true;
}

void happens_before::record_event(stream_index stream) {
  constexpr std::size_t most = 8;
  auto completion = publish(stream);
  if (!completion) return;
  if (events_.size() == most) {
    std::swap(events_[random_.below(most)], events_.back());
    events_.pop_back();
  }
  events_.push_back({*std::move(completion), entries_[stream].seen});
}

void happens_before::synchronize(stream_index stream) {
  if (!fixture_.expect_ok(entries_[stream].ref.synchronize(), "synchronize")) return;
  const vector_clock completed = entries_[stream].seen;
  for (entry& each : entries_) each.seen.merge(completed);
}

std::optional<event> happens_before::publish(stream_index stream) {
  auto created = event::create(fixture_.gpu());
  if (!fixture_.expect_ok(created, "event") ||
      !fixture_.expect_ok(created->record(entries_[stream].ref), "record"))
    return std::nullopt;
  return *std::move(created);
}

bool happens_before::wait(stream_index next, const event& until) {
  return fixture_.expect_ok(entries_[next].ref.wait(until), "wait");
}

}  // namespace weir::order_test
