// SPDX-License-Identifier: Apache-2.0
// The streams of a mixed program, of every kind and on both devices, and the order of their work.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"
#include "world.hpp"

namespace weir::programs_test {

enum class lane_kind : std::uint8_t {
  weir_stream,          ///< weir::stream, non-blocking
  weir_blocking,        ///< weir::stream that synchronises with the legacy stream
  driver_non_blocking,  ///< created by the driver; weir learns of it by requests
  driver_blocking,
  secret,  ///< created by the driver and never named in a call of weir
  legacy,
  per_thread,
};
[[nodiscard]] const char* name(lane_kind kind);

/// A stream's number in a program; never used twice.
using lane_index = std::size_t;
inline constexpr lane_index no_lane = ~lane_index{0};

/// The last read and write of a piece of memory on every lane that used it.
class access_history {
 public:
  struct entry {
    lane_index lane = no_lane;
    std::uint64_t read = 0;
    std::uint64_t write = 0;
  };
  void add(lane_index lane, std::uint64_t operation, bool writes);
  void merge(const access_history& other);
  [[nodiscard]] const std::vector<entry>& entries() const { return entries_; }

 private:
  std::vector<entry> entries_;
};

/// Creates streams and orders what is queued on them by events, and by no more events than needed.
///
/// Each lane has a vector clock: how many operations of every other lane come before what is queued
/// on it next. Order that weir or the legacy stream adds is left out. One thread at a time;
/// enter_thread() says which one.
class lanes {
 public:
  explicit lanes(world& in) : world_{in} {}

  lane_index add(lane_kind kind, std::size_t device);
  /// Destroys the stream; what was queued on it is known by an event. False: it stays.
  bool destroy(lane_index lane);
  void enter_thread(std::size_t thread);
  void leave_thread();

  [[nodiscard]] std::size_t count() const { return entries_.size(); }
  [[nodiscard]] std::size_t thread() const { return thread_; }
  [[nodiscard]] lane_kind kind(lane_index lane) const { return entries_[lane].kind; }
  [[nodiscard]] std::size_t device(lane_index lane) const { return entries_[lane].device; }
  [[nodiscard]] stream_ref ref(lane_index lane) const { return entries_[lane].ref; }
  [[nodiscard]] std::string text(lane_index lane) const;
  [[nodiscard]] bool is_blocking(lane_index lane) const;
  [[nodiscard]] bool is_captured(lane_index lane) const { return entries_[lane].captured; }
  [[nodiscard]] bool is_alive(lane_index lane) const { return entries_[lane].alive; }
  /// Whether the stream can be named in a call of weir here and now.
  [[nodiscard]] bool is_nameable(lane_index lane) const;
  /// Whether work can be queued on it here and now.
  [[nodiscard]] bool is_usable(lane_index lane) const;
  /// Whether the legacy stream of the device must not be used, because of a captured stream.
  [[nodiscard]] bool blocks_legacy(std::size_t device) const;
  /// A lane of the device that can be used, and named if asked for; no_lane if none was found.
  [[nodiscard]] lane_index any(std::size_t device, bool nameable = true);
  /// A lane of any device on which a capture may begin; no_lane if none was found.
  [[nodiscard]] lane_index any_for_capture();

  void begin_capture(lane_index lane);
  void end_capture(lane_index lane) { entries_[lane].captured = false; }

  /// A new operation at the end of a lane.
  std::uint64_t queue(lane_index lane);
  [[nodiscard]] bool comes_after(lane_index next, lane_index other, std::uint64_t operation) const {
    return entries_[next].seen.size() > other && entries_[next].seen[other] >= operation;
  }
  /// Orders what is queued next on `next` behind the operation. False: not possible now.
  bool put_after(lane_index next, lane_index other, std::uint64_t operation);
  /// The same for every earlier access that conflicts with a read or write.
  bool put_after(lane_index next, const access_history& accesses, bool writes);
  /// Orders a stream that weir knows behind the work of those that an allocator may not know, on
  /// one device. suspend_async() of awaited_streams::known does not wait for the others. False: not
  /// possible now.
  bool cover_unknown(std::size_t device);
  /// The host waits for the lane.
  void synchronize(lane_index lane);
  /// The host waits for all work of both devices. No capture may be under way.
  void synchronize_all();

 private:
  using clock = std::vector<std::uint64_t>;
  struct entry {
    lane_kind kind{};
    std::size_t device = 0;
    std::optional<stream> owner;
    stream_ref ref;
    std::optional<std::size_t> thread{};
    bool alive = true;
    bool captured = false;
    std::optional<event> last{};  // behind all its work, while it cannot be used
    clock seen{};
  };

  static void merge(clock& into, const clock& from);
  void record_last(lane_index lane);

  world& world_;
  std::size_t thread_ = 0;
  std::vector<entry> entries_;
};

}  // namespace weir::programs_test
