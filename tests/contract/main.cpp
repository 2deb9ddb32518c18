// SPDX-License-Identifier: Apache-2.0
// The contract suite's program: tests, or a child process of one, or the table of observations.
#include <gtest/gtest.h>

#include "contract/coverage.hpp"
#include "support/child_process.hpp"
#include "support/observe.hpp"

int main(int argc, char** argv) {
  using namespace weir::testing_support;
  if (const int status = run_as_child(argc, argv); status >= 0) return status;
  if (const int status = run_as_observer(argc, argv); status >= 0) return status;
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::AddGlobalTestEnvironment(new coverage_check);
  return RUN_ALL_TESTS();
}
