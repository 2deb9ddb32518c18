// Events and waits, with a clock for every stream that says what they amount to.
#include "lanes.hpp"

#include <algorithm>
#include <utility>

#include "weir/device/stream_watch.hpp"

namespace weir::order_test {

void clock::raise(lane of, std::uint64_t to) {
  if (at_.size() <= of) at_.resize(of + 1);
  at_[of] = std::max(at_[of], to);
}

void clock::merge(const clock& other) {
  for (lane i = 0; i < other.at_.size(); ++i) raise(i, other.at_[i]);
}

void uses::note(lane on, std::uint64_t operation, bool writes) {
  auto found = std::find_if(all.begin(), all.end(), [&](const entry& e) { return e.on == on; });
  if (found == all.end()) {
    all.push_back({.on = on});
    found = std::prev(all.end());
  }
  (writes ? found->write : found->read) = operation;
}

lane lanes::add_owned(bool blocking) {
  if (random_.one_in(2)) {
    driver::CUstream handle = nullptr;
    const unsigned flags = blocking ? driver::CU_STREAM_DEFAULT : driver::CU_STREAM_NON_BLOCKING;
    if (!at_.done(at_.cuda().stream_create(&handle, flags), "stream")) return no_lane;
    const auto ref = stream_ref{at_.gpu(), handle}.identified();
    if (!at_.done(ref, "its id")) return no_lane;
    const bool watched = random_.one_in(2);
    if (watched && !at_.done(watch_stream(*ref), "watch_stream")) return no_lane;
    lanes_.push_back({.made = std::nullopt,
                      .ref = *ref,
                      .id = ref->known_id(),
                      .owned = true,
                      .blocking = blocking,
                      .watched = watched,
                      .known = watched});
    return lanes_.size() - 1;
  }
  auto made = stream::create(at_.gpu(), {.non_blocking = !blocking});
  if (!at_.done(made, "stream")) return no_lane;
  const stream_ref ref = made->ref();
  lanes_.push_back({.made = *std::move(made),
                    .ref = ref,
                    .id = ref.known_id(),
                    .owned = true,
                    .blocking = blocking,
                    .known = true});
  return lanes_.size() - 1;
}

lane lanes::add_default(stream_ref which, std::optional<std::size_t> thread) {
  const auto id = which.id();
  if (!at_.done(id, "the id of a default stream")) return no_lane;
  lanes_.push_back(
      {.made = std::nullopt, .ref = which, .id = *id, .blocking = true, .thread = thread});
  return lanes_.size() - 1;
}

bool lanes::nameable(lane which) const {
  const entry& of = lanes_[which];
  return of.alive && (!of.thread || *of.thread == thread_);
}

bool lanes::usable(lane which) const { return nameable(which) && !lanes_[which].captured; }

lane lanes::any() {
  for (;;) {
    const lane found = random_.below(lanes_.size());
    if (usable(found)) return found;
  }
}

lane lanes::any_owned() {
  for (int attempts = 0; attempts < 32; ++attempts) {
    const lane found = random_.below(lanes_.size());
    if (usable(found) && is_owned(found)) return found;
  }
  return no_lane;
}

void lanes::freeze(entry& which) {
  if (!which.last) {
    auto made = event::create(at_.gpu());
    if (!at_.done(made, "event")) return;
    which.last = *std::move(made);
  }
  at_.done(which.last->record(which.ref), "record");
}

void lanes::destroy(lane which) {
  entry& gone = lanes_[which];
  freeze(gone);
  gone.alive = false;
  gone.owned = false;
  if (gone.made) {
    at_.done(gone.made->close(), "destroying a stream");
    gone.made.reset();
  } else {
    if (gone.watched) at_.done(unwatch_stream(gone.ref), "unwatch_stream");
    at_.done(at_.cuda().stream_destroy(gone.ref.handle()), "destroying a stream");
  }
}

void lanes::leave_thread(std::size_t thread, bool for_good) {
  for (entry& each : lanes_) {
    if (!each.alive || each.thread != thread) continue;
    freeze(each);
    each.alive = !for_good;
  }
}

void lanes::begin_capture(lane which) {
  freeze(lanes_[which]);
  lanes_[which].captured = true;
}

std::uint64_t lanes::queue(lane on) {
  clock& seen = lanes_[on].seen;
  seen.raise(on, seen[on] + 1);
  return seen[on];
}

bool lanes::comes_after(lane next, lane other, std::uint64_t operation) const {
  return lanes_[next].seen[other] >= operation;
}

bool lanes::wait_for(lane next, const event& until, const clock& seen) {
  if (!at_.done(lanes_[next].ref.wait(until), "wait")) return false;
  lanes_[next].seen.merge(seen);
  return true;
}

bool lanes::put_after(lane next, lane other, std::uint64_t operation) {
  if (comes_after(next, other, operation)) return true;
  if (!usable(next)) return false;
  if (!usable(other) || random_.one_in(2)) {
    for (const past_mark& each : marks_)
      if (each.seen[other] >= operation) return wait_for(next, each.where, each.seen);
  }
  const entry& before = lanes_[other];
  if (!usable(other)) return before.last && wait_for(next, *before.last, before.seen);
  mark(other);
  return !marks_.empty() && wait_for(next, marks_.back().where, marks_.back().seen);
}

bool lanes::put_after(lane next, const uses& used, bool writes) {
  for (const uses::entry& each : used.all) {
    if (each.on == next) continue;
    const std::uint64_t last = writes ? std::max(each.read, each.write) : each.write;
    if (last != 0 && !put_after(next, each.on, last)) return false;
  }
  return true;
}

bool lanes::settle(lane next) {
  const clock owed = std::exchange(lanes_[next].owed, {});
  for (lane other = 0; other < owed.size(); ++other)
    if (owed[other] != 0 && !put_after(next, other, owed[other])) return false;
  return true;
}

void lanes::mark(lane which) {
  constexpr std::size_t most = 8;
  auto made = event::create(at_.gpu());
  if (!at_.done(made, "event") || !at_.done(made->record(lanes_[which].ref), "record")) return;
  if (marks_.size() == most) {
    std::swap(marks_[random_.below(most)], marks_.back());
    marks_.pop_back();
  }
  marks_.push_back({*std::move(made), lanes_[which].seen});
}

void lanes::synchronize(lane which) {
  if (!at_.done(lanes_[which].ref.synchronize(), "synchronize")) return;
  const clock done = lanes_[which].seen;
  for (entry& each : lanes_) each.seen.merge(done);
}

std::optional<event> lanes::publish(lane which) {
  auto made = event::create(at_.gpu());
  if (!at_.done(made, "event") || !at_.done(made->record(lanes_[which].ref), "record"))
    return std::nullopt;
  return *std::move(made);
}

bool lanes::wait(lane next, const event& until) {
  return at_.done(lanes_[next].ref.wait(until), "wait");
}

}  // namespace weir::order_test
