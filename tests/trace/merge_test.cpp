// Records of many threads become one order that can have happened.
#include "trace/merge.hpp"

#include "gtest/gtest.h"

namespace weir::testing_support {
namespace {

using trace::merger;
using trace::record;

constexpr std::uint64_t slack = 100;
constexpr std::uint64_t end = std::uint64_t{1} << 40;

record record_of(std::uint16_t thread, std::uint64_t time, trace_kind kind, std::uint64_t address,
                 std::uint64_t size = 8) {
  return {.time = time, .address = address, .size = size, .thread = thread, .kind = kind};
}

/// "a1 f1 a2": kinds and addresses in their order.
std::string order(const std::vector<record>& records) {
  std::string text;
  for (const record& each : records) {
    if (!text.empty()) text += ' ';
    text += each.kind == trace_kind::allocate     ? 'a'
            : each.kind == trace_kind::deallocate ? 'f'
                                                  : '-';
    text += std::to_string(each.address);
  }
  return text;
}

std::string merged(std::vector<record> records, std::uint64_t until = end) {
  merger target{slack};
  target.incoming() = std::move(records);
  std::vector<record> out;
  target.merge_until(until, out);
  return order(out);
}

constexpr auto make = trace_kind::allocate;
constexpr auto release = trace_kind::deallocate;

TEST(merge, goes_by_time) {
  EXPECT_EQ(merged({record_of(0, 10, make, 1), record_of(0, 30, make, 3), record_of(1, 20, make, 2),
                    record_of(1, 40, release, 2)}),
            "a1 a2 a3 f2");
}

TEST(merge, puts_a_free_behind_its_allocation_whatever_the_clocks_say) {
  // The other thread's clock reads the same, and then less.
  EXPECT_EQ(merged({record_of(0, 50, release, 1), record_of(1, 50, make, 1)}), "a1 f1");
  EXPECT_EQ(
      merged({record_of(0, 40, release, 1), record_of(1, 45, make, 9), record_of(1, 50, make, 1)}),
      "a9 a1 f1");
}

TEST(merge, puts_an_allocation_behind_the_free_of_its_address) {
  EXPECT_EQ(merged({record_of(0, 1, make, 1), record_of(1, 20, make, 1),
                    record_of(0, 20, release, 1), record_of(1, 25, release, 1)}),
            "a1 f1 a1 f1");
}

TEST(merge, follows_a_block_through_three_threads) {
  EXPECT_EQ(
      merged({record_of(2, 10, release, 1), record_of(1, 11, make, 1), record_of(1, 11, make, 5),
              record_of(0, 12, release, 1), record_of(3, 13, make, 1)}),
      "a1 f1 a5 a1 f1");
}

TEST(merge, mends_what_records_are_missing_for) {
  EXPECT_EQ(merged({record_of(0, 1, release, 7), record_of(0, 2, make, 1)}),
            "a1");  // from before the recording
  EXPECT_EQ(merged({record_of(0, 1, make, 1), record_of(0, 500, make, 1)}),
            "a1 f1 a1");  // a free was dropped
  EXPECT_EQ(merged({record_of(0, 1, trace_kind::record_stream, 3)}), "");
}

TEST(merge, holds_back_what_is_not_certain_yet) {
  merger target{slack};
  target.incoming() = {record_of(0, 1000, make, 1), record_of(0, 1950, release, 1)};
  std::vector<record> out;
  target.merge_until(2000, out);
  EXPECT_EQ(order(out), "a1");
  target.incoming().push_back(record_of(1, 2001, make, 1));
  target.merge_until(end, out);
  EXPECT_EQ(order(out), "a1 f1 a1");
}

}  // namespace
}  // namespace weir::testing_support
