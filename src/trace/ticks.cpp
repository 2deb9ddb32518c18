// SPDX-License-Identifier: Apache-2.0
// How long a tick of the processor's clock takes.
#include "trace/ticks.hpp"

#include <chrono>
#include <thread>

namespace weir { inline namespace v0 { namespace trace {
namespace {

[[maybe_unused]] double measured() noexcept {
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  const std::uint64_t first = ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds{5});
  const std::uint64_t last = ticks();
  const std::chrono::duration<double, std::nano> elapsed = clock::now() - start;
  return last > first ? elapsed.count() / static_cast<double>(last - first) : 1.0;
}

double determined() noexcept {
#if defined(__aarch64__)
  std::uint64_t frequency = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
  return frequency != 0 ? 1e9 / static_cast<double>(frequency) : measured();
#elif defined(__x86_64__)
  return measured();
#else
  return 1.0;
#endif
}

}  // namespace

double nanoseconds_per_tick() noexcept {
  static const double period = determined();
  return period;
}

}}}  // namespace weir::v0::trace
