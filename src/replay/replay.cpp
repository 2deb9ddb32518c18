// SPDX-License-Identifier: Apache-2.0
// Playing a script: one backend, one device, the steps in their order.
#include "replay/replay.hpp"

#include <time.h>

#include <algorithm>
#include <optional>

#include "replay/backend.hpp"
#include "replay/patterns.hpp"
#include "replay/profiler.hpp"
#include "replay/replay_device.hpp"
#include "replay/replay_threads.hpp"
#include "sim/host_refusals.hpp"

namespace weir { inline namespace v0 { namespace replay {

double outcome::ratio() const noexcept {
  if (requested_peak == 0) return 0;
  return static_cast<double>(reserved_peak) / static_cast<double>(requested_peak);
}

double outcome::steady_driver_percent() const noexcept {
  if (steady_time.count() == 0) return 0;
  return 100 * static_cast<double>(steady_driver_time.count()) /
         static_cast<double>(steady_time.count());
}

double outcome::events_per_second() const noexcept {
  if (play_time.count() == 0) return 0;
  return static_cast<double>(events) * 1e9 / static_cast<double>(play_time.count());
}

namespace {

/// On the simulator the processor time of this thread: what a core can do, whoever else wants it.
/// A real device takes its time, too.
std::chrono::nanoseconds time_played(bool simulated) {
  if (!simulated) return std::chrono::steady_clock::now().time_since_epoch();
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}

class player {
 public:
  player(const script& script, const settings& settings, replay_device& device, backend& backend)
      : script_{script},
        settings_{settings},
        device_{device},
        backend_{backend},
        threads_{settings.target.simulated ? 1 : script.threads},
        blocks_(script.blocks, nullptr) {
    if (settings.verify || !settings.target.simulated)
      patterns_.emplace(device.gpu(), device.unmetered(), !settings.target.simulated,
                        script.blocks);
    if (settings.profiled) profiler_.emplace(device, backend, script.steps.size());
  }

  outcome play() {
    replay::outcome outcome;
    outcome.policy = settings_.policy;
    outcome.streams = script_.recorded_streams;
    outcome.allocations = script_.allocations;
    outcome.requested_peak = script_.requested_peak;
    outcome.steady_time = script_.steady_time;
    const driver_cost before = device_.cost();
    driver_cost warm = before;
    std::size_t next = 0;
    while (next < steps_to_play() && !stopped_) {
      if (next == script_.warm_up) {
        warm = device_.cost() - sampling_cost_;
        if (profiler_) profiler_->end_warm_up();
      }
      const std::size_t end = stretch_end(next);
      const auto begin = time_played(settings_.target.simulated);
      play(next, end);
      outcome.play_time += time_played(settings_.target.simulated) - begin;
      if (settings_.samples != 0) take_sample(outcome, next, end);
      if (settings_.progress) settings_.progress(end);
      next = end;
    }
    const driver_cost after = device_.cost() - sampling_cost_;
    outcome.driver_calls = (after - before).calls;
    outcome.driver_time = (after - before).time;
    outcome.steady_driver_time = (after - warm).time;
    if (profiler_) outcome.profile = profiler_->finish();
    outcome.peak_steps = peak_steps_;
    if (settings_.surveyed_steps != 0) outcome.surveyed = survey(next);
    outcome.stats = backend_.stats();
    outcome.waits = outcome.stats.waits;
    outcome.ooms = ooms_;
    outcome.first_oom = first_oom_;
    outcome.events = script_.events;
    outcome.reserved_peak = std::max(outcome.reserved_peak, backend_.take_reserved_peak());
    clear();
    if (patterns_) outcome.mismatches = patterns_->mismatches();
    return outcome;
  }

 private:
  static constexpr std::size_t most_steps = 1 << 16;  // between reports of progress

  [[nodiscard]] std::size_t steps_to_play() const noexcept {
    const std::size_t count = script_.steps.size();
    return settings_.surveyed_steps == 0 ? count : std::min(count, settings_.surveyed_steps);
  }

  /// Where the driver time is read, a sample taken or progress reported next.
  [[nodiscard]] std::size_t stretch_end(std::size_t begin) const {
    const std::size_t count = steps_to_play();
    std::size_t length = most_steps;
    if (settings_.samples != 0) length = std::min(length, count / settings_.samples + 1);
    std::size_t end = std::min(count, begin + length);
    if (begin < script_.warm_up) end = std::min(end, script_.warm_up);
    if (settings_.samples == 0) return end;
    // Few steps may take long: what comes at their end must not seem to have been there all the
    // time.
    const std::uint64_t until =
        script_.steps[begin].time + script_.steps.back().time / settings_.samples;
    while (end - begin > 1 && script_.steps[end - 1].time > until) --end;
    return end;
  }

  void play(std::size_t next, std::size_t end) {
    if (profiler_)
      play_steps<true>(next, end);
    else
      play_steps<false>(next, end);
  }

  template <bool profiled>
  void play_steps(std::size_t next, std::size_t end) {
    if (threads_.is_single()) {
      for (; next < end && !stopped_; ++next) play_step<profiled>(next);
      return;
    }
    while (next < end && !stopped_) {
      const std::uint16_t thread = script_.steps[next].thread;
      std::size_t until = next + 1;
      while (until < end && script_.steps[until].thread == thread) ++until;
      threads_.run(thread, [&] {
        for (std::size_t i = next; i < until && !stopped_; ++i) play_step<profiled>(i);
      });
      next = until;
    }
  }

  template <bool profiled>
  void play_step(std::size_t index) {
    play<profiled>(script_.steps[index]);
    if constexpr (profiled) note_reserved(index + 1);
  }

