// SPDX-License-Identifier: Apache-2.0
// The table of driver calls is consistent with itself.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "weir/driver/table.hpp"

namespace weir::driver { namespace {

TEST(driver_calls, rows_say_what_the_table_says) {
  const call_info& create = info(call::mem_create);
  EXPECT_EQ(create.member, "mem_create");
  EXPECT_EQ(create.symbol, "cuMemCreate");
  EXPECT_EQ(create.version, 10020);
  EXPECT_EQ(create.exported, "cuMemCreate");
  EXPECT_TRUE(create.required);

  const call_info& advise = info(call::mem_advise);
  EXPECT_EQ(advise.symbol, "cuMemAdvise");
  EXPECT_EQ(advise.exported, "cuMemAdvise_v2");
  EXPECT_FALSE(advise.required);
}

// The oldest driver that weir promises to work with must have every required call.
TEST(driver_calls, required_calls_are_as_old_as_the_oldest_driver) {
  for (std::size_t row = 0; row < call_count; ++row) {
    const call_info& known = info(static_cast<call>(row));
    if (!known.required) continue;
    EXPECT_LE(known.version, oldest_driver) << known.symbol;
  }
}

TEST(driver_calls, every_row_is_another_call) {
  std::set<std::string_view> members;
  std::set<std::string_view> exported;
  std::set<std::pair<std::string_view, int>> signatures;
  for (std::size_t row = 0; row < call_count; ++row) {
    const call_info& known = info(static_cast<call>(row));
    EXPECT_TRUE(members.insert(known.member).second) << known.member;
    EXPECT_TRUE(exported.insert(known.exported).second) << known.exported;
    EXPECT_TRUE(signatures.insert({known.symbol, known.version}).second) << known.symbol;
  }
}

// The loader asks the driver for symbols and the library for exports: the two must belong together,
// and never be the twin that takes a null stream for the thread's own.
TEST(driver_calls, exported_names_are_symbols_with_a_version_at_most) {
  for (std::size_t row = 0; row < call_count; ++row) {
    const call_info& known = info(static_cast<call>(row));
    ASSERT_TRUE(known.exported.starts_with(known.symbol)) << known.exported;
    const std::string_view suffix = known.exported.substr(known.symbol.size());
    EXPECT_TRUE(suffix.empty() || suffix == "_v2") << known.exported;
  }
}

// The members of a table are function pointers and nothing else, one a row, in the order of the
// rows.
TEST(driver_calls, a_table_is_one_pointer_a_row) {
  EXPECT_EQ(sizeof(table), call_count * sizeof(void (*)()));
  const table empty;
  EXPECT_EQ(empty.init, nullptr);
  EXPECT_EQ(static_cast<std::size_t>(call::memset_d2d8_async), call_count - 1);
}

}  // namespace
}  // namespace weir::driver
