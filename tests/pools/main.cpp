// SPDX-License-Identifier: Apache-2.0
// The program of the pool tests: tests, or a child process of one.
#include <gmock/gmock.h>

#include "support/child_process.hpp"

int main(int argc, char** argv) {
  if (const int status = weir::testing_support::run_as_child(argc, argv); status >= 0) {
    return status;
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
