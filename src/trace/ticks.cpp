// How long a tick of the processor's clock takes.
#include "trace/ticks.hpp"

#include <chrono>
#include <thread>

namespace weir::inline v0::trace {
namespace {

[[maybe_unused]] double measured() noexcept {
  using clock = std::chrono::steady_clock;
  const auto from = clock::now();
  const std::uint64_t first = ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds{5});
  const std::uint64_t last = ticks();
  const std::chrono::duration<double, std::nano> took = clock::now() - from;
  return last > first ? took.count() / static_cast<double>(last - first) : 1.0;
}

double told() noexcept {
#if defined(__aarch64__)
  std::uint64_t a_second = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(a_second));
  return a_second != 0 ? 1e9 / static_cast<double>(a_second) : measured();
#elif defined(__x86_64__)
  return measured();
#else
  return 1.0;
#endif
}

}  // namespace

double nanoseconds_per_tick() noexcept {
  static const double once = told();
  return once;
}

}  // namespace weir::inline v0::trace
