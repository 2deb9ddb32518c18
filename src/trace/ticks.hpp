// SPDX-License-Identifier: Apache-2.0
// The processor's own clock: the cheapest time that all its cores agree on.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace weir { inline namespace v0 { namespace trace {

/// Counts since some moment; the same on all cores. Not ordered with the instructions around it:
/// that would cost more than the rest of an event, so whoever compares the counts of two threads
/// must expect them to be wrong by the depth of a pipeline.
[[nodiscard]] inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t now = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now) : : "memory");
  return now;
#else
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
#endif
}

/// How long a tick takes. Asked once in a process; where the machine does not say, it is measured,
/// which takes some milliseconds.
[[nodiscard]] double nanoseconds_per_tick() noexcept;

}}}  // namespace weir::v0::trace
