// SPDX-License-Identifier: Apache-2.0
// The version in the headers is the version of the project.
#include "weir/base/version.hpp"

#include <gtest/gtest.h>

namespace weir { namespace {

TEST(version, is_the_one_that_the_build_declares) {
  EXPECT_EQ(version_text(), WEIR_PROJECT_VERSION);
}

TEST(version, is_one_number) {
  EXPECT_EQ(version(), WEIR_VERSION);
  EXPECT_EQ(version() / 10000, WEIR_VERSION_MAJOR);
  EXPECT_EQ(version() / 100 % 100, WEIR_VERSION_MINOR);
  EXPECT_EQ(version() % 100, WEIR_VERSION_PATCH);
}

}  // namespace
}  // namespace weir
