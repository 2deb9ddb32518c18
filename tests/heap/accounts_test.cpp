// SPDX-License-Identifier: Apache-2.0
// The ledger by pool and tag.
#include "heap/accounts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace heap { namespace {

using namespace weir::literals;

const tag first = tag::named("accounts test: first").value();
const tag second = tag::named("accounts test: second").value();

memory_stats figures(const ledger& of) {
  memory_stats sums;
  of.fill(sums);
  return sums;
}

/// A cache's counts: so many allocations of these sizes together, and so many frees of the others.
account_delta counted_of(std::vector<std::array<std::uint64_t, 2>> allocated,
                         std::vector<std::array<std::uint64_t, 2>> freed) {
  account_delta counted;
  for (const auto& [requested, rounded] : freed) counted.count_free(requested, rounded);
  for (const auto& [requested, rounded] : allocated) counted.count_allocation(requested, rounded);
  return counted;
}

TEST(accounts_test, every_block_is_in_its_tag_its_pool_and_the_total) {
  accounts books;
  books.add_pool(pool_id{7});
  const auto own = books.number_of(pool_id{}, first).value();
  const auto other = books.number_of(pool_id{7}, first).value();
  const auto third = books.number_of(pool_id{7}, second).value();
  EXPECT_EQ(own, first.number());
  EXPECT_FALSE(is_private(own));
  EXPECT_TRUE(is_private(other));
  EXPECT_NE(other, third);
  EXPECT_EQ(books.number_of(pool_id{7}, first).value(), other);
  EXPECT_EQ(books.pool_of(other), pool_id{7});
  EXPECT_EQ(books.tag_of(third), second);

  books.allocated(own, 100, 512);
  books.allocated(other, 1000, 1024);
  books.allocated(third, 1, 512);
  EXPECT_EQ(books.total().requested.current, 1101u);
  EXPECT_EQ(books.total().allocated.current, 2048u);
  EXPECT_EQ(books.of(first)->allocated.current, 1536u);
  EXPECT_EQ(books.of(second)->requested.current, 1u);
  EXPECT_EQ(books.of(pool_id{7})->blocks.current, 2u);

  books.freed(other, 1000, 1024);
  books.pending(other, 1000, 1024);
  memory_stats sums;
  books.total().fill(sums);
  EXPECT_EQ(sums.allocated, (byte_gauge{1024_B, 2048_B}));
  EXPECT_EQ(sums.active.current, 2048_B);
  EXPECT_EQ(sums.pending, 1024_B);
  EXPECT_EQ(sums.requested, (byte_gauge{101_B, 1101_B}));
  EXPECT_EQ(sums.active_requested, (byte_gauge{1101_B, 1101_B}));
  EXPECT_EQ(sums.active_blocks, (gauge{3, 3}));
  EXPECT_EQ(sums.allocations, 3u);
  EXPECT_EQ(sums.frees, 1u);
  books.waited(other, 1000, 1024);
  books.of(first)->fill(sums);
  EXPECT_EQ(sums.active.current, 512_B);
  EXPECT_EQ(sums.active_requested.current, 100_B);
  EXPECT_EQ(sums.active_blocks.current, 1u);
}

TEST(accounts_test, what_caches_counted_is_taken_over_once) {
  accounts books;
  const auto which = books.number_of(pool_id{}, {}).value();
  account_delta counted = counted_of({{100, 512}, {100, 512}, {200, 512}}, {{100, 512}});
  books.fold(which, counted);
  EXPECT_TRUE(counted.is_empty());
  EXPECT_EQ(books.total().allocated.current, 1024u);
  EXPECT_EQ(books.total().allocated.peak, 0u) << "peaks rise when told";
  books.raise_peaks();
  EXPECT_EQ(books.total().allocated.peak, 1024u);
  EXPECT_EQ(books.total().blocks.current, 2u);
  EXPECT_EQ(books.total().hits, 3u);
  account_delta back = counted_of({}, {{100, 512}, {200, 512}});
  books.fold(which, back);
  EXPECT_EQ(books.total().allocated.current, 0u);
  EXPECT_EQ(books.total().requested.current, 0u);
  EXPECT_EQ(books.total().blocks.current, 0u);
}

