// SPDX-License-Identifier: Apache-2.0
// The loader reports a lack of host memory instead of throwing, at whatever allocation it happens.
#include <gtest/gtest.h>

#include "support/scarce_memory.hpp"
#include "weir/driver/table.hpp"

namespace weir::driver { namespace {

// Loads `path` again and again; each time one allocation later fails, until none does.
long failures_until_enough(const char* path) {
  for (long enough = 0; enough < 1000; ++enough) {
    const testing_support::scarce_memory scarce{enough};
    const auto loaded = load(path);
    if (!testing_support::scarce_memory::take_failure()) return enough;
    EXPECT_FALSE(loaded) << enough;
    EXPECT_EQ(loaded.error(), error{{.code = errc::no_host_memory}}) << enough;
  }
  return -1;
}

TEST(loader_without_memory, fails_cleanly_with_a_good_driver) {
  EXPECT_GT(failures_until_enough(WEIR_FAKE_FIRST_PROC_ADDRESS), 1);
}
TEST(loader_without_memory, fails_cleanly_with_a_bad_driver) {
  EXPECT_GT(failures_until_enough(WEIR_FAKE_LACKS_REQUIRED), 1);
}
TEST(loader_without_memory, fails_cleanly_without_a_driver) {
  EXPECT_GT(failures_until_enough("libweir_no_such_driver.so.1"), 0);
}

}  // namespace
}  // namespace weir::driver
