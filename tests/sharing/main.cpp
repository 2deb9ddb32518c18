// SPDX-License-Identifier: Apache-2.0
// The sharing suite's program: tests, or another process of one.
#include <gtest/gtest.h>

#include "support/child_process.hpp"

int main(int argc, char** argv) {
  if (const int status = weir::testing_support::run_as_child(argc, argv); status >= 0)
    return status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
