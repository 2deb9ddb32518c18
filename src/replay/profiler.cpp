// SPDX-License-Identifier: Apache-2.0
// Measuring single steps and adding them up to a profile.
#include "replay/profiler.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace replay {

namespace {

cause cause_of_rung(heap::rung rung) noexcept {
  switch (rung) {
    case heap::rung::free_range:
      return cause::free_range;
    case heap::rung::completed:
      return cause::completed;
    case heap::rung::flushed:
      return cause::flushed;
    case heap::rung::move:
      return cause::move;
    case heap::rung::move_behind_wait:
      return cause::move_behind_wait;
    case heap::rung::pending_behind_wait:
      return cause::pending_behind_wait;
    case heap::rung::growth:
      return cause::growth;
    case heap::rung::fallback:
    case heap::rung::release:
    case heap::rung::eviction:  // a replay has none of these
    case heap::rung::callback:
      return cause::release;
    case heap::rung::wait:
      return cause::wait;
    case heap::rung::none:
      break;
  }
  return cause::out_of_memory;
}

/// The clock's own part in a time that it measured, in ticks. The least of many: the rest of the
/// machine only ever adds.
double ticks_of_the_clock() {
  double least = 1e9;
  for (int round = 0; round < 20; ++round) {
    constexpr int reads = 1000;
    std::uint64_t sum = 0;
    for (int i = 0; i < reads; ++i) {
      const std::uint64_t start = trace::ticks();
      sum += trace::ticks() - start;
    }
    least = std::min(least, static_cast<double>(sum) / reads);
  }
  return least;
}

}  // namespace

profiler::profiler(const replay_device& device, const backend& backend, std::size_t steps)
    : device_{device},
      trail_{backend.trail()},
      calls_before_{device.tallies()},
      locks_before_{locks()},
      nanoseconds_per_tick_{trace::nanoseconds_per_tick()},
      clock_cost_{ticks_of_the_clock() * nanoseconds_per_tick_},
      meter_cost_{metering_cost()} {
  profile_.steps.reserve(steps);
}

cause profiler::cause_of(const step& step, bool met) const noexcept {
  const bool locked = trail_ == nullptr || trail_->locks != locks_;
  if (step.action == action::record_stream) return cause::record_stream;
  if (step.action == action::free) return locked ? cause::heap_free : cause::kept_free;
  if (!met) return cause::out_of_memory;
  if (trail_ == nullptr) return cause::driver_pool;
  return locked ? cause_of_rung(trail_->last) : cause::thread_cache;
}

void profiler::add(const step& step, cause cause, std::uint64_t elapsed) {
  cause_cost& total = profile_.causes[static_cast<std::size_t>(cause)];
  ++total.count;
  const driver_cost metered = metered_cost() - metered_;
  const double driver =
      static_cast<double>(metered.time.count()) + meter_cost_ * static_cast<double>(metered.calls);
  const double host = static_cast<double>(elapsed) * nanoseconds_per_tick_ - clock_cost_ - driver;
  profile_.steps.push_back({cause, static_cast<float>(host)});
  if (metered.calls == 0) return;
  const driver_cost spent = device_.cost() - before_;
  total.driver_calls += spent.calls;
  total.driver_time += spent.time;
  if (!steady_) return;
  profile_.longest_step = std::max(profile_.longest_step, spent.time);
  moments_.push_back({step.time, spent.time});
}

std::chrono::nanoseconds profiler::worst_window() const {
  std::chrono::nanoseconds worst{};
  std::chrono::nanoseconds sum{};
  auto first = moments_.begin();
  for (const moment& each : moments_) {
    sum += each.spent;
    for (; std::chrono::nanoseconds{each.time - first->time} >= profile_window; ++first)
      sum -= first->spent;
    worst = std::max(worst, sum);
  }
  return worst;
}

profile profiler::finish() {
  const auto calls = device_.tallies();
  for (std::size_t i = 0; i < driver::call_count; ++i)
    profile_.calls[i] = {calls[i].count - calls_before_[i].count,
                         calls[i].time - calls_before_[i].time};
  profile_.locks = locks() - locks_before_;
  profile_.worst_window = worst_window();
  profile_.sum_up_host_time();
  return std::move(profile_);
}

}}}  // namespace weir::v0::replay
