// SPDX-License-Identifier: Apache-2.0
// The profile of a replay: its requests by cause, and the driver calls and time of each.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "replay/free_space.hpp"
#include "weir/base/result.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace replay {

struct outcome;
struct script;
struct settings;

/// What a step came to. Requests first, in the order in which an allocator tries; then the rest.
enum class cause : std::uint8_t {
  thread_cache,         ///< the thread's cache had the block
  free_range,           ///< memory that was free as it lay
  completed,            ///< what streams had completed meanwhile
  flushed,              ///< what threads had cached
  move,                 ///< free handles were mapped where room was missing
  move_behind_wait,     ///< the same with other streams' memory, behind a queued wait
  pending_behind_wait,  ///< a block that recorded streams may still use, behind queued waits
  growth,               ///< memory was taken from the driver
  release,              ///< cached memory, or another pool's, was given up for it
  wait,                 ///< the host waited for streams
  out_of_memory,
  driver_pool,    ///< the driver's own pool served it
  kept_free,      ///< a free that the thread's cache took
  heap_free,      ///< a free that went further
  record_stream,  ///< of the recording
};
inline constexpr std::size_t cause_count = 15;

/// "thread_cache", "free_range", …
[[nodiscard]] std::string_view name(cause cause) noexcept;

/// What the steps of one cause came to.
struct cause_cost {
  std::uint64_t count = 0;
  std::uint64_t driver_calls = 0;
  std::chrono::nanoseconds driver_time{};
  /// Inside the allocator, without the driver.
  std::chrono::nanoseconds host_time{};
};

/// The host time of one step, in nanoseconds. Less than what measuring costs comes out as less than
/// nothing now and then; sums need that.
struct step_time {
  replay::cause cause{};
  float nanoseconds = 0;
};

/// The calls of one kind.
struct call_tally {
  std::uint64_t count = 0;
  std::chrono::nanoseconds time{};
};

/// Where a replay's time went. Driver times are as in the outcome: simulated, or on a real device
/// measured. Host time is measured: by the processor's own clock around each step, without what
/// reading that clock costs and without what the driver, or its simulation, takes. What the
/// allocator does in that time (index, accounts) is not told apart: measuring that would cost more
/// than it does.
struct profile {
  std::array<cause_cost, cause_count> causes{};
  std::array<call_tally, driver::call_count> calls{};
  std::vector<step_time> steps{};  ///< what the causes' host times are the sums of
  std::uint64_t locks = 0;         ///< times that the lock was taken; unknown, 0, for driver_pool
  /// After the warm-up: the most driver time that fell into 100 ms of the recording, and into one
  /// request or free.
  std::chrono::nanoseconds worst_window{};
  std::chrono::nanoseconds longest_step{};
  /// Where the memory was behind the step with which the most was reserved for the first time. None
  /// of driver_pool, and of a script that reserves nothing.
  std::optional<free_space> at_peak{};

  /// Makes the causes' host times the sums of the steps'.
  void sum_up_host_time() noexcept;

  [[nodiscard]] const cause_cost& of(cause cause) const noexcept {
    return causes[static_cast<std::size_t>(cause)];
  }
  [[nodiscard]] const call_tally& of(driver::call call) const noexcept {
    return calls[static_cast<std::size_t>(call)];
  }
  [[nodiscard]] std::uint64_t events_recorded() const noexcept;
  [[nodiscard]] std::uint64_t events_queried() const noexcept;
  [[nodiscard]] std::uint64_t events_waited() const noexcept;  ///< by the host
  [[nodiscard]] std::uint64_t waits_queued() const noexcept;   ///< by streams
  /// worst_window in per cent of the window.
  [[nodiscard]] double worst_window_percent() const noexcept;
};

inline constexpr std::chrono::nanoseconds profile_window = std::chrono::milliseconds{100};

/// As play(), with a profile in the outcome. Plays three times: the host time of a step is the
/// least of the three, as whatever else runs on the machine can only add to it; all else is the
/// same each time on the simulator, and that of the last on a real device. Then plays up to the
/// peak, without the observer, to see where the memory is there. One at a time in a process.
[[nodiscard]] result<outcome> play_profiled(const script& script, const settings& settings);

}}}  // namespace weir::v0::replay
