// The order of a program, as its generator knows it: streams, and what comes before what on them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "chance.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"
#include "world.hpp"

namespace weir::order_test {

/// A stream's number in a program; never used twice, though its handle may be.
using lane = std::size_t;
constexpr lane no_lane = ~lane{0};

/// By lane: how much of its work comes before something.
class clock {
 public:
  [[nodiscard]] std::uint64_t operator[](lane of) const { return of < at_.size() ? at_[of] : 0; }
  [[nodiscard]] std::size_t size() const { return at_.size(); }
  void raise(lane of, std::uint64_t to);
  void merge(const clock& other);

 private:
  std::vector<std::uint64_t> at_;
};

/// The last read and write of one thing on every lane that used it.
struct uses {
  struct entry {
    lane on = no_lane;
    std::uint64_t read = 0;
    std::uint64_t write = 0;
  };
  std::vector<entry> all;

  void note(lane on, std::uint64_t operation, bool writes);
};

/// The streams of a program and the order of what is queued on them.
///
/// Knows less order than there is: what the allocator queues, or the legacy stream implies, is left
/// out. So whatever it says is ordered is, and what it adds is what a careful user would add, and
/// hardly more: superfluous waits would hide missing ones. One thread at a time.
class lanes {
 public:
  lanes(world& at, chance& random) : at_{at}, random_{random} {}

  /// A stream that can be destroyed: weir's, or the driver's, watched or not.
  lane add_owned(bool blocking);
  lane add_default(stream_ref which, std::optional<std::size_t> thread);
  /// The stream is destroyed; work queued on it is known by a mark left behind it.
  void destroy(lane which);
  /// The thread of a default stream is left (or over): the same, but it may come back.
  void leave_thread(std::size_t thread, bool for_good);
  void enter_thread(std::size_t thread) { thread_ = thread; }
  /// From here on the stream takes no ordinary work, until it is let go.
  void begin_capture(lane which);
  void end_capture(lane which) { lanes_[which].captured = false; }

  [[nodiscard]] std::size_t count() const { return lanes_.size(); }
  /// Whether work can be queued on it here and now.
  [[nodiscard]] bool usable(lane which) const;
  /// Whether it can be named in a call here and now.
  [[nodiscard]] bool nameable(lane which) const;
  [[nodiscard]] bool is_owned(lane which) const { return lanes_[which].owned; }
  [[nodiscard]] bool is_blocking(lane which) const { return lanes_[which].blocking; }
  /// Whether the allocator counts its work: weir made it, it is watched, or a request named it.
  [[nodiscard]] bool is_known(lane which) const { return lanes_[which].known; }
  void name(lane which) { lanes_[which].known = true; }
  [[nodiscard]] stream_id id(lane which) const { return lanes_[which].id; }
  [[nodiscard]] stream_ref ref(lane which) const { return lanes_[which].ref; }
  [[nodiscard]] driver::CUstream handle(lane which) const { return lanes_[which].ref.handle(); }
  /// One on which work can be queued.
  [[nodiscard]] lane any();
  [[nodiscard]] lane any_owned();

  /// A new operation at the end of a lane.
  std::uint64_t queue(lane on);
  [[nodiscard]] bool comes_after(lane next, lane other, std::uint64_t operation) const;
  /// Makes what is queued next on `next` come after the operation. False: that cannot be had now.
  bool put_after(lane next, lane other, std::uint64_t operation);
  /// The same for whatever conflicts with an access to something.
  bool put_after(lane next, const uses& used, bool writes);
  /// What is queued on `next` must come after the operation once settle() was called; not yet.
  void owe(lane next, lane other, std::uint64_t operation) {
    lanes_[next].owed.raise(other, operation);
  }
  [[nodiscard]] bool settle(lane next);
  /// Leaves a mark on a stream that later waits may use.
  void mark(lane which);
  void synchronize(lane which);
  /// For others: an event behind everything queued on the lane.
  [[nodiscard]] std::optional<event> publish(lane which);
  bool wait(lane next, const event& until);

 private:
  struct entry {
    std::optional<stream> made;  // empty: the driver's
    stream_ref ref;
    stream_id id{};
    bool owned = false;
    bool blocking = false;
    bool watched = false;
    bool known = false;
    bool alive = true;
    bool captured = false;
    std::optional<std::size_t> thread{};  // the only one that can queue on it
    std::optional<event> last{};          // behind all its work, once it cannot be asked
    clock seen{};                         // what comes before what is queued next
    clock owed{};                         // what must, before it uses what it freed
  };
  struct past_mark {
    event where;
    clock seen;
  };

  [[nodiscard]] bool wait_for(lane next, const event& until, const clock& seen);
  void freeze(entry& which);

  world& at_;
  chance& random_;
  std::size_t thread_ = 0;
  std::vector<entry> lanes_;
  std::vector<past_mark> marks_;
};

}  // namespace weir::order_test
