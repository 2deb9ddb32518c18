// SPDX-License-Identifier: Apache-2.0
// Which rows of the table no test called, and the few that cannot be asked for.
#include "contract/coverage.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "support/call_counter.hpp"
#include "support/machine_under_test.hpp"

namespace weir::testing_support {
namespace {

struct exemption {
  std::string_view row;
  std::string_view reason;
};

/// Rows that no program can make succeed on every machine.
constexpr exemption never_succeeds[] = {
    {"ctx_enable_peer_access", "needs a second device"},
    {"ctx_disable_peer_access", "needs a second device"},
    {"device_get_p2p_attribute", "needs a second device"},
};

/// Rows that a correct machine refuses only for handles that are no handles, which is undefined.
constexpr exemption never_fails[] = {
    {"ctx_set_current", "only a pointer to no context is refused"},
    {"thread_exchange_stream_capture_mode", "takes any mode, and null is undefined"},
};

template <std::size_t N>
bool exempt(const exemption (&list)[N], std::string_view row) {
  return std::any_of(std::begin(list), std::end(list),
                     [&](const exemption& one) { return one.row == row; });
}

bool whole_suite_ran() {
  const auto& suite = *::testing::UnitTest::GetInstance();
  return suite.test_to_run_count() == suite.total_test_count() &&
         suite.skipped_test_count() < suite.total_test_count() &&
         ::testing::GTEST_FLAG(filter) == "*" && std::getenv("GTEST_TOTAL_SHARDS") == nullptr;
}

}  // namespace

void coverage_check::TearDown() {
  if (!whole_suite_ran()) return;
  const auto machine = open_machine(machine_seeds().front());
  if (!machine) return;  // the tests have said so already
  const driver::table& calls = (*machine)->driver();
  int devices = 0;
  calls.device_get_count(&devices);
  const call_counts counts = counted();
  const auto judge = [&](std::size_t row, bool present) {
    const auto name = driver::info(static_cast<driver::call>(row)).member;
    if (!present) return;
    if (counts.succeeded[row] == 0 && !(devices < 2 && exempt(never_succeeds, name)))
      ADD_FAILURE() << name << " never succeeded in the suite";
    if (counts.failed[row] == 0 && !exempt(never_fails, name))
      ADD_FAILURE() << name << " was never refused in the suite";
  };
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  judge(static_cast<std::size_t>(driver::call::member), calls.member != nullptr);
#include "weir/driver/calls.def"
}

}  // namespace weir::testing_support
