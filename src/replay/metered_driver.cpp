// The meter: one thunk a row, made from the rows themselves.
#include "replay/metered_driver.hpp"

#include <atomic>
#include <chrono>

namespace weir::inline v0::replay {

namespace {

using clock = std::chrono::steady_clock;

std::atomic<const driver::table*> real_table{nullptr};
std::atomic<std::uint64_t> calls{0};
std::atomic<std::int64_t> nanoseconds{0};

template <auto Row, class Signature>
struct thunk;

template <auto Row, class... Arguments>
struct thunk<Row, driver::CUresult (*)(Arguments...)> {
  static driver::CUresult call(Arguments... arguments) {
    const auto begin = clock::now();
    const driver::CUresult status =
        (real_table.load(std::memory_order_relaxed)->*Row)(arguments...);
    const std::chrono::nanoseconds elapsed = clock::now() - begin;
    calls.fetch_add(1, std::memory_order_relaxed);
    nanoseconds.fetch_add(elapsed.count(), std::memory_order_relaxed);
    return status;
  }
};

}  // namespace

const driver::table& meter_driver(const driver::table& real) {
  static driver::table metered;
  real_table = &real;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  metered.member = real.member == nullptr                                     \
                       ? nullptr                                              \
                       : &thunk<&driver::table::member, decltype(driver::table::member)>::call;
#include "weir/driver/calls.def"
  return metered;
}

driver_cost metered_cost() {
  return {calls.load(std::memory_order_relaxed),
          std::chrono::nanoseconds{nanoseconds.load(std::memory_order_relaxed)}};
}

}  // namespace weir::inline v0::replay