TEST(accounts_test, peaks_rise_to_what_a_thread_had_most) {
  accounts books;
  books.add_pool(pool_id{7});
  const auto which = books.number_of(pool_id{}, first).value();
  const auto apart = books.number_of(pool_id{7}, second).value();
  books.allocated(which, 100, 512);
  books.allocated(apart, 100, 512);
  const live_amounts most{.requested = 900, .allocated = 1024, .blocks = 2};
  const auto expect = [](const ledger& of, bytes requested, bytes allocated, std::uint64_t blocks) {
    const memory_stats sums = figures(of);
    EXPECT_EQ(sums.requested.peak, requested);
    EXPECT_EQ(sums.allocated.peak, allocated);
    EXPECT_EQ(sums.active.peak, allocated);
    EXPECT_EQ(sums.active_requested.peak, requested);
    EXPECT_EQ(sums.blocks.peak, blocks);
    EXPECT_EQ(sums.active_blocks.peak, blocks);
  };
  books.raise_tag_peaks(which, most);
  expect(*books.of(first), 1000_B, 1536_B, 3);
  expect(*books.of(pool_id{}), 100_B, 512_B, 1);
  expect(books.total(), 200_B, 1024_B, 2);
  books.raise_common_peaks({.requested = 1, .allocated = 512, .blocks = 1});
  expect(*books.of(pool_id{}), 101_B, 1024_B, 2);
  expect(books.total(), 201_B, 1536_B, 3);
  books.raise_peaks(which, most);
  expect(*books.of(pool_id{}), 1000_B, 1536_B, 3);
  expect(books.total(), 1100_B, 2048_B, 4);
  expect(*books.of(pool_id{7}), 100_B, 512_B, 1);
  expect(*books.of(second), 100_B, 512_B, 1);
  EXPECT_EQ(books.total().allocated.current, 1024u);
  EXPECT_EQ(books.total().requested.current, 200u);
  // The peak of requested is never above that of allocated, whatever other threads freed meanwhile.
  books.freed(which, 10, 512);
  books.raise_peaks(which, {.requested = 5000, .allocated = 1024, .blocks = 0});
  expect(books.total(), 2048_B, 2048_B, 4);
}