  template <bool profiled>
  void play(const step& request) {
    device_.set_time(request.time);
    if (request.action == action::release_pool) [[unlikely]] {
      release_pool(request);
      return;
    }
    const stream_ref& stream = device_.streams()[request.stream];
    void*& block = blocks_[request.block];
    if (request.action == action::allocate) {
      measure<profiled>(request, [&] {
        block = backend_.allocate(request, stream);
        return block != nullptr;
      });
      if (block == nullptr && request.size != 0) [[unlikely]] {
        note_oom(request);
      }
      if (patterns_ && block != nullptr) [[unlikely]]
        patterns_->write(request, block, stream);
      return;
    }
    if (block == nullptr) return;  // nothing was asked for, or there was no memory
    if (patterns_) [[unlikely]]
      patterns_->queue_check(request, block, stream);
    measure<profiled>(request, [&] {
      if (request.action == action::free)
        backend_.free(block, stream);
      else
        backend_.record_stream(block, stream);
      return true;
    });
    if (request.action == action::free) block = nullptr;
  }

  /// Only requests make more memory reserved.
  void note_reserved(std::size_t steps) {
    if (script_.steps[steps - 1].action != action::allocate) return;
    const std::uint64_t reserved = backend_.reserved();
    if (reserved <= most_reserved_) return;
    most_reserved_ = reserved;
    peak_steps_ = steps;
  }

  [[nodiscard]] std::optional<free_space> survey(std::size_t steps) const {
    const auto snapshot = backend_.snapshot();
    if (!snapshot || steps == 0) return std::nullopt;
    free_space found = replay::survey(*snapshot, long_lived_blocks(script_, blocks_));
    found.steps = steps;
    found.time = script_.steps[steps - 1].time;
    return found;
  }

  /// Where the recorded program had waited for the pool's work, the replay does, too.
  void release_pool(const step& request) {
    backend_.release_pool(request.pool);
    if (request.size == 0) return;
    for (const stream_ref& each : device_.streams()) each.synchronize().value();
    backend_.sweep();
  }

  void note_oom(const step& request) {
    if (ooms_++ == 0) first_oom_ = shortfall_at(request);
    stopped_ = settings_.stops_when_out;
  }

  /// What was in use before: every request so far was met.
  [[nodiscard]] shortfall shortfall_at(const step& request) const {
    shortfall found{.block = request.block, .time = request.time, .size = request.size};
    for (const step* each = script_.steps.data(); each != &request; ++each) {
      if (each->action == action::allocate) found.in_use += each->size;
      if (each->action == action::free) found.in_use -= each->size;
    }
    return found;
  }

  /// A request for nothing is none.
  template <bool profiled, class Call>
  void measure(const step& request, const Call& call) {
    if (!profiled || request.size == 0) {
      static_cast<void>(call());
      return;
    }
    profiler_->begin();
    profiler_->end(request, call());
  }

  void take_sample(replay::outcome& outcome, std::size_t begin, std::size_t end) {
    std::uint64_t peak = requested_;
    for (std::size_t i = begin; i < end; ++i) {
      const step& each = script_.steps[i];
      if (each.action == action::allocate) requested_ += each.size;
      if (each.action == action::free) requested_ -= each.size;
      peak = std::max(peak, requested_);
    }
    const driver_cost before = device_.cost();
    const std::uint64_t reserved = backend_.take_reserved_peak();
    sampling_cost_ = sampling_cost_ + (device_.cost() - before);
    outcome.reserved_peak = std::max(outcome.reserved_peak, reserved);
    outcome.samples.push_back({script_.steps[begin].time, peak, reserved});
  }

  /// Frees what the recording left alive.
  void clear() {
    for (const step& each : script_.steps) {
      if (each.action != action::allocate || blocks_[each.block] == nullptr) continue;
      const stream_ref& stream = device_.streams()[each.stream];
      if (patterns_) patterns_->queue_check(each, blocks_[each.block], stream);
      backend_.free(blocks_[each.block], stream);
      blocks_[each.block] = nullptr;
    }
  }

  const script& script_;
  const settings& settings_;
  replay_device& device_;
  backend& backend_;
  replay_threads threads_;
  std::optional<patterns> patterns_;
  std::optional<profiler> profiler_;
  std::vector<void*> blocks_;
  driver_cost sampling_cost_;  // of samples, which is not the policy's
  std::uint64_t requested_ = 0;
  std::uint64_t most_reserved_ = 0;  // behind a step, if profiled
  std::size_t peak_steps_ = 0;       // up to the first with that much
  std::uint64_t ooms_ = 0;
  std::optional<shortfall> first_oom_;
  bool stopped_ = false;  // at the first of them
};

}  // namespace

result<outcome> play(const script& script, const settings& settings) {
  WEIR_TRY_VALUE(device, replay_device::open(settings, script.streams));
  const auto make_backend =
      settings.policy == policy::driver_pool ? make_driver_pool_backend : make_heap_backend;
  WEIR_TRY_VALUE(backend, make_backend(device->gpu(), settings));
  try {
    const std::uint64_t refusals = sim::host_refusals();
    outcome outcome = player{script, settings, *device, *backend}.play();
    backend->close();
    if (settings.target.simulated && sim::host_refusals() != refusals)
      return error{{.code = errc::no_host_memory,
                    .detail =
                        "the process has too few addresses for the simulated device; replay fewer "
                        "at the same time (--jobs 1)"}};
    return outcome;
  } catch (const failure& reason) {
    return reason.reason();
  }
}

}}}  // namespace weir::v0::replay
