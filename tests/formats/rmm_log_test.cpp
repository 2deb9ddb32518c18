// RMM's logs: hexadecimal streams, midnight, failures.
#include "formats/rmm_log.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support {
namespace {

using ::testing::HasSubstr;

const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";

TEST(rmm_log, reads_events) {
  const auto read = formats::read_rmm_log(header +
                                              "10,23:59:59.999000,allocate,0x7f00,256,0x1\n"
                                              "11,23:59:59.999500,allocate,0x7f80,512,0x55d0a0\n"
                                              "11,00:00:00.000500,free,0x7f00,256,55d0a0\n"
                                              "10,00:00:00.000600,allocate failure,(nil),99,0\n"
                                              "10,00:00:00.000700,free,0x1234,8,0\n",
                                          "x")
                        .value();
  using enum trace_kind;
  const std::vector<trace_event> expected = {
      {.time = 0, .address = 0x7f00, .size = 256, .stream = 0, .kind = allocate},
      {.time = 500'000, .address = 0x7f80, .size = 512, .stream = 1, .thread = 1, .kind = allocate},
      {.time = 1'500'000,
       .address = 0x7f00,
       .size = 256,
       .stream = 1,
       .thread = 1,
       .kind = deallocate},
      {.time = 1'600'000, .size = 99, .stream = 2, .kind = out_of_memory}};
  EXPECT_EQ(read.events, expected);
  EXPECT_EQ(read.streams, (std::vector<std::uint64_t>{1, 0x55d0a0, 0}));
  EXPECT_EQ(read.threads, (std::vector<std::uint64_t>{10, 11}));
  EXPECT_TRUE(read.real_addresses);
}

TEST(rmm_log, mends_a_free_that_it_lacks) {
  const auto read = formats::read_rmm_log(header +
                                              "1,00:00:00,allocate,0x10,4,0x0\n"
                                              "1,00:00:01,allocate,0x10,8,0x0\n",
                                          "x")
                        .value();
  ASSERT_EQ(read.events.size(), 3u);
  EXPECT_EQ(read.events[1].kind, trace_kind::deallocate);
  EXPECT_EQ(read.events[1].size, 4u);
}

TEST(rmm_log, names_the_line_that_is_wrong) {
  const auto refused = [](std::string line, std::string why) {
    const auto read = formats::read_rmm_log(header + line, "t.log");
    ASSERT_FALSE(read) << line;
    EXPECT_THAT(read.error().detail, HasSubstr("t.log:2: " + why));
  };
  refused("1,2,3", "not Thread");
  refused("1,25:00:00,allocate,0x1,1,0", "not a time of day");
  refused("1,00:00:00,allocate,zz,1,0", "not a number");
  refused("1,00:00:00,allocate,0x1,1,0xg", "not a number");
  refused("1,00:00:00,take,0x1,1,0", "the action is none of");
}

}  // namespace
}  // namespace weir::testing_support
