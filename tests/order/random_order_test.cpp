// SPDX-License-Identifier: Apache-2.0
// Random programs that are ordered as they should be, with every use declared or none: no hazard,
// no wrong byte, no wrong statistic.
//
// WEIR_ORDER_OPERATIONS chooses how many steps are made in all, WEIR_ORDER_SEED runs the one
// program with that seed, WEIR_ORDER_FIRST_SEED begins with another than 1.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "run.hpp"
#include "support/environment.hpp"

namespace weir::order_test { namespace {

constexpr std::uint64_t steps_a_program = 1000;

using testing_support::number_from;

template <class Run>
void run_all(const Run& run, std::uint64_t operations) {
  if (const std::uint64_t seed = number_from("WEIR_ORDER_SEED", 0); seed != 0) {
    ASSERT_EQ(run(seed, steps_a_program), "");
    return;
  }
  const std::uint64_t first = number_from("WEIR_ORDER_FIRST_SEED", 1);
  const std::uint64_t programs = (operations + steps_a_program - 1) / steps_a_program;
  for (std::uint64_t seed = first; seed < first + programs; ++seed)
    ASSERT_EQ(run(seed, steps_a_program), "") << "WEIR_ORDER_SEED=" << seed << " runs it again";
}

TEST(random_order, declared_uses_serialized) {
  run_all(run_serialized, number_from("WEIR_ORDER_OPERATIONS", 200'000));
}

TEST(random_order, declared_uses_concurrent) {
  run_all(run_concurrent, number_from("WEIR_ORDER_OPERATIONS", 200'000) / 4);
}

TEST(random_order, undeclared_uses_serialized) {
  run_all(run_undeclared_serialized, number_from("WEIR_ORDER_OPERATIONS", 200'000));
}

TEST(random_order, undeclared_uses_concurrent) {
  run_all(run_undeclared_concurrent, number_from("WEIR_ORDER_OPERATIONS", 200'000) / 4);
}

TEST(random_order, every_policy_gives_what_the_classic_one_gives) {
  run_all(run_under_two_policies, number_from("WEIR_ORDER_OPERATIONS", 200'000) / 10);
}

}  // namespace
}  // namespace weir::order_test
