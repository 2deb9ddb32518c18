// SPDX-License-Identifier: Apache-2.0
// The words and sums of a profile, and the rounds of its replay.
#include "replay/profile.hpp"

#include <algorithm>

#include "replay/replay.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

constexpr std::array<std::string_view, cause_count> cause_names{
    "thread_cache",     "free_range",          "completed", "flushed",   "move",
    "move_behind_wait", "pending_behind_wait", "growth",    "release",   "wait",
    "out_of_memory",    "driver_pool",         "kept_free", "heap_free", "record_stream"};

constexpr int profile_rounds = 3;

}  // namespace

std::string_view name(cause cause) noexcept { return cause_names[static_cast<std::size_t>(cause)]; }

std::uint64_t profile::events_recorded() const noexcept {
  return of(driver::call::event_record).count + of(driver::call::event_record_with_flags).count;
}

std::uint64_t profile::events_queried() const noexcept {
  return of(driver::call::event_query).count;
}

std::uint64_t profile::events_waited() const noexcept {
  return of(driver::call::event_synchronize).count;
}

std::uint64_t profile::waits_queued() const noexcept {
  return of(driver::call::stream_wait_event).count;
}

double profile::worst_window_percent() const noexcept {
  return 100 * static_cast<double>(worst_window.count()) /
         static_cast<double>(profile_window.count());
}

void profile::sum_up_host_time() noexcept {
  std::array<double, cause_count> sums{};
  for (const step_time& each : steps)
    sums[static_cast<std::size_t>(each.cause)] += static_cast<double>(each.nanoseconds);
  for (std::size_t i = 0; i < cause_count; ++i)
    causes[i].host_time =
        std::chrono::nanoseconds{static_cast<std::int64_t>(std::max(0.0, sums[i]))};
}

result<outcome> play_profiled(const script& script, const settings& settings) {
  replay::settings measured = settings;
  measured.profiled = true;
  WEIR_TRY_VALUE(best, play(script, measured));
  for (int round = 1; round < profile_rounds; ++round) {
    WEIR_TRY_VALUE(again, play(script, measured));
    std::vector<step_time>& steps = again.profile->steps;
    const std::vector<step_time>& before = best.profile->steps;
    // A real device may run out of memory at another step, and leave out other frees.
    for (std::size_t i = 0; i < std::min(steps.size(), before.size()); ++i)
      steps[i].nanoseconds = std::min(steps[i].nanoseconds, before[i].nanoseconds);
    again.profile->sum_up_host_time();
    best = std::move(again);
  }
  if (best.peak_steps == 0) return best;
  replay::settings up_to_peak = settings;
  up_to_peak.surveyed_steps = best.peak_steps;
  up_to_peak.observer = nullptr;
  up_to_peak.progress = {};
  WEIR_TRY_VALUE(surveyed, play(script, up_to_peak));
  best.profile->at_peak = surveyed.surveyed;
  return best;
}

}}}  // namespace weir::v0::replay
