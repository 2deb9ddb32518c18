// SPDX-License-Identifier: Apache-2.0
// Replay: a recorded program's requests played against a policy, on a simulated or a real GPU.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/profile.hpp"
#include "replay/script.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace replay {

// --- Policies and devices -----------------------------------------------------------------------

/// The allocator that serves the requests: weir's own policies, PyTorch's two as weir plays them,
/// and the driver's stream-ordered pool.
enum class policy : std::uint8_t {
  torch_default,
  torch_expandable,
  balanced,
  throughput,
  compact,
  driver_pool,
  never_move,
};

/// "torch-default", "driver-pool", …
[[nodiscard]] std::string_view name(policy policy) noexcept;

/// The policies of "all", in the order of tables: every one but never_move, which must be named.
inline constexpr std::array all_policies{policy::torch_default, policy::torch_expandable,
                                         policy::balanced,      policy::throughput,
                                         policy::compact,       policy::driver_pool};

/// A list "balanced,compact", or "all"; each policy once, in the list's order. bad_option: no such
/// policy (the detail names the nearest), or an empty list.
[[nodiscard]] result<std::vector<policy>> parse_policies(std::string_view list);

/// The device of a replay.
struct target {
  bool simulated = true;
  int device = 0;

  friend bool operator==(const target&, const target&) = default;
};

/// "sim", "cuda" or "cuda:1". bad_option: anything else.
[[nodiscard]] result<target> parse_target(std::string_view text);
[[nodiscard]] std::string to_string(target target);

// --- Playing ------------------------------------------------------------------------------------

struct settings {
  replay::policy policy = replay::policy::balanced;
  replay::target target{};
  /// On the simulated device: how long work takes from being queued to being complete.
  std::chrono::nanoseconds lag = std::chrono::milliseconds{1};
  /// The most device memory that may be taken; 0 is what the device has.
  bytes capacity{};
  /// The driver for a real device; empty is the system's.
  std::string driver{};
  /// How many points memory over time has about, at most twice as many: a stretch is short in steps
  /// and in time. 0 keeps none. Costs microseconds a point.
  std::size_t samples = 0;
  /// Whether patterns are written at every allocation and checked at the free, in stream order.
  /// Always done on a real device.
  bool verify = false;
  /// Whether the outcome gets a profile; play_profiled() is the better way to one. The driver is
  /// metered: one such replay at a time in a process.
  bool profiled = false;
  /// Ends the replay behind so many steps, and surveys the memory there; 0: plays all of them. Not
  /// with driver_pool.
  std::size_t surveyed_steps = 0;
  /// Ends the replay at the first request that cannot be met. Figures that are measured are as of
  /// then; those of the script are the whole script's: `allocations`, `requested_peak`, `events`
  /// and `steady_time`.
  bool stops_when_out = false;
  /// Receives the allocator's events, in the order of the steps; not with driver_pool.
  event_sink* observer = nullptr;
  /// Called with how many of the script's steps are done, now and then, on the playing thread.
  std::function<void(std::size_t)> progress{};
};

/// The most that was held during one stretch of the replay, which ends where the next begins.
struct sample {
  std::uint64_t time = 0;  ///< nanoseconds of the recording, at the stretch's first step
  std::uint64_t requested = 0;
  std::uint64_t reserved = 0;
};

/// The first request of a replay that could not be met.
struct shortfall {
  std::uint32_t block = 0;   ///< that was asked for: the script's number
  std::uint64_t time = 0;    ///< nanoseconds of the recording
  std::uint64_t size = 0;    ///< of the request
  std::uint64_t in_use = 0;  ///< when it came, as requested

  friend bool operator==(const shortfall&, const shortfall&) = default;
};

/// The outcome of a replay. Driver times are simulated (measured costs of an H200) or, on a real
/// device, measured on the host.
struct outcome {
  replay::policy policy{};
  std::size_t streams = 0;
  std::uint64_t allocations = 0;
  std::uint64_t requested_peak = 0;  ///< the most that was in use, as requested
  std::uint64_t reserved_peak = 0;   ///< the most that was taken from the driver
  std::uint64_t driver_calls = 0;
  std::chrono::nanoseconds driver_time{};
  /// The same of the last four fifths of the events, and the recording's own time there.
  std::chrono::nanoseconds steady_driver_time{};
  std::chrono::nanoseconds steady_time{};
  std::uint64_t waits = 0;  ///< queued so that a stream could reuse another's memory
  std::uint64_t ooms = 0;   ///< requests that could not be met; their blocks are left out
  std::optional<shortfall> first_oom{};  ///< of them
  std::uint64_t mismatches = 0;          ///< blocks whose pattern was not there at the free
  std::uint64_t events = 0;              ///< of the recording that concern blocks
  /// How long the events took: processor time on the simulator, time on a real device.
  std::chrono::nanoseconds play_time{};
  /// With a profile: how many steps there are up to the one with which the most was reserved for
  /// the first time; 0 for driver_pool, and where nothing was.
  std::size_t peak_steps = 0;
  memory_stats stats{};  ///< of weir's own policies
  std::vector<sample> samples{};
  std::optional<replay::profile> profile{};
  std::optional<free_space> surveyed{};  ///< if settings::surveyed_steps asked for it

  /// Every request was met, and no pattern was lost.
  [[nodiscard]] bool is_complete() const noexcept { return ooms == 0 && mismatches == 0; }
  /// reserved_peak / requested_peak; 0 if nothing was asked for. Says nothing where requests were
  /// not met.
  [[nodiscard]] double ratio() const noexcept;
  /// Driver time as a percentage of the recording's own time, in the last four fifths; 0 if that
  /// took none.
  [[nodiscard]] double steady_driver_percent() const noexcept;
  /// Events in a second of `play_time`.
  [[nodiscard]] double events_per_second() const noexcept;
};

/// Plays `script` on a device of its own. On the simulator one thread plays all steps in the
/// recording's order, on the recording's clock: the same script and settings give the same outcome,
/// but for the host's time. On a real device every thread of the recording has one of its own,
/// which get their turns in the recording's order, as fast as that goes.
///
/// driver_unavailable, no_device: the device is not there; not_supported: it lacks what the policy
/// needs; no_host_memory: the host has no addresses left for the simulated device, which others
/// that are played at the same time may have. At most 8 replays on the simulator at a time in one
/// process.
[[nodiscard]] result<outcome> play(const script& script, const settings& settings);

}}}  // namespace weir::v0::replay