TEST(accounts_test, every_figure_is_in_the_three_ledgers_that_it_belongs_to) {
  accounts books;
  books.add_pool(pool_id{7});
  const auto own = books.number_of(pool_id{}, first).value();
  const auto apart = books.number_of(pool_id{7}, first).value();
  const auto other = books.number_of(pool_id{7}, second).value();
  account_delta counted =
      counted_of({{400, 1024}, {300, 512}, {200, 512}, {1, 512}, {1, 512}}, {{2, 512}, {200, 512}});
  books.fold(own, counted);
  EXPECT_TRUE(counted.is_empty());
  books.allocated(own, 100, 512);
  books.missed(apart);
  books.allocated(apart, 1000, 1024);
  books.allocated(other, 3000, 3072);
  books.freed(other, 3000, 3072);
  books.pending(other, 3000, 3072);
  books.failed(pool_id{7}, second);
  books.failed(pool_id{7}, first);
  books.failed(pool_id{}, first);

  const memory_stats allocators_own{.requested = {800_B, 800_B},
                                    .allocated = {2560_B, 2560_B},
                                    .active = {2560_B, 2560_B},
                                    .reserved = {},
                                    .blocks = {4, 4},
                                    .active_requested = {800_B, 800_B},
                                    .active_blocks = {4, 4},
                                    .allocations = 6,
                                    .frees = 2,
                                    .hits = 5,
                                    .heap_hits = 1,
                                    .failures = 1};
  EXPECT_EQ(figures(*books.of(pool_id{})), allocators_own);
  const memory_stats pool{.requested = {1000_B, 4000_B},
                          .allocated = {1024_B, 4096_B},
                          .active = {4096_B, 4096_B},
                          .reserved = {},
                          .blocks = {1, 2},
                          .active_requested = {4000_B, 4000_B},
                          .active_blocks = {2, 2},
                          .pending = 3072_B,
                          .allocations = 2,
                          .frees = 1,
                          .heap_hits = 1,
                          .misses = 1,
                          .failures = 2};
  EXPECT_EQ(figures(*books.of(pool_id{7})), pool);
  const memory_stats first_tag{.requested = {1800_B, 1800_B},
                               .allocated = {3584_B, 3584_B},
                               .active = {3584_B, 3584_B},
                               .reserved = {},
                               .blocks = {5, 5},
                               .active_requested = {1800_B, 1800_B},
                               .active_blocks = {5, 5},
                               .allocations = 7,
                               .frees = 2,
                               .hits = 5,
                               .heap_hits = 1,
                               .misses = 1,
                               .failures = 2};
  EXPECT_EQ(figures(*books.of(first)), first_tag);
  const memory_stats second_tag{.requested = {0_B, 3000_B},
                                .allocated = {0_B, 3072_B},
                                .active = {3072_B, 3072_B},
                                .reserved = {},
                                .blocks = {0, 1},
                                .active_requested = {3000_B, 3000_B},
                                .active_blocks = {1, 1},
                                .pending = 3072_B,
                                .allocations = 1,
                                .frees = 1,
                                .heap_hits = 1,
                                .failures = 1};
  EXPECT_EQ(figures(*books.of(second)), second_tag);
  const memory_stats all{.requested = {1800_B, 4800_B},
                         .allocated = {3584_B, 6656_B},
                         .active = {6656_B, 6656_B},
                         .reserved = {},
                         .blocks = {5, 6},
                         .active_requested = {4800_B, 4800_B},
                         .active_blocks = {6, 6},
                         .pending = 3072_B,
                         .allocations = 8,
                         .frees = 3,
                         .hits = 5,
                         .heap_hits = 2,
                         .misses = 1,
                         .failures = 3};
  EXPECT_EQ(figures(books.total()), all);

  // What waits no more is gone from what is active, and from nothing else.
  books.waited(other, 3000, 3072);
  books.reset_peaks();
  books.reset_counters();
  const memory_stats rest{.requested = {1800_B, 1800_B},
                          .allocated = {3584_B, 3584_B},
                          .active = {3584_B, 3584_B},
                          .reserved = {},
                          .blocks = {5, 5},
                          .active_requested = {1800_B, 1800_B},
                          .active_blocks = {5, 5}};
  EXPECT_EQ(figures(books.total()), rest);
  EXPECT_EQ(figures(*books.of(first)), rest);
  EXPECT_EQ(figures(*books.of(second)), memory_stats{});
  const memory_stats rest_of_pool{.requested = {1000_B, 1000_B},
                                  .allocated = {1024_B, 1024_B},
                                  .active = {1024_B, 1024_B},
                                  .reserved = {},
                                  .blocks = {1, 1},
                                  .active_requested = {1000_B, 1000_B},
                                  .active_blocks = {1, 1}};
  EXPECT_EQ(figures(*books.of(pool_id{7})), rest_of_pool);
}

/// Of a tag that had more and smaller requests before, in a pool that others asked more of.
TEST(accounts_test, a_peak_of_what_was_asked_for_rises_though_no_other_does) {
  accounts books;
  const auto account = books.number_of(pool_id{}, first).value();
  const auto larger = books.number_of(pool_id{}, second).value();
  books.allocated(larger, 8000, 8192);
  books.freed(larger, 8000, 8192);
  for (int i = 0; i < 4; ++i) books.allocated(account, 100, 1024);
  for (int i = 0; i < 4; ++i) books.freed(account, 100, 1024);
  EXPECT_EQ(figures(*books.of(first)).requested, (byte_gauge{0_B, 400_B}));
  books.allocated(account, 1000, 1024);
  const memory_stats tag = figures(*books.of(first));
  EXPECT_EQ(tag.requested, (byte_gauge{1000_B, 1000_B}));
  EXPECT_EQ(tag.active_requested, (byte_gauge{1000_B, 1000_B}));
  EXPECT_EQ(tag.allocated, (byte_gauge{1024_B, 4096_B}));
  EXPECT_EQ(tag.blocks, (gauge{1, 4}));
  EXPECT_EQ(figures(books.total()).requested, (byte_gauge{1000_B, 8000_B}));
}

