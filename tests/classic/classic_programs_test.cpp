// SPDX-License-Identifier: Apache-2.0
// The classic store under random requests, and what it tells about itself.
#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

#include "classic/classic_fixture.hpp"
#include "support/order_waits.hpp"

namespace weir::testing_support { namespace {

using placement::block_kind;
using placement::no_block;

class classic_programs : public ::testing::TestWithParam<std::tuple<bool, unsigned>> {};

TEST_P(classic_programs, keep_the_books) {
  const auto [expandable, seed] = GetParam();
  classic_bench bench{expandable, 3};
  std::mt19937 random{seed};
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  std::vector<placement::block_index> live;
  for (int step = 0; step < 3'000; ++step) {
    const std::size_t stream = below(3);
    const auto what = below(100);
    if (what < 52) {
      const std::uint64_t size = 1 + below(below(2) == 0 ? 2 * mib : 60 * mib);
      const std::uint64_t alignment = below(8) == 0 ? std::uint64_t{512} << below(13) : 512;
      const auto made = bench.try_allocate(size, stream, alignment).value();
      if (made == no_block) continue;
      EXPECT_EQ(bench.address(made) % alignment, 0U);
      EXPECT_GE(bench.size(made), size);
      EXPECT_EQ(bench.blocks[made].is(), block_kind::live);
      EXPECT_EQ(bench.blocks[made].stream, bench.slots[stream]);
      live.push_back(made);
    } else if (what < 97 && !live.empty()) {
      std::swap(live[below(live.size())], live.back());
      const bool home = below(4) != 0;
      const auto slot = bench.blocks[live.back()].stream;
      bench.store->free(live.back(), bench.known.now(home ? slot : bench.slots[stream]));
      live.pop_back();
    } else if (what < 99) {
      complete_all_work(bench.known);
      for (const auto slot : bench.slots) bench.store->retire(slot);
    } else {
      bench.release(bytes{below(200) * mib});
    }
    if (step % 16 == 0) {
      ASSERT_EQ(bench.store->check(), "") << step;
    }
    ASSERT_LE(bench.store->handed_out(), bench.reserved());
    ASSERT_LE(bench.store->fragments(), bench.reserved() - bench.store->handed_out());
  }
  for (const auto each : live) bench.store->free(each, {});
  complete_all_work(bench.known);
  for (const auto slot : bench.slots) bench.store->retire(slot);
  EXPECT_EQ(bench.store->check(), "");
  EXPECT_EQ(bench.store->handed_out(), 0U);
  EXPECT_EQ(bench.store->fragments(), 0U);
  const std::uint64_t all = bench.reserved();
  EXPECT_EQ(bench.release().count(), all);
  EXPECT_EQ(bench.blocks.in_use(), 0U);
}

INSTANTIATE_TEST_SUITE_P(seeds, classic_programs,
                         ::testing::Combine(::testing::Bool(), ::testing::Range(1U, 6U)));

TEST(torch_segments, expandable_segments_need_virtual_memory) {
  auto settings = classic_bench::quiet();
  settings.devices[0].virtual_memory = false;
  classic_bench bench{false, 1, settings};
  EXPECT_NE(bench.allocate(30 * mib), no_block);
  EXPECT_EQ(
      placement::make_torch_segments(bench.shared, pool_id{}, {.expandable = true}, bench.bound)
          .code(),
      errc::not_supported);
}

TEST(torch_segments, tells_what_it_takes_and_gives_back) {
  struct sink : event_sink {
    void on_event(const memory_event& what) noexcept override { seen.push_back(what); }
    std::vector<memory_event> seen;
  };
  for (const bool expandable : {false, true}) {
    sink listening;
    classic_bench bench{expandable};
    bench.shared.observer = &listening;
    bench.free(bench.allocate(40 * mib));
    bench.pass(0);
    bench.release();
    ASSERT_EQ(listening.seen.size(), 2U);
    EXPECT_EQ(listening.seen[0].kind, memory_event_kind::reserve);
    EXPECT_EQ(listening.seen[1].kind, memory_event_kind::release);
    for (const auto& each : listening.seen) {
      EXPECT_EQ(each.size, 40 * mib);
      EXPECT_EQ(each.stream, bench.own[0].id());
      EXPECT_NE(each.address, 0U);
    }
  }
}

}  // namespace
}  // namespace weir::testing_support
