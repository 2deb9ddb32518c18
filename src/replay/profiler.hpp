// SPDX-License-Identifier: Apache-2.0
// The measuring of a profile, step by step.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "heap/rung.hpp"
#include "replay/backend.hpp"
#include "replay/metered_driver.hpp"
#include "replay/profile.hpp"
#include "replay/replay_device.hpp"
#include "trace/ticks.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// Watches a backend on a metered device from the first step to the last. The player calls begin()
/// and end() around each call of the backend, on whatever thread has its turn. Costs a hundred
/// nanoseconds a step, of which the profile shows none.
class profiler {
 public:
  profiler(const replay_device& device, const backend& backend, std::size_t steps);

  /// From here on windows and single steps count.
  void end_warm_up() noexcept { steady_ = true; }

  void begin() {
    before_ = device_.cost();
    metered_ = metered_cost();
    locks_ = locks();
    start_ = trace::ticks();
  }
  /// `met`: a request that was one, and got its memory.
  void end(const step& step, bool met) {
    const std::uint64_t elapsed = trace::ticks() - start_;
    add(step, cause_of(step, met), elapsed);
  }

  /// The whole, once.
  [[nodiscard]] replay::profile finish();

 private:
  /// Driver time at a moment of the recording.
  struct moment {
    std::uint64_t time = 0;
    std::chrono::nanoseconds spent{};
  };
  [[nodiscard]] std::uint64_t locks() const noexcept {
    return trail_ == nullptr ? 0 : trail_->locks;
  }
  [[nodiscard]] cause cause_of(const step& step, bool met) const noexcept;
  void add(const step& step, cause cause, std::uint64_t elapsed);
  [[nodiscard]] std::chrono::nanoseconds worst_window() const;

  const replay_device& device_;
  const heap::search_trail* const trail_;  // null: the allocator is the driver
  const std::array<call_tally, driver::call_count> calls_before_;
  const std::uint64_t locks_before_;
  const double nanoseconds_per_tick_;
  const double clock_cost_;  // of the two readings in what they measure
  const double meter_cost_;  // of a driver call beyond what the meter sees
  driver_cost before_;       // the step: all driver calls
  driver_cost metered_;      // and the host's time in them
  std::uint64_t locks_ = 0;
  std::uint64_t start_ = 0;
  bool steady_ = false;
  replay::profile profile_;
  std::vector<moment> moments_;  // of steady steps that called the driver, in the order of time
};

}}}  // namespace weir::v0::replay
