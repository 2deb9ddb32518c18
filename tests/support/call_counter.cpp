// SPDX-License-Identifier: Apache-2.0
// The counting table: one thunk a row, made from the rows themselves.
#include "support/call_counter.hpp"

#include <atomic>

namespace weir::testing_support {
namespace {

std::atomic<const driver::table*> real_table{nullptr};
std::array<std::atomic<std::uint64_t>, driver::call_count> successes{};
std::array<std::atomic<std::uint64_t>, driver::call_count> failures{};

template <auto Row, driver::call Which, class Signature>
struct thunk;

template <auto Row, driver::call Which, class... Arguments>
struct thunk<Row, Which, driver::CUresult (*)(Arguments...)> {
  static driver::CUresult call(Arguments... arguments) {
    const driver::CUresult answer = (real_table.load()->*Row)(arguments...);
    // NOT_READY is an answer, not a refusal.
    const bool fine = answer == driver::CUDA_SUCCESS || answer == driver::CUDA_ERROR_NOT_READY;
    ++(fine ? successes : failures)[static_cast<std::size_t>(Which)];
    return answer;
  }
};

}  // namespace

const driver::table& count_calls(const driver::table& real) {
  static driver::table counting;
  real_table = &real;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters)                     \
  counting.member = real.member == nullptr ? nullptr                                              \
                                           : &thunk<&driver::table::member, driver::call::member, \
                                                    decltype(driver::table::member)>::call;
#include "weir/driver/calls.def"
  return counting;
}

call_counts counted() {
  call_counts all;
  for (std::size_t row = 0; row < driver::call_count; ++row) {
    all.succeeded[row] = successes[row];
    all.failed[row] = failures[row];
  }
  return all;
}

void add_counts(const call_counts& more) {
  for (std::size_t row = 0; row < driver::call_count; ++row) {
    successes[row] += more.succeeded[row];
    failures[row] += more.failed[row];
  }
}

}  // namespace weir::testing_support
