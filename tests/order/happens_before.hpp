// SPDX-License-Identifier: Apache-2.0
// The happens-before relation of a program, as its generator knows it: one vector clock a stream.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "order_fixture.hpp"
#include "rng.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir::order_test {

/// A stream's number in a program; never used twice, though its handle may be.
using stream_index = std::size_t;
constexpr stream_index no_stream = ~stream_index{0};

/// By stream: how many of its operations come before something.
class vector_clock {
 public:
  [[nodiscard]] std::uint64_t operator[](stream_index stream) const {
    return stream < times_.size() ? times_[stream] : 0;
  }
  [[nodiscard]] std::size_t size() const { return times_.size(); }
  void raise(stream_index stream, std::uint64_t time);
  void merge(const vector_clock& other);

 private:
  std::vector<std::uint64_t> times_;
};

/// The last read and write of one block, or one graph's memory, on every stream that used it.
struct access_history {
  struct entry {
    stream_index stream = no_stream;
    std::uint64_t read = 0;
    std::uint64_t write = 0;
  };
  std::vector<entry> entries;

  void add(stream_index stream, std::uint64_t operation, bool writes);
};

/// The streams of a program and the order of what is queued on them.
///
/// Knows less order than there is: what the allocator queues, or the legacy stream implies, is left
/// out. So whatever it says is ordered is, and what it adds is what a careful user would add, and
/// hardly more: superfluous waits would hide missing ones. One thread at a time.
class happens_before {
 public:
  happens_before(order_fixture& fixture, rng& random) : fixture_{fixture}, random_{random} {}

  /// A stream that can be destroyed: weir's, or the driver's, watched or not.
  stream_index add_owned(bool blocking);
  stream_index add_default(stream_ref ref, std::optional<std::size_t> thread);
  /// The stream is destroyed; work queued on it is known by an event recorded behind it.
  void destroy(stream_index stream);
  /// The thread of a default stream is left (or over): the same, but it may come back.
  void leave_thread(std::size_t thread, bool for_good);
  void enter_thread(std::size_t thread) { thread_ = thread; }
  /// From here on the stream takes no ordinary work, until the capture ends.
  void begin_capture(stream_index stream);
  void end_capture(stream_index stream) { entries_[stream].captured = false; }

  [[nodiscard]] std::size_t count() const { return entries_.size(); }
  /// Whether work can be queued on it here and now.
  [[nodiscard]] bool is_usable(stream_index stream) const;
  /// Whether it can be named in a call here and now.
  [[nodiscard]] bool is_nameable(stream_index stream) const;
  [[nodiscard]] bool is_owned(stream_index stream) const { return entries_[stream].owned; }
  [[nodiscard]] bool is_blocking(stream_index stream) const { return entries_[stream].blocking; }
  /// Whether the allocator counts its work: weir made it, it is watched, or a request named it.
  [[nodiscard]] bool is_known(stream_index stream) const { return entries_[stream].known; }
  void set_known(stream_index stream) {
    if (!std::exchange(entries_[stream].known, true)) entries_[stream].known_since = ++meetings_;
  }
  /// How many streams the allocator has come to know.
  [[nodiscard]] std::uint64_t meetings() const { return meetings_; }
  /// Whether the stream was one of the first so many.
  [[nodiscard]] bool was_known(stream_index stream, std::uint64_t meetings) const {
    return is_known(stream) && entries_[stream].known_since <= meetings;
  }
  [[nodiscard]] stream_id id(stream_index stream) const { return entries_[stream].id; }
  [[nodiscard]] stream_ref ref(stream_index stream) const { return entries_[stream].ref; }
  [[nodiscard]] driver::CUstream handle(stream_index stream) const {
    return entries_[stream].ref.handle();
  }
  /// One on which work can be queued.
  [[nodiscard]] stream_index any();
  [[nodiscard]] stream_index any_owned();

  /// A new operation at the end of a stream.
  std::uint64_t queue(stream_index stream);
  [[nodiscard]] bool comes_after(stream_index next, stream_index other,
                                 std::uint64_t operation) const;
  /// Makes what is queued next on `next` come after the operation. False: that cannot be had now.
  bool put_after(stream_index next, stream_index other, std::uint64_t operation);
  /// The same for whatever conflicts with an access to something.
  bool put_after(stream_index next, const access_history& accesses, bool writes);
  /// What is queued on `next` must come after the operation once queue_deferred_waits() was called;
  /// not yet.
  void defer_wait(stream_index next, stream_index other, std::uint64_t operation) {
    entries_[next].deferred.raise(other, operation);
  }
  [[nodiscard]] bool queue_deferred_waits(stream_index next);
  [[nodiscard]] bool has_deferred_waits(stream_index next) const {
    return entries_[next].deferred.size() != 0;
  }
  /// Records an event on a stream that later waits may use.
  void record_event(stream_index stream);
  void synchronize(stream_index stream);
  /// For others: an event behind everything queued on the stream.
  [[nodiscard]] std::optional<event> publish(stream_index stream);
  bool wait(stream_index next, const event& until);

 private:
  struct entry {
    std::optional<stream> owner;  // empty: the driver's
    stream_ref ref;
    stream_id id{};
    bool owned = false;
    bool blocking = false;
    bool watched = false;
    bool known = false;
    std::uint64_t known_since = 0;
    bool alive = true;
    bool captured = false;
    std::optional<std::size_t> thread{};  // the only one that can queue on it
    std::optional<event> last{};          // behind all its work, once it cannot be asked
    vector_clock seen{};                  // what comes before what is queued next
    vector_clock deferred{};              // what must, before it uses what it freed
  };
  struct recorded_event {
    event completion;
    vector_clock seen;
  };

  [[nodiscard]] bool wait_for(stream_index next, const event& until, const vector_clock& seen);
  void record_last_event(entry& stream);

  order_fixture& fixture_;
  rng& random_;
  std::size_t thread_ = 0;
  std::vector<entry> entries_;
  std::uint64_t meetings_ = 0;
  std::vector<recorded_event> events_;
};

}  // namespace weir::order_test
