// SPDX-License-Identifier: Apache-2.0
// The suite must call every row of the table, in success and in failure.
#pragma once

#include <gtest/gtest.h>

namespace weir::testing_support {

/// Judges, after the last test, whether any row was left out. Only where the whole suite ran: a
/// filtered or sharded run says nothing about rows.
class coverage_check : public ::testing::Environment {
 public:
  void TearDown() override;
};

}  // namespace weir::testing_support
