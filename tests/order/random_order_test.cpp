// Random programs that are ordered as they should be: no hazard, no wrong byte, no wrong book.
//
// WEIR_ORDER_OPERATIONS chooses how many steps are made in all, WEIR_ORDER_SEED runs the one
// program with that seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "run.hpp"

namespace weir::order_test {
namespace {

constexpr std::uint64_t steps_a_program = 1000;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const wanted = std::getenv(variable);
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : otherwise;
}

template <class Run>
void run_all(const Run& run, std::uint64_t operations) {
  if (const std::uint64_t seed = number_from("WEIR_ORDER_SEED", 0); seed != 0) {
    ASSERT_EQ(run(seed, steps_a_program), "");
    return;
  }
  for (std::uint64_t seed = 1; seed <= (operations + steps_a_program - 1) / steps_a_program; ++seed)
    ASSERT_EQ(run(seed, steps_a_program), "") << "WEIR_ORDER_SEED=" << seed << " runs it again";
}

TEST(random_order, threads_that_take_turns) {
  run_all(run_in_turns, number_from("WEIR_ORDER_OPERATIONS", 200'000));
}

TEST(random_order, threads_at_once) {
  run_all(run_at_once, number_from("WEIR_ORDER_OPERATIONS", 200'000) / 4);
}

}  // namespace
}  // namespace weir::order_test
