// SPDX-License-Identifier: Apache-2.0
// The C ABI where the host has no memory: whichever allocation fails, the answer says so.
#include <gtest/gtest.h>

#include "support/scarce_memory.hpp"
#include "weir.h"
#include "weir/base/options.hpp"

namespace weir { namespace {

using testing_support::scarce_memory;

/// Calls `action` with one allocation after the other failing, until none does; how many did. Each
/// time `action` fails, and the time after them it does not.
template <class Action>
long failures_of(const Action& action) {
  for (long enough = 0; enough < 1000; ++enough) {
    bool is_done = false;
    bool has_failed = false;
    {
      const scarce_memory scarce{enough};
      is_done = action();
      has_failed = scarce_memory::take_failure();
    }
    EXPECT_NE(is_done, has_failed) << enough;
    if (!has_failed) return enough;
  }
  return -1;
}

TEST(c_options_without_memory, are_none_until_there_is_some) {
  weir_option_info info{};
  info.struct_size = sizeof(info);
  std::uint32_t count = 99;
  // What is asked for first makes the table; a failure leaves it to be made again.
  for (const long enough : {0, 3}) {
    const scarce_memory scarce{enough};
    EXPECT_EQ(weir_option_get_info(0, &info), weir_error_no_host_memory);
    EXPECT_EQ(info.name, nullptr);
  }
  EXPECT_GT(failures_of([&] {
              count = weir_option_count();
              if (count == 0) {
                EXPECT_STREQ(weir_last_error_message(),
                             "no_host_memory: the host is out of memory");
              }
              return count != 0;
            }),
            1);
  EXPECT_EQ(count, describe_options().size());
  EXPECT_EQ(failures_of([&] { return weir_option_get_info(0, &info) == weir_ok; }), 0);
  EXPECT_EQ(info.name, describe_options().front().name);
}

}  // namespace
}  // namespace weir
