// SPDX-License-Identifier: Apache-2.0
// The meter: one thunk for each driver call, generated from the table's rows.
#include "replay/metered_driver.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace weir { inline namespace v0 { namespace replay {

namespace {

using clock = std::chrono::steady_clock;

std::atomic<const driver::table*> real_table{nullptr};

struct call_meter {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::int64_t> nanoseconds{0};

  void add(std::chrono::nanoseconds elapsed) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    nanoseconds.fetch_add(elapsed.count(), std::memory_order_relaxed);
  }
};
call_meter all_calls;
std::array<call_meter, driver::call_count> calls_by_kind;

/// What happens around every call.
template <class Call>
driver::CUresult metered_call(call_meter& all, call_meter& kind, const Call& call) {
  const auto begin = clock::now();
  const driver::CUresult status = call();
  const std::chrono::nanoseconds elapsed = clock::now() - begin;
  all.add(elapsed);
  kind.add(elapsed);
  return status;
}

template <auto Row, driver::call Kind, class Signature>
struct thunk;

template <auto Row, driver::call Kind, class... Arguments>
struct thunk<Row, Kind, driver::CUresult (*)(Arguments...)> {
  static driver::CUresult call(Arguments... arguments) {
    return metered_call(all_calls, calls_by_kind[static_cast<std::size_t>(Kind)], [&] {
      return (real_table.load(std::memory_order_relaxed)->*Row)(arguments...);
    });
  }
};

}  // namespace

const driver::table& meter_driver(const driver::table& real) {
  static driver::table metered;
  real_table = &real;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters)                    \
  metered.member = real.member == nullptr ? nullptr                                              \
                                          : &thunk<&driver::table::member, driver::call::member, \
                                                   decltype(driver::table::member)>::call;
#include "weir/driver/calls.def"
  return metered;
}

driver_cost metered_cost() {
  return {all_calls.calls.load(std::memory_order_relaxed),
          std::chrono::nanoseconds{all_calls.nanoseconds.load(std::memory_order_relaxed)}};
}

std::array<call_tally, driver::call_count> metered_tallies() {
  std::array<call_tally, driver::call_count> all;
  for (std::size_t i = 0; i < driver::call_count; ++i)
    all[i] = {
        calls_by_kind[i].calls.load(std::memory_order_relaxed),
        std::chrono::nanoseconds{calls_by_kind[i].nanoseconds.load(std::memory_order_relaxed)}};
  return all;
}

double metering_cost() {
  constexpr int calls = 1000;
  double least = 1e9;
  for (int round = 0; round < 10; ++round) {  // the rest of the machine only ever adds
    call_meter all;
    call_meter kind;
    const auto begin = clock::now();
    for (int i = 0; i < calls; ++i)
      static_cast<void>(metered_call(all, kind, [] { return driver::CUDA_SUCCESS; }));
    const std::chrono::nanoseconds elapsed = clock::now() - begin;
    const auto unseen = elapsed.count() - all.nanoseconds.load();
    least = std::min(least, static_cast<double>(unseen) / calls);
  }
  return std::max(0.0, least);
}

}}}  // namespace weir::v0::replay