/// Of a tag that had far more blocks before, and was asked for as much with them.
TEST(accounts_test, a_peak_of_what_is_allocated_rises_though_no_other_does) {
  accounts books;
  const auto account = books.number_of(pool_id{}, first).value();
  for (int i = 0; i < 600; ++i) books.allocated(account, 1000, 1024);
  for (int i = 0; i < 600; ++i) books.freed(account, 1000, 1024);
  books.allocated(account, 1000, 614'400);
  EXPECT_EQ(figures(*books.of(first)).allocated, (byte_gauge{614'400_B, 614'400_B}));
  books.allocated(account, 10, 512);  // more than it had, and less than it had blocks
  for (const ledger* each : {&books.total(), books.of(pool_id{}), books.of(first)}) {
    const memory_stats sums = figures(*each);
    EXPECT_EQ(sums.allocated, (byte_gauge{614'912_B, 614'912_B}));
    EXPECT_EQ(sums.active, (byte_gauge{614'912_B, 614'912_B}));
    EXPECT_EQ(sums.requested, (byte_gauge{1010_B, 600'000_B}));
    EXPECT_EQ(sums.blocks, (gauge{2, 600}));
  }
}

/// What is given back may have taken far more than was asked for.
TEST(accounts_test, a_peak_of_what_was_asked_for_rises_by_more_than_what_is_taken) {
  accounts books;
  const auto account = books.number_of(pool_id{}, first).value();
  books.allocated(account, 1, 1024);
  for (int i = 0; i < 3; ++i) books.allocated(account, 300, 1024);
  for (int i = 0; i < 3; ++i) books.freed(account, 300, 1024);
  ASSERT_EQ(figures(books.total()).requested, (byte_gauge{1_B, 901_B}));
  books.freed(account, 1, 1024);
  books.allocated(account, 1536, 1536);
  for (const ledger* each : {&books.total(), books.of(pool_id{}), books.of(first)}) {
    EXPECT_EQ(figures(*each).requested, (byte_gauge{1536_B, 1536_B}));
    EXPECT_EQ(figures(*each).allocated, (byte_gauge{1536_B, 4096_B}));
  }
}

TEST(accounts_test, any_of_the_three_that_a_thread_had_most_raises_its_peak) {
  const auto peaks_with = [](const live_amounts& most) {
    accounts books;
    const auto account = books.number_of(pool_id{}, first).value();
    for (int i = 0; i < 4; ++i) books.allocated(account, 200, 1024);
    for (int i = 0; i < 4; ++i) books.freed(account, 200, 1024);
    EXPECT_EQ(figures(books.total()).requested, (byte_gauge{0_B, 800_B}));
    books.raise_peaks(account, most);
    return figures(books.total());
  };
  memory_stats peaks = peaks_with({.requested = 1535, .allocated = 512, .blocks = 1});
  EXPECT_EQ(peaks.requested.peak, 1535_B);
  EXPECT_EQ(peaks.allocated.peak, 4096_B);
  EXPECT_EQ(peaks.blocks.peak, 4u);
  peaks = peaks_with({.requested = 1, .allocated = 4608, .blocks = 1});
  EXPECT_EQ(peaks.requested.peak, 800_B);
  EXPECT_EQ(peaks.allocated.peak, 4608_B);
  EXPECT_EQ(peaks.blocks.peak, 4u);
  peaks = peaks_with({.requested = 5, .allocated = 2560, .blocks = 5});
  EXPECT_EQ(peaks.requested.peak, 800_B);
  EXPECT_EQ(peaks.allocated.peak, 4096_B);
  EXPECT_EQ(peaks.blocks.peak, 5u);
}

/// Once much was active because it waited, the peaks of what is live have less room above them.
TEST(accounts_test, a_peak_of_what_is_live_rises_though_more_was_active_before) {
  struct block {
    std::uint64_t requested, rounded;
  };
  const auto peaks_after = [](int count, const block& small, const std::vector<block>& then) {
    accounts books;
    const auto account = books.number_of(pool_id{}, first).value();
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < count; ++i) books.allocated(account, small.requested, small.rounded);
      for (int i = 0; i < count; ++i) {
        books.freed(account, small.requested, small.rounded);
        books.pending(account, small.requested, small.rounded);
      }
    }
    for (int i = 0; i < 2 * count; ++i) books.waited(account, small.requested, small.rounded);
    for (const block& each : then) books.allocated(account, each.requested, each.rounded);
    return figures(books.total());
  };
  memory_stats peaks = peaks_after(4, {250, 1024}, {{1500, 1536}});
  EXPECT_EQ(peaks.requested, (byte_gauge{1500_B, 1500_B}));
  EXPECT_EQ(peaks.active_requested, (byte_gauge{1500_B, 2000_B}));
  EXPECT_EQ(peaks.allocated, (byte_gauge{1536_B, 4096_B}));
  peaks = peaks_after(4, {1000, 1024}, {{10, 6144}});
  EXPECT_EQ(peaks.allocated, (byte_gauge{6144_B, 6144_B}));
  EXPECT_EQ(peaks.active, (byte_gauge{6144_B, 8192_B}));
  EXPECT_EQ(peaks.requested, (byte_gauge{10_B, 4000_B}));
  peaks = peaks_after(2, {4000, 4096}, {{1, 512}, {1, 512}, {1, 512}});
  EXPECT_EQ(peaks.blocks, (gauge{3, 3}));
  EXPECT_EQ(peaks.active_blocks, (gauge{3, 4}));
  EXPECT_EQ(peaks.allocated, (byte_gauge{1536_B, 8192_B}));
}

TEST(accounts_test, a_peak_counts_what_waits_with_what_is_live) {
  accounts books;
  const auto account = books.number_of(pool_id{}, {}).value();
  books.allocated(account, 1000, 1024);
  books.freed(account, 1000, 1024);
  books.pending(account, 1000, 1024);
  books.allocated(account, 10, 512);
  const memory_stats with_pending{.requested = {10_B, 1000_B},
                                  .allocated = {512_B, 1024_B},
                                  .active = {1536_B, 1536_B},
                                  .reserved = {},
                                  .blocks = {1, 1},
                                  .active_requested = {1010_B, 1010_B},
                                  .active_blocks = {2, 2},
                                  .pending = 1024_B,
                                  .allocations = 2,
                                  .frees = 1,
                                  .heap_hits = 2};
  EXPECT_EQ(figures(books.total()), with_pending);
  books.reset_peaks();
  EXPECT_EQ(figures(books.total()).active, (byte_gauge{1536_B, 1536_B}));
  EXPECT_EQ(figures(books.total()).requested, (byte_gauge{10_B, 10_B}));
  EXPECT_EQ(figures(books.total()).blocks, (gauge{1, 1}));
}

TEST(accounts_test, what_caches_counted_raises_every_peak_when_told) {
  accounts books;
  books.add_pool(pool_id{7});
  const auto account = books.number_of(pool_id{7}, second).value();
  account_delta counted = counted_of({{100, 512}, {100, 512}, {200, 512}}, {{100, 512}});
  books.fold(account, counted);
  memory_stats known{.requested = {300_B, 0_B},
                     .allocated = {1024_B, 0_B},
                     .active = {1024_B, 0_B},
                     .reserved = {},
                     .blocks = {2, 0},
                     .active_requested = {300_B, 0_B},
                     .active_blocks = {2, 0},
                     .allocations = 3,
                     .frees = 1,
                     .hits = 3};
  for (const ledger* each : {&books.total(), books.of(pool_id{7}), books.of(second)})
    EXPECT_EQ(figures(*each), known);
  books.raise_peaks();
  known.requested.peak = known.active_requested.peak = 300_B;
  known.allocated.peak = known.active.peak = 1024_B;
  known.blocks.peak = known.active_blocks.peak = 2;
  for (const ledger* each : {&books.total(), books.of(pool_id{7}), books.of(second)})
    EXPECT_EQ(figures(*each), known);
}

/// As where another thread's cache has not told of a block that was freed centrally since.
TEST(accounts_test, the_total_has_peaked_at_least_as_high_as_each_of_its_parts) {
  accounts books;
  books.add_pool(pool_id{7});
  const auto own = books.number_of(pool_id{}, first).value();
  const auto apart = books.number_of(pool_id{7}, second).value();
  books.freed(own, 900, 1024);
  books.allocated(apart, 1400, 1536);
  books.freed(apart, 1400, 1536);
  EXPECT_EQ(figures(*books.of(second)).allocated.peak, 1536_B);
  EXPECT_EQ(figures(books.total()).allocated.peak, 512_B);
  account_delta late = counted_of({{900, 1024}}, {});
  books.fold(own, late);
  books.raise_peaks();
  const memory_stats all = figures(books.total());
  EXPECT_EQ(all.requested, (byte_gauge{0_B, 1400_B}));
  EXPECT_EQ(all.allocated, (byte_gauge{0_B, 1536_B}));
  EXPECT_EQ(all.active, (byte_gauge{0_B, 1536_B}));
  EXPECT_EQ(all.blocks, (gauge{0, 1}));
  EXPECT_EQ(all.active_requested, (byte_gauge{0_B, 1400_B}));
  EXPECT_EQ(all.active_blocks, (gauge{0, 1}));
}

/// What is counted on a page must come out as if it had been entered at once: the same programs are
/// played against a model that does.
TEST(accounts_test, every_peak_is_what_it_would_be_without_a_page) {
  struct model {
    std::int64_t requested = 0, allocated = 0, blocks = 0;
    std::int64_t pending_requested = 0, pending = 0, pending_blocks = 0;
    std::int64_t requested_peak = 0, allocated_peak = 0, blocks_peak = 0;
    std::int64_t active_requested_peak = 0, active_peak = 0, active_blocks_peak = 0;
    void raise() {
      requested_peak = std::max(requested_peak, requested);
      allocated_peak = std::max(allocated_peak, allocated);
      blocks_peak = std::max(blocks_peak, blocks);
      active_requested_peak = std::max(active_requested_peak, requested + pending_requested);
      active_peak = std::max(active_peak, allocated + pending);
      active_blocks_peak = std::max(active_blocks_peak, blocks + pending_blocks);
    }
  };
  const auto same = [](const ledger& of, const model& as) {
    const memory_stats sums = figures(of);
    const auto count = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
    EXPECT_EQ(sums.requested, (byte_gauge{bytes{count(as.requested)},  //
                                          bytes{count(as.requested_peak)}}));
    EXPECT_EQ(sums.allocated, (byte_gauge{bytes{count(as.allocated)},  //
                                          bytes{count(as.allocated_peak)}}));
    EXPECT_EQ(sums.blocks, (gauge{count(as.blocks), count(as.blocks_peak)}));
    EXPECT_EQ(sums.active.peak, bytes{count(as.active_peak)});
    EXPECT_EQ(sums.active_requested.peak, bytes{count(as.active_requested_peak)});
    EXPECT_EQ(sums.active_blocks.peak, count(as.active_blocks_peak));
  };
  std::mt19937 random{7};
  accounts books;
  books.add_pool(pool_id{7});
  struct live_block {
    std::size_t of;
    std::uint64_t requested, rounded;
  };
  const std::array<account_number, 3> numbers{books.number_of(pool_id{}, first).value(),
                                              books.number_of(pool_id{7}, first).value(),
                                              books.number_of(pool_id{7}, second).value()};
  model total, own, pool, first_tag, second_tag;
  const std::array<std::array<model*, 3>, 3> models{
      {{&total, &own, &first_tag}, {&total, &pool, &first_tag}, {&total, &pool, &second_tag}}};
  std::vector<live_block> live, waiting;
  const auto take = [&](std::vector<live_block>& from) {
    std::swap(from[random() % from.size()], from.back());
    const live_block taken = from.back();
    from.pop_back();
    return taken;
  };
  for (int step = 0; step < 4000; ++step) {
    const unsigned what = random() % 16;
    if (what < 8) {
      const std::size_t of = random() % 8 == 0 ? random() % 3 : step / 500 % 3;
      const std::uint64_t requested = random() % 4096 + 1;
      const live_block fresh{of, requested, (requested + 511) / 512 * 512};
      live.push_back(fresh);
      books.allocated(numbers[of], fresh.requested, fresh.rounded);
      for (model* each : models[of]) {
        each->requested += static_cast<std::int64_t>(fresh.requested);
        each->allocated += static_cast<std::int64_t>(fresh.rounded);
        ++each->blocks;
        each->raise();
      }
    } else if (what < 14 && !live.empty()) {
      const live_block gone = take(live);
      books.freed(numbers[gone.of], gone.requested, gone.rounded);
      for (model* each : models[gone.of]) {
        each->requested -= static_cast<std::int64_t>(gone.requested);
        each->allocated -= static_cast<std::int64_t>(gone.rounded);
        --each->blocks;
      }
      if (what != 13) continue;
      waiting.push_back(gone);
      books.pending(numbers[gone.of], gone.requested, gone.rounded);
      for (model* each : models[gone.of]) {
        each->pending_requested += static_cast<std::int64_t>(gone.requested);
        each->pending += static_cast<std::int64_t>(gone.rounded);
        ++each->pending_blocks;
      }
    } else if (what == 14 && !waiting.empty()) {
      const live_block done = take(waiting);
      books.waited(numbers[done.of], done.requested, done.rounded);
      for (model* each : models[done.of]) {
        each->pending_requested -= static_cast<std::int64_t>(done.requested);
        each->pending -= static_cast<std::int64_t>(done.rounded);
        --each->pending_blocks;
      }
    } else if (random() % 8 == 0) {
      same(books.total(), total);
      same(*books.of(pool_id{}), own);
      same(*books.of(pool_id{7}), pool);
      same(*books.of(first), first_tag);
      same(*books.of(second), second_tag);
      ASSERT_FALSE(HasFailure()) << "step " << step;
    }
  }
}

TEST(accounts_test, a_failure_of_nobodys_is_in_the_total_only) {
  accounts books;
  books.failed(pool_id{9}, second);
  EXPECT_EQ(books.total().failures, 1u);
  EXPECT_EQ(books.of(pool_id{})->failures, 0u);
  EXPECT_EQ(books.of(pool_id{9}), nullptr);
  EXPECT_EQ(books.of(second), nullptr);
}

TEST(accounts_test, a_tag_that_nobody_used_is_told_from_those_around_it) {
  accounts books;
  ASSERT_EQ(first.number() + 1, second.number());
  books.set_limit(second, 512);  // the first has no entry, below one that has
  EXPECT_EQ(books.tags(), second.number() + 1u);
  EXPECT_EQ(books.of(first), nullptr);
  EXPECT_EQ(books.limit(first), bytes::max().count());
  EXPECT_FALSE(books.limited(first));
  EXPECT_TRUE(books.may_allocate(first, ~std::uint64_t{0}));
  books.failed({}, first);
  books.raise_peaks();
  books.reset_peaks();
  books.reset_counters();
  EXPECT_TRUE(books.any_limit());
  EXPECT_TRUE(books.limited(second));
  EXPECT_EQ(books.limit(second), 512u);
  accounts fewer;
  fewer.set_limit(first, 512);
  EXPECT_EQ(fewer.of(second), nullptr) << "the next number";
  EXPECT_EQ(fewer.limit(second), bytes::max().count());
  EXPECT_FALSE(fewer.limited(second));
}

/// A cache counts all accounts up to the highest it met.
TEST(accounts_test, tags_below_one_that_was_asked_for_can_be_counted_too) {
  accounts books;
  books.add_pool(pool_id{7});
  static_cast<void>(books.number_of(pool_id{7}, first));  // numbers of private pairs come above
  EXPECT_EQ(books.number_of(pool_id{}, second).value(), second.number());
  EXPECT_EQ(books.tag_of(first.number()), first);
  EXPECT_EQ(books.pool_of(first.number()), pool_id{});
  account_delta counted = counted_of({{10, 512}}, {});
  books.fold(first.number(), counted);
  EXPECT_EQ(books.of(first)->hits, 1u);
  books.allocated(second.number(), 10, 512);
  EXPECT_EQ(books.of(second)->blocks.current, 1u);
}

TEST(accounts_test, a_pool_that_goes_leaves_the_others_theirs) {
  accounts books;
  books.add_pool(pool_id{1});
  books.add_pool(pool_id{2});
  const auto gone = books.number_of(pool_id{1}, first).value();
  const auto kept = books.number_of(pool_id{2}, second).value();
  books.allocated(kept, 10, 512);
  books.remove_pool(pool_id{1});
  EXPECT_EQ(books.of(pool_id{1}), nullptr);
  EXPECT_EQ(books.pool_of(gone), pool_id{});
  EXPECT_EQ(books.number_of(pool_id{2}, second).value(), kept);
  EXPECT_EQ(books.pool_of(kept), pool_id{2});
  EXPECT_EQ(books.tag_of(kept), second);
  books.freed(kept, 10, 512);
  EXPECT_EQ(books.of(pool_id{2})->frees, 1u);
}

TEST(accounts_test, the_footprint_counts_accounts_tags_and_pools) {
  accounts books;
  std::size_t before = books.footprint();
  const auto grew_by = [&] {
    const std::size_t more = books.footprint() - before;
    before = books.footprint();
    return more;
  };
  books.add_pool(pool_id{7});
  EXPECT_GE(grew_by(), sizeof(ledger));
  books.set_limit(second, 512);
  EXPECT_GE(grew_by(), second.number() * sizeof(ledger));
  static_cast<void>(books.number_of(pool_id{7}, first));
  EXPECT_GE(grew_by(), first_private_account * 2 * sizeof(void*));
}

TEST(accounts_test, what_is_claimed_counts_against_the_limit_while_the_claim_lives) {
  accounts books;
  books.set_limit(first, 2048);
  {
    const accounts::claim one{books, first, 1024};
    const accounts::claim two{books, first, 512};
    const accounts::claim unlimited{books, second, 4096};
    EXPECT_EQ(books.claimed(first), 1536u);
    EXPECT_EQ(books.claimed(second), 0u);
    EXPECT_TRUE(books.may_allocate(first, 512));
    EXPECT_FALSE(books.may_allocate(first, 513));
    EXPECT_TRUE(books.may_allocate(second, ~std::uint64_t{0}));
    books.allocated(books.number_of(pool_id{}, first).value(), 512, 512);
    EXPECT_FALSE(books.may_allocate(first, 1));
  }
  EXPECT_EQ(books.claimed(first), 0u);
  EXPECT_TRUE(books.may_allocate(first, 1536));
  EXPECT_FALSE(books.may_allocate(first, 1537));
}

TEST(accounts_test, a_limit_counts_all_pools) {
  accounts books;
  books.add_pool(pool_id{3});
  EXPECT_FALSE(books.any_limit());
  EXPECT_TRUE(books.may_allocate(first, ~std::uint64_t{0}));
  books.set_limit(first, 2048);
  EXPECT_TRUE(books.limited(first));
  EXPECT_FALSE(books.limited(second));
  books.allocated(books.number_of(pool_id{}, first).value(), 512, 1024);
  books.allocated(books.number_of(pool_id{3}, first).value(), 512, 512);
  EXPECT_TRUE(books.may_allocate(first, 512));
  EXPECT_FALSE(books.may_allocate(first, 513));
  books.set_limit(first, 1536);  // what is live
  EXPECT_TRUE(books.may_allocate(first, 0));
  EXPECT_FALSE(books.may_allocate(first, 1));
  books.set_limit(first, 2048);
  EXPECT_FALSE(books.may_allocate(first, ~std::uint64_t{0}));
  books.set_limit(first, 1000);  // below what is live
  EXPECT_FALSE(books.may_allocate(first, 1));
  books.set_limit(first, bytes::max().count());
  EXPECT_FALSE(books.any_limit());
}

TEST(accounts_test, numbers_of_a_pool_that_is_gone_are_given_again) {
  accounts books;
  account_number most = 0;
  for (std::uint32_t round = 1; round < 200'000; ++round) {
    books.add_pool(pool_id{round});
    const auto made = books.number_of(pool_id{round}, {});
    ASSERT_TRUE(made) << round;
    most = std::max(most, *made);
    books.remove_pool(pool_id{round});
  }
  EXPECT_EQ(most, first_private_account);
}

TEST(accounts_test, there_are_only_so_many_pairs) {
  accounts books;
  std::uint32_t round = 1;
  for (;; ++round) {
    books.add_pool(pool_id{round});
    const auto made = books.number_of(pool_id{round}, {});
    if (made) continue;
    EXPECT_EQ(made.code(), errc::limit_exceeded);
    break;
  }
  EXPECT_EQ(round - 1, 65536u - first_private_account);
  books.remove_pool(pool_id{1});
  EXPECT_TRUE(books.number_of(pool_id{round}, {}));
}

}  // namespace
}}}  // namespace weir::v0::heap
