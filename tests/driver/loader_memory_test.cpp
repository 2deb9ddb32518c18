// SPDX-License-Identifier: Apache-2.0
// The loader reports a lack of host memory instead of throwing, at whatever allocation it happens.
#include <gtest/gtest.h>

#include "support/scarce_memory.hpp"
#include "weir/driver/table.hpp"

namespace weir::driver { namespace {

// Loads `path` again and again; each time one allocation later fails, until none does. An error of
// its own kind is known before its text is, which is then missing.
long failures_until_enough(const char* path, errc its_own = errc::no_host_memory) {
  for (long enough = 0; enough < 1000; ++enough) {
    const testing_support::scarce_memory scarce{enough};
    const auto loaded = load(path);
    if (!testing_support::scarce_memory::take_failure()) return enough;
    EXPECT_FALSE(loaded) << enough;
    const error known{loaded.code() == its_own ? its_own : errc::no_host_memory};
    EXPECT_EQ(loaded.error(), known) << enough;
  }
  return -1;
}

TEST(loader_without_memory, fails_cleanly_with_a_good_driver) {
  EXPECT_GT(failures_until_enough(WEIR_FAKE_FIRST_PROC_ADDRESS), 1);
}
TEST(loader_without_memory, fails_cleanly_with_a_bad_driver) {
  EXPECT_GT(failures_until_enough(WEIR_FAKE_LACKS_REQUIRED, errc::symbol_missing), 1);
}
TEST(loader_without_memory, fails_cleanly_without_a_driver) {
  EXPECT_GT(failures_until_enough("libweir_no_such_driver.so.1", errc::driver_unavailable), 0);
}

}  // namespace
}  // namespace weir::driver
