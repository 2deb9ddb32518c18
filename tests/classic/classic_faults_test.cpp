// SPDX-License-Identifier: Apache-2.0
// The classic store when driver calls fail: nothing is lost and the books stay exact.
#include <gtest/gtest.h>

#include "classic/classic_fixture.hpp"
#include "support/reports.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using placement::no_block;

/// What the machine holds for the store alone.
class memory_held {
 public:
  explicit memory_held(const classic_bench& bench) : bench_{bench}, before_{used()} {}
  [[nodiscard]] std::uint64_t now() const { return used() - before_; }

 private:
  [[nodiscard]] std::uint64_t used() const { return bench_.machine->used(device_id{0}).count(); }
  const classic_bench& bench_;
  std::uint64_t before_;
};

class classic_expandable_faults : public ::testing::TestWithParam<call> {};

TEST_P(classic_expandable_faults, are_rolled_back) {
  for (std::uint64_t nth = 1; nth <= 3; ++nth) {
    classic_bench bench{true};
    const memory_held held{bench};
    const auto kept = bench.allocate(5 * mib);
    ASSERT_EQ(held.now(), 20 * mib);
    bench.machine->fail(GetParam(), nth, driver::CUDA_ERROR_ILLEGAL_STATE);
    const auto failed = bench.try_allocate(70 * mib);  // three pages more
    const bool hit = !failed;
    if (hit) {
      EXPECT_EQ(failed.error().native(), driver::CUDA_ERROR_ILLEGAL_STATE);
      EXPECT_EQ(bench.reserved(), 20 * mib);
    }
    bench.machine->clear_faults();
    EXPECT_EQ(held.now(), bench.reserved()) << "no page was lost";
    EXPECT_EQ(bench.store->check(), "");
    EXPECT_TRUE(hit || nth > 1);
    EXPECT_NE(bench.allocate(70 * mib), no_block) << "and it goes on";
    EXPECT_EQ(bench.store->check(), "");
    bench.free(kept);
    bench.store->close(bench.bound).value();
    EXPECT_EQ(held.now(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(calls, classic_expandable_faults,
                         ::testing::Values(call::mem_create, call::mem_map, call::mem_set_access,
                                           call::mem_release));

TEST(classic_faults, the_last_page_that_cannot_be_had_is_no_error_and_costs_nothing) {
  classic_bench bench{true};
  const memory_held held{bench};
  reports heard;
  bench.machine->fail(call::mem_create, 3, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.allocate(70 * mib), no_block);
  EXPECT_EQ(bench.machine->calls(call::mem_map), 0U);
  EXPECT_EQ(bench.machine->calls(call::mem_unmap), 0U) << "nothing was mapped";
  EXPECT_EQ(bench.machine->calls(call::mem_release), 2U);
  EXPECT_TRUE(heard.take().empty());
  EXPECT_EQ(held.now(), 0U);
  EXPECT_EQ(bench.reserved(), 0U);
  EXPECT_EQ(bench.store->check(), "");
  EXPECT_NE(bench.allocate(70 * mib), no_block);
}

TEST(classic_faults, pages_that_were_had_before_a_failure_stay_as_free_memory) {
  classic_bench bench{true};
  const memory_held held{bench};
  bench.allocate(10 * mib);
  const auto middle = bench.allocate(40 * mib);
  const auto high = bench.allocate(5 * mib);
  bench.free(middle);
  bench.pass(0);
  ASSERT_EQ(bench.release().count(), 20 * mib);
  bench.free(high);
  // From 10 MiB on: a run, a hole of a page, a run of 20 MiB, and the hole that ends the range.
  bench.machine->fail(call::mem_create, 2, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.allocate(60 * mib), no_block);
  EXPECT_EQ(bench.reserved(), 60 * mib) << "the first hole has memory again";
  EXPECT_EQ(held.now(), 60 * mib);
  EXPECT_EQ(bench.store->longest_fit(bench.slots[0]), 50 * mib);
  EXPECT_EQ(bench.store->check(), "");
}

TEST(classic_faults, a_refused_segment_is_no_block_and_a_failure_an_error) {
  classic_bench bench{false};
  bench.machine->fail(call::mem_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.allocate(30 * mib), no_block);
  bench.machine->fail(call::mem_alloc, 1, driver::CUDA_ERROR_ILLEGAL_STATE);
  const auto failed = bench.try_allocate(30 * mib);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().native(), driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(bench.reserved(), 0U);
  EXPECT_EQ(bench.blocks.in_use(), 0U);
}

TEST(classic_faults, a_release_that_fails_leaves_the_memory_usable) {
  for (const bool expandable : {false, true}) {
    classic_bench bench{expandable};
    const memory_held held{bench};
    bench.free(bench.allocate(40 * mib));
    bench.pass(0);
    bench.machine->fail(expandable ? call::mem_unmap : call::mem_free, 1,
                        driver::CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_FALSE(bench.store->release(bytes::max(), bench.bound));
    EXPECT_EQ(bench.reserved(), 40 * mib);
    EXPECT_EQ(held.now(), 40 * mib);
    EXPECT_EQ(bench.store->check(), "");
    EXPECT_EQ(bench.release().count(), 40 * mib);
    EXPECT_EQ(held.now(), 0U);
  }
}

TEST(classic_faults, closing_attempts_all_and_returns_the_first_failure) {
  for (const bool expandable : {false, true}) {
    classic_bench bench{expandable};
    const memory_held held{bench};
    bench.allocate(20 * mib, 0);
    bench.allocate(40 * mib, 1);
    bench.machine->fail(expandable ? call::mem_unmap : call::mem_free, 1,
                        driver::CUDA_ERROR_ILLEGAL_STATE);
    const auto closed = bench.store->close(bench.bound);
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().native(), driver::CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_TRUE(held.now() == 20 * mib || held.now() == 40 * mib) << "the other one went";
    EXPECT_EQ(bench.reserved(), 0U);
    EXPECT_EQ(bench.blocks.in_use(), 0U);
  }
}

/// A program that does a bit of everything; its driver calls fail one after the other.
TEST(classic_faults, any_call_may_fail_once) {
  for (const bool expandable : {false, true}) {
    bool failed = true;
    for (std::uint64_t nth = 1; failed; ++nth) {
      ASSERT_LT(nth, 500U);
      classic_bench bench{expandable};
      const memory_held held{bench};
      const std::uint64_t before = bench.machine->calls();
      bench.machine->fail_any(nth, driver::CUDA_ERROR_ILLEGAL_STATE);
      std::vector<placement::block_index> live;
      for (const std::uint64_t size : {mib, 70 * mib, 3 * mib, 30 * mib}) {
        if (const auto made = bench.try_allocate(size); made && *made != no_block) {
          live.push_back(*made);
        }
      }
      for (const auto each : live) bench.store->free(each, {});
      static_cast<void>(bench.store->release(bytes{30 * mib}, bench.bound));
      static_cast<void>(bench.try_allocate(90 * mib));
      failed = bench.machine->calls() - before >= nth;
      bench.machine->clear_faults();
      EXPECT_EQ(held.now(), bench.reserved()) << "call " << nth;
      EXPECT_EQ(bench.store->check(), "") << "call " << nth;
      bench.store->close(bench.bound).value();
      EXPECT_EQ(held.now(), 0U) << "call " << nth;
    }
  }
}

}  // namespace
}  // namespace weir::testing_support
