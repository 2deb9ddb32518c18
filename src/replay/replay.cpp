// Playing a script: one server, one bench, the steps in their order.
#include "replay/replay.hpp"

#include <time.h>

#include <algorithm>
#include <optional>

#include "replay/bench.hpp"
#include "replay/crew.hpp"
#include "replay/patterns.hpp"
#include "replay/server.hpp"

namespace weir::inline v0::replay {

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
  if (playing.count() == 0) return 0;
  return static_cast<double>(events) * 1e9 / static_cast<double>(playing.count());
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
  player(const script& what, const settings& how, bench& where, server& memory)
      : what_{what},
        how_{how},
        bench_{where},
        memory_{memory},
        crew_{how.where.simulated ? 1 : what.threads},
        blocks_(what.blocks, nullptr) {
    if (how.verify || !how.where.simulated)
      patterns_.emplace(where.gpu(), where.unmetered(), !how.where.simulated, what.blocks);
  }

  outcome play() {
    outcome found;
    found.how = how_.how;
    found.streams = what_.streams;
    found.allocations = what_.allocations;
    found.requested_peak = what_.requested_peak;
    found.steady_time = what_.steady_time;
    const driver_use before = bench_.used();
    driver_use warm = before;
    std::size_t at = 0;
    while (at < what_.steps.size()) {
      if (at == what_.warm_up) warm = bench_.used() - looking_;
      const std::size_t end = stretch_end(at);
      const auto begin = time_played(how_.where.simulated);
      play(at, end);
      found.playing += time_played(how_.where.simulated) - begin;
      if (how_.samples != 0) take_sample(found, at, end);
      if (how_.progress) how_.progress(end);
      at = end;
    }
    const driver_use after = bench_.used() - looking_;
    found.driver_calls = (after - before).calls;
    found.driver_time = (after - before).time;
    found.steady_driver_time = (after - warm).time;
    found.stats = memory_.stats();
    found.waits = found.stats.waits;
    found.ooms = ooms_;
    found.events = what_.events;
    found.reserved_peak = std::max(found.reserved_peak, memory_.take_reserved_peak());
    clear();
    if (patterns_) found.mismatches = patterns_->mismatches();
    return found;
  }

 private:
  static constexpr std::size_t between_signs_of_life = 1 << 16;

  /// Where somebody wants to look next: for the driver time, for a sample, for the progress.
  [[nodiscard]] std::size_t stretch_end(std::size_t at) const {
    const std::size_t all = what_.steps.size();
    std::size_t length = between_signs_of_life;
    if (how_.samples != 0) length = std::min(length, all / how_.samples + 1);
    const std::size_t end = std::min(all, at + length);
    return at < what_.warm_up ? std::min(end, what_.warm_up) : end;
  }

  void play(std::size_t at, std::size_t end) {
    if (crew_.alone()) {
      for (; at < end; ++at) play(what_.steps[at]);
      return;
    }
    while (at < end) {
      const std::uint16_t thread = what_.steps[at].thread;
      std::size_t until = at + 1;
      while (until < end && what_.steps[until].thread == thread) ++until;
      crew_.run(thread, [&] {
        for (std::size_t i = at; i < until; ++i) play(what_.steps[i]);
      });
      at = until;
    }
  }

  void play(const step& now) {
    bench_.now(now.time);
    const stream_ref& on = bench_.streams()[now.stream];
    void*& block = blocks_[now.block];
    if (now.what == action::allocate) {
      block = memory_.allocate(now, on);
      if (block == nullptr && now.size != 0) [[unlikely]]
        ++ooms_;
      if (patterns_ && block != nullptr) [[unlikely]]
        patterns_->write(now, block, on);
      return;
    }
    if (block == nullptr) return;  // nothing was asked for, or there was no memory
    if (patterns_) [[unlikely]]
      patterns_->look(now, block, on);
    if (now.what == action::free) {
      memory_.free(block, on);
      block = nullptr;
    } else {
      memory_.record_stream(block, on);
    }
  }

  void take_sample(outcome& into, std::size_t at, std::size_t end) {
    std::uint64_t most = requested_;
    for (std::size_t i = at; i < end; ++i) {
      const step& each = what_.steps[i];
      if (each.what == action::allocate) requested_ += each.size;
      if (each.what == action::free) requested_ -= each.size;
      most = std::max(most, requested_);
    }
    const driver_use before = bench_.used();
    const std::uint64_t reserved = memory_.take_reserved_peak();
    looking_ = looking_ + (bench_.used() - before);
    into.reserved_peak = std::max(into.reserved_peak, reserved);
    into.samples.push_back({what_.steps[end - 1].time, most, reserved});
  }

  /// Frees what the recording left alive.
  void clear() {
    for (const step& each : what_.steps) {
      if (each.what != action::allocate || blocks_[each.block] == nullptr) continue;
      const stream_ref& on = bench_.streams()[each.stream];
      if (patterns_) patterns_->look(each, blocks_[each.block], on);
      memory_.free(blocks_[each.block], on);
      blocks_[each.block] = nullptr;
    }
  }

  const script& what_;
  const settings& how_;
  bench& bench_;
  server& memory_;
  crew crew_;
  std::optional<patterns> patterns_;
  std::vector<void*> blocks_;
  driver_use looking_;  // what samples cost, which is not the policy's doing
  std::uint64_t requested_ = 0;
  std::uint64_t ooms_ = 0;
};

}  // namespace

result<outcome> play(const script& what, const settings& how) {
  WEIR_TRY_VALUE(where, bench::open(how, what.streams));
  const auto serve = how.how == policy::driver_pool ? serve_by_driver_pool : serve_by_heap;
  WEIR_TRY_VALUE(memory, serve(where->gpu(), how));
  try {
    const outcome found = player{what, how, *where, *memory}.play();
    memory->close();
    return found;
  } catch (const failure& wrong) {
    return wrong.reason();
  }
}

}  // namespace weir::inline v0::replay
