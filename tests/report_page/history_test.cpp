// SPDX-License-Identifier: Apache-2.0
// The history of a recording: blocks, physical memory, groups, resolutions, the blocks kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>

#include "replay/script.hpp"
#include "report/block_index.hpp"
#include "report/groups.hpp"
#include "report/history.hpp"
#include "report/leaks.hpp"
#include "report/series.hpp"
#include "samples.hpp"
#include "support/sizes.hpp"

namespace weir::report_test { namespace {

using namespace weir::report;
using testing::ElementsAre;

using testing_support::mib;

TEST(report_history, a_block_lives_from_its_allocation_to_its_free) {
  recording_writer writer;
  writer.allocate(0x1000, 100);
  writer.allocate(0x2000, 50);
  writer.deallocate(0x1000);
  const report::history history = make_history(writer.out);
  ASSERT_EQ(history.blocks.size(), 2U);
  EXPECT_EQ(history.blocks[0].end, 2U);
  EXPECT_EQ(history.blocks[0].rounded, 512U);
  EXPECT_EQ(history.blocks[1].end, 3U);  // never freed
  EXPECT_THAT(history.live, ElementsAre(100, 150, 50));
  EXPECT_EQ(history.peak, 1U);
  EXPECT_TRUE(history.reserved.empty());
}

TEST(report_history, an_address_that_is_allocated_again_ends_the_block_before) {
  recording_writer writer;
  writer.allocate(0x1000, 100);
  writer.allocate(0x1000, 30);
  writer.deallocate(0x9999);
  const report::history history = make_history(writer.out);
  EXPECT_EQ(history.blocks[0].end, 1U);
  EXPECT_THAT(history.live, ElementsAre(100, 30, 30));
}

TEST(report_history, memory_is_in_use_until_it_can_be_used_again) {
  recording_writer writer;
  const auto most = [&] { return most_in_use(writer.out, make_history(writer.out)); };
  EXPECT_EQ(most(), 0U);
  writer.allocate(0x1000, 100);
  writer.deallocate(0x1000);
  writer.allocate(0x2000, 30);
  EXPECT_EQ(most(), 100U) << "without a word about reuse it is free when it is freed";
  writer.add(trace_kind::reusable).address = 0x1000;
  EXPECT_EQ(most(), 130U);
  writer.allocate(0x3000, 80);
  EXPECT_EQ(most(), 130U);
  writer.allocate(0x2000, 70);  // its reuse was not recorded, but the address speaks for it
  EXPECT_EQ(most(), 150U);
  writer.add(trace_kind::reusable).address = 0x9999;
  writer.add(trace_kind::reusable).address = 0x3000;
  writer.add(trace_kind::reusable).address = 0x3000;
  writer.allocate(0x4000, 81);
  EXPECT_EQ(most(), 151U);
  EXPECT_EQ(most(), replay::make_script(writer.out).requested_peak) << "as a replay counts";
}

TEST(report_history, physical_memory_moves_and_goes_in_pieces) {
  recording_writer writer;
  const auto physical = [&](trace_kind kind, std::uint64_t address, std::uint64_t size,
                            std::uint64_t from = 0) {
    trace_event& event = writer.add(kind);
    event.address = address;
    event.size = size;
    event.extra = from;
  };
  physical(trace_kind::reserve, 10 * mib, 6 * mib);
  physical(trace_kind::move, 40 * mib, 2 * mib, 12 * mib);
  physical(trace_kind::release, 10 * mib, 2 * mib);
  writer.allocate(14 * mib, 5);
  const report::history history = make_history(writer.out);
  EXPECT_THAT(history.reserved, ElementsAre(6 * mib, 6 * mib, 4 * mib, 4 * mib));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> last;
  for (const mapped_range& mapping : history.mappings) {
    if (mapping.at(3)) last.emplace_back(mapping.address, mapping.size);
  }
  EXPECT_THAT(last, testing::UnorderedElementsAre(std::pair{14 * mib, 2 * mib},
                                                  std::pair{40 * mib, 2 * mib}));
}

TEST(report_history, a_block_is_all_that_its_event_says) {
  recording_writer writer;
  writer.out.stacks = {{0}, {1}};
  writer.allocate(0x1000, 1000, 1, 2, 2);
  writer.out.events.back().pool = 3;
  writer.allocate(0x2000, 50, 0, 0, 1);
  writer.out.events.back().extra = 0;    // the recording does not say what it is rounded to
  writer.allocate(0x3000, 70, 0, 0, 3);  // a stack that is not there
  writer.allocate(0x4000, 80);           // none
  writer.deallocate(0x2000);
  writer.deallocate(0x1000);
  const report::history history = make_history(writer.out);
  ASSERT_EQ(history.blocks.size(), 4U);
  const block_lifetime& first = history.blocks[0];
  EXPECT_EQ(first.address, 0x1000U);
  EXPECT_EQ(first.size, 1000U);
  EXPECT_EQ(first.rounded, 1024U);
  EXPECT_EQ(first.start, 0U);
  EXPECT_EQ(first.end, 5U);
  EXPECT_EQ(first.stream, 1U);
  EXPECT_EQ(first.tag, 2U);
  EXPECT_EQ(first.pool, 3U);
  EXPECT_TRUE(first.placed);
  EXPECT_TRUE(first.at(0));
  EXPECT_TRUE(first.at(4));
  EXPECT_FALSE(first.at(5));
  EXPECT_EQ(history.blocks[1].rounded, 50U);
  EXPECT_EQ(history.blocks[1].end, 4U);
  EXPECT_FALSE(history.blocks[1].at(0));
  EXPECT_EQ(history.blocks[2].end, 6U);
  ASSERT_EQ(history.sites.size(), 3U);
  EXPECT_EQ(history.sites[0].stack, 2U);
  EXPECT_EQ(history.sites[0].size, 0U);
  EXPECT_EQ(history.sites[1].stack, 1U);
  EXPECT_EQ(history.sites[2].stack, 0U);
  EXPECT_EQ(first.site, 0U);
  EXPECT_EQ(history.blocks[1].site, 1U);
  EXPECT_EQ(history.blocks[2].site, 2U);
  EXPECT_EQ(history.blocks[3].site, 2U);
  EXPECT_THAT(history.freed, ElementsAre(1, 0));
  EXPECT_THAT(history.live, ElementsAre(1000, 1050, 1120, 1200, 1150, 150));
  EXPECT_EQ(history.peak, 3U);
  EXPECT_EQ(history.events(), 6U);
}

TEST(report_history, without_stacks_a_site_is_a_size) {
  recording_writer writer;
  writer.allocate(0x1000, 100, 0, 0, 7);
  writer.allocate(0x2000, 200);
  writer.allocate(0x3000, 100);
  const report::history history = make_history(writer.out);
  ASSERT_EQ(history.sites.size(), 2U);
  EXPECT_EQ(history.sites[0].stack, 0U);
  EXPECT_EQ(history.sites[0].size, 100U);
  EXPECT_EQ(history.sites[1].size, 200U);
  EXPECT_EQ(history.blocks[2].site, 0U);
}

TEST(report_history, sizes_that_read_the_same_are_one_site) {
  recording_writer writer;
  writer.allocate(1 * mib, 20 * mib);
  writer.allocate(100 * mib, 20 * mib + 100);
  writer.allocate(200 * mib, 21 * mib);
  writer.allocate(300 * mib, 20 * mib - 100);
  const report::history history = make_history(writer.out);
  ASSERT_EQ(history.sites.size(), 2U);
  EXPECT_EQ(history.sites[0].size, 20 * mib);
  EXPECT_EQ(history.sites[1].size, 21 * mib);
  std::vector<std::uint32_t> sites;
  for (const block_lifetime& block : history.blocks) sites.push_back(block.site);
  EXPECT_THAT(sites, ElementsAre(0, 0, 1, 0));
  EXPECT_EQ(tally_sites(writer.out, history)[0].most, 60 * mib);
}

TEST(report_history, the_first_of_equal_peaks_is_the_peak) {
  recording_writer writer;
  writer.allocate(0x1000, 100);
  writer.deallocate(0x1000);
  writer.allocate(0x2000, 100);
  EXPECT_EQ(make_history(writer.out).peak, 0U);
}

TEST(report_history, is_walked_in_the_order_of_the_events) {
  recording_writer writer;
  writer.allocate(0x1000, 100);
  writer.allocate(0x2000, 50);
  writer.allocate(0x1000, 30);  // ends the one before
  writer.add(trace_kind::record_stream);
  writer.deallocate(0x2000);
  std::vector<std::string> seen;
  walk(
      make_history(writer.out),
      [&](std::uint32_t block) { seen.push_back("begin " + std::to_string(block)); },
      [&](std::uint32_t block) { seen.push_back("end " + std::to_string(block)); },
      [&](std::uint32_t event) { seen.push_back("after " + std::to_string(event)); });
  EXPECT_THAT(seen, ElementsAre("begin 0", "after 0", "begin 1", "after 1", "end 0", "begin 2",
                                "after 2", "after 3", "end 1", "after 4"));
}

/// As "address size start end", in MiB and events.
std::vector<std::string> mappings_of(const report::history& history) {
  std::vector<std::string> all;
  for (const mapped_range& each : history.mappings)
    all.push_back(std::to_string(each.address / mib) + " " + std::to_string(each.size / mib) + " " +
                  std::to_string(each.start) + " " + std::to_string(each.end));
  return all;
}

class physical_test : public testing::Test {
 protected:
  void add(trace_kind kind, std::uint64_t address, std::uint64_t size, std::uint64_t from = 0) {
    trace_event& event = writer.add(kind);
    event.address = address * mib;
    event.size = size * mib;
    event.extra = from * mib;
  }
  recording_writer writer;
};

TEST_F(physical_test, is_mapped_from_its_reservation_to_its_release) {
  writer.allocate(mib, 5);
  add(trace_kind::reserve, 10, 6);
  add(trace_kind::reserve, 20, 4);
  add(trace_kind::release, 10, 6);
  const report::history history = make_history(writer.out);
  EXPECT_THAT(mappings_of(history), ElementsAre("10 6 1 3", "20 4 2 4"));
  EXPECT_TRUE(history.mappings[0].at(1));
  EXPECT_TRUE(history.mappings[0].at(2));
  EXPECT_FALSE(history.mappings[0].at(3));
  EXPECT_FALSE(history.mappings[0].at(0));
  EXPECT_THAT(history.reserved, ElementsAre(0, 6 * mib, 10 * mib, 4 * mib));
}

TEST_F(physical_test, moves_in_part) {
  add(trace_kind::reserve, 10, 6);
  add(trace_kind::move, 40, 2, 12);
  add(trace_kind::release, 10, 2);
  writer.allocate(mib, 5);
  const report::history history = make_history(writer.out);
  EXPECT_THAT(mappings_of(history), ElementsAre("10 2 0 2", "12 2 0 1", "14 2 0 4", "40 2 1 4"));
  EXPECT_THAT(history.reserved, ElementsAre(6 * mib, 6 * mib, 4 * mib, 4 * mib));
}

TEST_F(physical_test, that_is_reserved_again_was_released) {
  add(trace_kind::reserve, 10, 4);
  add(trace_kind::reserve, 14, 4);
  add(trace_kind::reserve, 12, 4);
  EXPECT_THAT(mappings_of(make_history(writer.out)),
              ElementsAre("10 2 0 3", "12 2 0 2", "14 2 1 2", "16 2 1 3", "12 4 2 3"));
}

TEST_F(physical_test, that_nobody_mapped_is_released_for_nothing) {
  add(trace_kind::reserve, 10, 4);
  add(trace_kind::release, 14, 8);
  add(trace_kind::release, 2, 8);
  add(trace_kind::reserve, 30, 0);
  const report::history history = make_history(writer.out);
  EXPECT_THAT(mappings_of(history), ElementsAre("10 4 0 4"));
  EXPECT_THAT(history.reserved, ElementsAre(4 * mib, 0, 0, 0)) << "never less than nothing";
}

TEST_F(physical_test, of_a_recording_without_addresses_is_nobodys) {
  add(trace_kind::reserve, 10, 4);
  add(trace_kind::move, 20, 4, 10);
  add(trace_kind::release, 20, 4);
  writer.out.real_addresses = false;
  EXPECT_TRUE(make_history(writer.out).mappings.empty());
  EXPECT_TRUE(make_history(writer.out).reserved.empty());
}

TEST_F(physical_test, of_a_placement_comes_before_the_block_that_needs_it) {
  writer.allocate(1, 100);
  writer.allocate(2, 2000);
  writer.deallocate(1);
  writer.allocate(3, 300);
  writer.out.real_addresses = false;
  placement placed;
  placed.places = {{10 * mib, 512}, {}, {20 * mib, 200}};
  placed.steps = {{0, memory_event_kind::reserve, 10 * mib, 4 * mib, 0},
                  {1, memory_event_kind::move, 20 * mib, 2 * mib, 12 * mib},
                  {2, memory_event_kind::release, 10 * mib, 2 * mib, 0},
                  {3, memory_event_kind::reserve, 50 * mib, 2 * mib, 0}};
  const report::history history = make_history(writer.out, &placed);
  EXPECT_THAT(mappings_of(history), ElementsAre("10 2 0 3", "12 2 0 1", "20 2 1 4"));
  EXPECT_THAT(history.reserved, ElementsAre(4 * mib, 4 * mib, 4 * mib, 2 * mib));
  EXPECT_EQ(history.blocks[0].address, 10 * mib);
  EXPECT_EQ(history.blocks[0].rounded, 512U);
  EXPECT_FALSE(history.blocks[1].placed);
  EXPECT_EQ(history.blocks[1].address, 2U);
  EXPECT_EQ(history.blocks[2].address, 20 * mib);
  EXPECT_EQ(history.blocks[2].rounded, 300U) << "no less than what was asked for";
}

TEST(report_history, a_size_at_the_end_of_the_address_space_does_not_wrap) {
  const report::history history = make_history(sample_named("hostile", 0));
  for (const block_lifetime& block : history.blocks) {
    EXPECT_GE(block.address + block.rounded, block.address);
    EXPECT_GE(block.address + block.size, block.address);
    EXPECT_GE(block.rounded, block.size);
  }
  EXPECT_EQ(history.blocks.back().size, 10U);
  EXPECT_FALSE(used_addresses(history).empty());
}

TEST(report_history, without_real_addresses_no_block_has_a_place) {
  recording_writer writer;
  writer.allocate(1, 100);
  writer.allocate(2, 200);
  writer.out.real_addresses = false;
  EXPECT_FALSE(make_history(writer.out).blocks[0].placed);
  placement placed;
  placed.places = {{0x200000, 512}, {}};
  placed.steps = {{0, memory_event_kind::reserve, 0x200000, 2 * mib, 0}};
  const report::history history = make_history(writer.out, &placed);
  EXPECT_TRUE(history.blocks[0].placed);
  EXPECT_EQ(history.blocks[0].address, 0x200000U);
  EXPECT_FALSE(history.blocks[1].placed);  // there was no memory for it
  EXPECT_THAT(history.reserved, ElementsAre(2 * mib, 2 * mib));
}

TEST(report_history, a_replay_places_every_block_inside_what_it_reserved) {
  recording recorded = sample_named("unplaced", 2000);
  const auto script = replay::make_script(recorded);
  const auto outcome = place(script, {.policy = replay::policy::balanced});
  ASSERT_TRUE(outcome) << outcome.error().message();
  const report::history history = make_history(recorded, &outcome->first);
  const std::uint32_t last = history.events() - 1;
  std::size_t live = 0;
  for (const block_lifetime& block : history.blocks) {
    ASSERT_TRUE(block.placed);
    if (!block.at(last)) continue;
    ++live;
    std::uint64_t covered = 0;
    for (const mapped_range& mapping : history.mappings) {
      if (!mapping.at(last)) continue;
      const std::uint64_t from = std::max(mapping.address, block.address);
      const std::uint64_t to =
          std::min(mapping.address + mapping.size, block.address + block.rounded);
      covered += from < to ? to - from : 0;
    }
    EXPECT_EQ(covered, block.rounded) << "block at " << block.address;
  }
  EXPECT_GT(live, 20U);
  EXPECT_EQ(place(script, {.policy = replay::policy::driver_pool}).code(), errc::invalid_argument);
}

TEST(report_groups, every_grouping_adds_up_to_what_is_live) {
  const recording recorded = training_run(5000);
  const report::history history = make_history(recorded);
  const auto groupings = make_groupings(recorded, history, tally_sites(recorded, history));
  const series finest = make_series(recorded, history, groupings, 1 << 18);
  ASSERT_EQ(finest.shift, 0U);
  for (std::size_t g = 0; g < groupings.size(); ++g) {
    const std::size_t groups = groupings[g].labels.size();
    for (std::size_t bin = 0; bin < finest.bins(); ++bin) {
      const auto* const first = finest.stacks[g].data() + bin * groups;
      ASSERT_EQ(std::accumulate(first, first + groups, std::uint64_t{0}), history.live[bin]);
    }
  }
}

TEST(report_groups, more_keys_than_colours_become_others) {
  recording_writer writer;
  for (std::uint16_t i = 0; i < 40; ++i) {
    writer.out.tags.push_back("tag" + std::to_string(i));
    writer.allocate(0x1000ULL * (i + 1), 100U + i, 0, static_cast<std::uint16_t>(i + 1));
  }
  const report::history history = make_history(writer.out);
  const auto by = make_groupings(writer.out, history, tally_sites(writer.out, history)).front();
  EXPECT_EQ(by.labels.size(), most_groups);
  EXPECT_EQ(by.labels.front(), "tag39");
  EXPECT_EQ(by.labels.back(), "29 others");
}

TEST(report_leaks, are_what_was_never_freed_by_site_and_tag) {
  recording_writer writer;
  writer.out.stacks = {{0}, {1}};
  writer.allocate(0x1000, 100, 0, 1, 1);
  writer.allocate(0x2000, 500, 0, 1, 1);
  writer.deallocate(0x2000);
  writer.allocate(0x3000, 30, 0, 1, 1);
  writer.allocate(0x4000, 130, 0, 2, 1);
  writer.allocate(0x5000, 131, 0, 1, 2);
  using row = std::array<std::uint64_t, 6>;  // site, tag, bytes, blocks, first, last
  std::vector<row> rows;
  for (const leak& each : find_leaks(make_history(writer.out)))
    rows.push_back({each.site, each.tag, each.bytes, each.blocks, each.first, each.last});
  EXPECT_THAT(
      rows, ElementsAre(row{1, 1, 131, 1, 5, 5}, row{0, 1, 130, 2, 0, 3}, row{0, 2, 130, 1, 4, 4}));
  EXPECT_TRUE(find_leaks(make_history(recording_writer{}.out)).empty());
}

TEST(report_history, ids_that_are_no_addresses_do_not_bound_sizes) {
  recording_writer writer;
  writer.out.real_addresses = false;
  const std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  writer.allocate(last, 100 * mib);
  writer.allocate(last - 1, 100 * mib);
  const report::history history = make_history(writer.out);
  EXPECT_EQ(history.live[history.peak], 200 * mib);
  EXPECT_EQ(history.blocks[0].rounded, 100 * mib);
}

TEST(report_history, some_blocks_may_say_when_they_were_reusable_and_others_not) {
  recording_writer writer;
  writer.allocate(0x1000, 100);
  writer.deallocate(0x1000);  // free at once
  writer.allocate(0x2000, 100);
  writer.deallocate(0x2000);
  writer.add(trace_kind::reusable).address = 0x2000;
  EXPECT_EQ(most_in_use(writer.out, make_history(writer.out)), 100U);
  writer.allocate(0x3000, 10);
  writer.deallocate(0x3000);
  writer.allocate(0x4000, 95);  // 0x3000 is in use still
  writer.add(trace_kind::reusable).address = 0x3000;
  EXPECT_EQ(most_in_use(writer.out, make_history(writer.out)), 105U);
}

TEST(report_groups, a_site_is_tallied_over_its_blocks) {
  recording_writer writer;
  writer.out.stacks = {{0}, {1}};
  writer.allocate(0x1000, 1000, 0, 0, 1);  // at 0 us
  writer.allocate(0x2000, 500, 0, 0, 1);   // at 1 us
  writer.deallocate(0x1000);               // after 2 us
  writer.allocate(0x3000, 300, 0, 0, 1);
  writer.deallocate(0x2000);  // after 3 us
  writer.allocate(0x4000, 9000, 0, 0, 2);
  const report::history history = make_history(writer.out);
  const auto sites = tally_sites(writer.out, history);
  ASSERT_EQ(sites.size(), 2U);
  EXPECT_EQ(sites[0].blocks, 3U);
  EXPECT_EQ(sites[0].bytes, 1800U);
  EXPECT_EQ(sites[0].most, 1500U);
  EXPECT_EQ(sites[0].at_peak, 300U) << "when the second had most";
  EXPECT_EQ(sites[0].at_end, 300U);
  EXPECT_EQ(sites[0].freed, 2U);
  EXPECT_EQ(sites[0].lifetime, 5000U);
  EXPECT_EQ(sites[1].blocks, 1U);
  EXPECT_EQ(sites[1].most, 9000U);
  EXPECT_EQ(sites[1].at_peak, 9000U);
  EXPECT_EQ(sites[1].lifetime, 0U);
}

TEST(report_groups, a_site_of_blocks_without_bytes_held_none) {
  recording_writer writer;
  writer.out.stacks = {{0}};
  writer.allocate(0x1000, 0, 0, 0, 1);
  writer.deallocate(0x1000);
  const report::history history = make_history(writer.out);
  const auto sites = tally_sites(writer.out, history);
  ASSERT_EQ(sites.size(), 1U);
  EXPECT_EQ(sites[0].blocks, 1U);
  EXPECT_EQ(sites[0].bytes, 0U);
  EXPECT_EQ(sites[0].most, 0U);
  EXPECT_EQ(sites[0].at_peak, 0U);
  EXPECT_EQ(sites[0].at_end, 0U);
  EXPECT_EQ(sites[0].lifetime, 1000U);
}

TEST(report_groups, are_named_and_ordered_by_what_they_held_at_most) {
  recording_writer writer;
  writer.out.tags = {"", "weights"};
  writer.out.streams = {0, 70'000};
  writer.out.pools = {"", "private", ""};
  const auto allocate = [&](std::uint64_t address, std::uint64_t size, std::uint32_t stream,
                            std::uint16_t tag, std::uint16_t pool) {
    writer.allocate(address, size, stream, tag);
    writer.out.events.back().pool = pool;
  };
  allocate(0x1000, 100, 0, 0, 0);
  allocate(0x2000, 3000, 1, 1, 1);
  allocate(0x3000, 200, 2, 7, 5);
  writer.deallocate(0x2000);
  allocate(0x4000, 400, 2, 7, 2);
  const report::history history = make_history(writer.out);
  const auto all = make_groupings(writer.out, history, tally_sites(writer.out, history));
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].name, "tag");
  EXPECT_THAT(all[0].labels, ElementsAre("weights", "tag 7", "untagged"));
  EXPECT_THAT(all[0].of_block, ElementsAre(2, 0, 1, 1));
  EXPECT_EQ(all[1].name, "size");
  EXPECT_THAT(all[1].labels, ElementsAre("1 KiB to 16 KiB", "below 1 KiB"));
  EXPECT_THAT(all[1].of_block, ElementsAre(1, 0, 1, 1));
  EXPECT_EQ(all[2].name, "stream");
  EXPECT_THAT(all[2].labels, ElementsAre("stream 0x11170", "stream #2", "stream 0"));
  EXPECT_THAT(all[2].of_block, ElementsAre(2, 0, 1, 1));
  EXPECT_EQ(all[3].name, "site");
  EXPECT_THAT(all[3].labels, ElementsAre("2.93 KiB", "400 B", "200 B", "100 B"));
  EXPECT_THAT(all[3].of_block, ElementsAre(3, 0, 2, 1));
  EXPECT_EQ(all[4].name, "pool");
  EXPECT_THAT(all[4].labels,
              ElementsAre("private", "the allocator's own", "pool 5", "the allocator's own"));
  EXPECT_THAT(all[4].of_block, ElementsAre(3, 0, 2, 1));
  writer.out.events.resize(1);
  const report::history first = make_history(writer.out);
  EXPECT_EQ(make_groupings(writer.out, first, tally_sites(writer.out, first)).size(), 4U)
      << "there is one pool only";
}

TEST(report_groups, sizes_are_classed_by_their_limits) {
  recording_writer writer;
  constexpr std::array<std::uint64_t, 7> limits{std::uint64_t{1} << 10,
                                                std::uint64_t{16} << 10,
                                                std::uint64_t{256} << 10,
                                                2 * mib,
                                                16 * mib,
                                                128 * mib,
                                                std::uint64_t{1} << 30};
  std::uint64_t address = 0;
  for (const std::uint64_t limit : limits) {
    writer.allocate(address += 2 << 30, limit - 1);
    writer.allocate(address += 2 << 30, limit);
  }
  const report::history history = make_history(writer.out);
  const auto by_size = make_groupings(writer.out, history, tally_sites(writer.out, history))[1];
  EXPECT_THAT(by_size.labels, ElementsAre("1 GiB and more", "128 MiB to 1 GiB", "16 MiB to 128 MiB",
                                          "2 MiB to 16 MiB", "256 KiB to 2 MiB",
                                          "16 KiB to 256 KiB", "1 KiB to 16 KiB", "below 1 KiB"));
  EXPECT_THAT(by_size.of_block, ElementsAre(7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0));
}

TEST(report_groups, as_many_keys_as_colours_are_all_named) {
  recording_writer writer;
  for (std::uint16_t i = 0; i < 12; ++i) {
    writer.out.tags.push_back("tag" + std::to_string(i));
    writer.allocate(0x1000ULL * (i + 1), 100U + i, 0, static_cast<std::uint16_t>(i + 1));
  }
  const auto by_tag = [&] {
    const report::history history = make_history(writer.out);
    return make_groupings(writer.out, history, tally_sites(writer.out, history)).front();
  };
  EXPECT_EQ(by_tag().labels.size(), 12U);
  EXPECT_EQ(by_tag().labels.back(), "tag0");
  writer.allocate(0x90000, 1, 0, 0);
  EXPECT_EQ(by_tag().labels.size(), 12U);
  EXPECT_EQ(by_tag().labels.back(), "2 others");
  EXPECT_EQ(by_tag().of_block.front(), 11U);
  EXPECT_EQ(by_tag().of_block.back(), 11U);
  EXPECT_EQ(by_tag().of_block[1], 10U);
}

TEST(report_groups, a_site_is_named_by_the_frame_of_the_program) {
  recording recorded;
  recorded.frames = {"weir::allocate", "x at /usr/lib/site-packages/a.py:1", "mine at b.py:2"};
  recorded.stacks = {{0, 1, 2}, {0, 1}};
  EXPECT_EQ(site_label(recorded, {1, 0}), "mine at b.py:2");
  EXPECT_EQ(site_label(recorded, {2, 0}), "weir::allocate");
  EXPECT_EQ(site_label(recorded, {0, 0}), "no stack");
  recorded.stacks = {{9, 1, 0}, {}, {9}};
  EXPECT_EQ(site_label(recorded, {1, 0}), "x at /usr/lib/site-packages/a.py:1");
  EXPECT_EQ(site_label(recorded, {2, 0}), "an empty stack");
  EXPECT_EQ(site_label(recorded, {3, 0}), "an empty stack");
  EXPECT_EQ(site_label(recording{}, {0, 2048}), "2 KiB");
  recorded.frames.emplace_back("gone");
  recorded.frames.pop_back();
  recorded.stacks = {{3, 1, 0}, {3}};  // the number behind the last
  EXPECT_EQ(site_label(recorded, {1, 0}), "x at /usr/lib/site-packages/a.py:1");
  EXPECT_EQ(site_label(recorded, {2, 0}), "an empty stack");
  for (const char* const library :
       {"f at /x/torch/y.py:1", "f at /site-packages/y.py:1", "f at /dist-packages/y.py:1",
        "c10::f", "at::f", "weir::f", "<frozen f>"}) {
    recorded.frames = {library, "mine"};
    recorded.stacks = {{0, 1}};
    EXPECT_EQ(site_label(recorded, {1, 0}), "mine") << library;
  }
}

/// Blocks of 100 and 50 bytes in pool 1 and of 20 in none; pool 1 is suspended twice.
recording suspended_run() {
  recording_writer writer;
  writer.out.tags = {"", "a"};
  writer.out.pools = {"", "p"};
  const auto in_pool = [&](std::uint64_t address, std::uint64_t size) {
    writer.allocate(address * mib, size, 0, 1);
    writer.out.events.back().pool = 1;
  };
  const auto change = [&](trace_kind kind, std::uint64_t size, std::uint64_t kept) {
    trace_event& event = writer.add(kind);
    event.pool = 1;
    event.size = size;
    event.extra = kept;
  };
  in_pool(16, 100);                             // 0
  in_pool(17, 50);                              // 1
  writer.allocate(18 * mib, 20);                // 2
  change(trace_kind::suspended, 4 * mib, 150);  // 3
  writer.deallocate(17 * mib);                  // 4
  change(trace_kind::resumed, 2 * mib, 100);    // 5
  in_pool(19, 7);                               // 6
  change(trace_kind::suspended, 2 * mib, 0);    // 7
  change(trace_kind::suspended, 2 * mib, 0);    // 8: that it came back was not recorded
  change(trace_kind::resumed, 0, 0);            // 9
  change(trace_kind::resumed, 0, 0);            // 10: it is there already
  change(trace_kind::suspended, 3 * mib, 9);    // 11
  return writer.out;
}

TEST(report_history, blocks_are_suspended_by_their_pool) {
  const report::history history = make_history(suspended_run());
  std::string text;
  for (const suspension& each : history.suspensions) {
    text += "pool " + std::to_string(each.pool) + " " + std::to_string(each.start) + " to " +
            std::to_string(each.end) + ", " + std::to_string(each.size) + " kept " +
            std::to_string(each.kept) + ":";
    for (std::size_t block = 0; block < history.blocks.size(); ++block)
      if (history.blocks[block].pool == each.pool && history.blocks[block].at(each.start))
        text += " " + std::to_string(block);
    text += "\n";
  }
  EXPECT_EQ(text,
            "pool 1 3 to 5, 4194304 kept 150: 0 1\n"
            "pool 1 7 to 8, 2097152 kept 0: 0 3\n"
            "pool 1 8 to 9, 2097152 kept 0: 0 3\n"
            "pool 1 11 to 12, 3145728 kept 9: 0 3\n");
}

TEST(report_series, blocks_without_memory_are_a_group_of_their_own) {
  const recording recorded = suspended_run();
  const report::history history = make_history(recorded);
  const auto groupings = make_groupings(recorded, history, tally_sites(recorded, history));
  ASSERT_THAT(groupings[0].labels, ElementsAre("a", "untagged", "suspended"));
  EXPECT_EQ(groupings[1].labels.back(), "suspended");
  EXPECT_EQ(groupings[4].labels.back(), "suspended");
  const series finest = make_series(recorded, history, groupings, 100);
  // clang-format off
  EXPECT_THAT(finest.stacks[0], ElementsAre(100,  0,   0,
                                            150,  0,   0,
                                            150, 20,   0,
                                              0, 20, 150,
                                              0, 20, 100,  // freed while it was away
                                            100, 20,   0,
                                            107, 20,   0,
                                              0, 20, 107,
                                              0, 20, 107,
                                            107, 20,   0,
                                            107, 20,   0,
                                              0, 20, 107));
  // clang-format on
  for (std::size_t bin = 0; bin < finest.bins(); ++bin) {
    for (std::size_t g = 0; g < groupings.size(); ++g) {
      const std::size_t groups = groupings[g].labels.size();
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < groups; ++i) sum += finest.stacks[g][bin * groups + i];
      EXPECT_EQ(sum, history.live[bin]) << bin << " by " << groupings[g].name;
    }
  }
}

TEST(report_series, a_bin_shows_its_highest_moment) {
  recording_writer writer;
  writer.out.tags = {"", "a"};
  trace_event& reserved = writer.add(trace_kind::reserve);
  reserved.address = 16 * mib;
  reserved.size = 4 * mib;
  writer.allocate(16 * mib, 100, 0, 1);
  writer.allocate(17 * mib, 50);
  writer.deallocate(17 * mib);
  writer.deallocate(16 * mib);
  trace_event& released = writer.add(trace_kind::release);
  released.address = 16 * mib;
  released.size = 2 * mib;
  writer.allocate(18 * mib, 30);
  const report::history history = make_history(writer.out);  // 0 100 150 100 0 0 30
  const auto groupings = make_groupings(writer.out, history, tally_sites(writer.out, history));
  const series by_two = make_series(writer.out, history, groupings, 4);
  EXPECT_EQ(by_two.shift, 1U);
  EXPECT_THAT(by_two.time, ElementsAre(0, 2000, 4000, 6000));
  EXPECT_THAT(by_two.moment, ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(by_two.low, ElementsAre(0, 100, 0, 30));
  EXPECT_THAT(by_two.reserved, ElementsAre(4 * mib, 4 * mib, 4 * mib, 2 * mib));
  ASSERT_EQ(by_two.stacks.size(), groupings.size());
  EXPECT_THAT(groupings[0].labels, ElementsAre("a", "untagged"));
  EXPECT_THAT(by_two.stacks[0], ElementsAre(100, 0, 100, 50, 0, 0, 0, 30));
  EXPECT_EQ(make_series(writer.out, history, groupings, 8).shift, 0U);
  EXPECT_EQ(make_series(writer.out, history, groupings, 7).shift, 1U);
  EXPECT_EQ(make_series(writer.out, history, groupings, 3).shift, 2U);
}

TEST(report_series, coarse_bins_keep_every_peak) {
  const recording recorded = training_run(20'000);
  const report::history history = make_history(recorded);
  const auto groupings = make_groupings(recorded, history, tally_sites(recorded, history));
  const series coarse = make_series(recorded, history, groupings, 256);
  ASSERT_GT(coarse.shift, 0U);
  ASSERT_LE(coarse.bins(), 256U);
  const std::size_t width = std::size_t{1} << coarse.shift;
  for (std::size_t bin = 0; bin < coarse.bins(); ++bin) {
    const std::size_t last = std::min((bin + 1) * width, history.live.size());
    std::uint64_t most = 0;
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (std::size_t i = bin * width; i < last; ++i) {
      most = std::max(most, history.live[i]);
      least = std::min(least, history.live[i]);
    }
    ASSERT_EQ(history.live[coarse.moment[bin]], most);
    ASSERT_EQ(coarse.low[bin], least);
  }
}

class kept_blocks : public testing::TestWithParam<std::size_t> {};

TEST_P(kept_blocks, what_is_kept_is_exact_at_the_moments_it_is_kept_for) {
  const recording recorded = training_run(20'000);
  const report::history history = make_history(recorded);
  const series finest = make_series(recorded, history, {}, 512);
  const std::vector<std::uint32_t> exact{history.peak, history.events() - 1};
  const selection selected = select_blocks(history, finest, exact, GetParam());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < history.blocks.size(); ++i) {
    const block_lifetime& block = history.blocks[i];
    kept += selected.kept[i] ? 1 : 0;
    if (block.size < selected.left_out_below) continue;
    const auto& moments =
        block.size < selected.small_below ? selected.key_moments : selected.moments;
    bool seen = false;
    for (const std::uint32_t moment : moments) seen = seen || block.at(moment);
    ASSERT_EQ(selected.kept[i], seen) << "block " << i;
  }
  EXPECT_LE(kept, GetParam());
  if (selected.small_below != 0) {
    EXPECT_THAT(selected.key_moments, testing::IsSupersetOf(exact));
  }
}

INSTANTIATE_TEST_SUITE_P(budgets, kept_blocks, testing::Values(100'000, 4'000, 500, 40));

/// A history made up of blocks alone.
class kept_few : public testing::Test {
 protected:
  /// A bin for each event.
  void bins(std::uint32_t count) {
    history.live.assign(count, 0);
    finest.time.resize(count);
    finest.moment.resize(count);
    std::iota(finest.moment.begin(), finest.moment.end(), 0U);
  }
  void block(std::uint64_t size, std::uint32_t start, std::uint32_t end) {
    block_lifetime added;
    added.size = size;
    added.rounded = (size + 511) / 512 * 512;
    added.start = start;
    added.end = end;
    history.blocks.push_back(added);
  }
  /// A small block for each event, live behind it alone.
  void short_lives(std::uint32_t count) {
    bins(count);
    for (std::uint32_t i = 0; i < count; ++i) block(100, i, i + 1);
  }
  [[nodiscard]] static std::vector<std::uint32_t> kept(const selection& selected) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < selected.kept.size(); ++i)
      if (selected.kept[i]) all.push_back(i);
    return all;
  }
  [[nodiscard]] static std::vector<std::uint32_t> numbers(std::uint32_t first, std::uint32_t end) {
    std::vector<std::uint32_t> all(end - first);
    std::iota(all.begin(), all.end(), first);
    return all;
  }
  /// So many moments of `all`, evenly spread, and the last one.
  [[nodiscard]] static std::vector<std::uint32_t> spread(std::uint32_t all, std::uint32_t count) {
    std::vector<std::uint32_t> moments;
    for (std::uint32_t i = 0; i < count; ++i) moments.push_back(i * all / count);
    moments.push_back(all - 1);
    return moments;
  }

  report::history history;
  series finest;
};

TEST_F(kept_few, all_are_kept_where_there_is_room) {
  short_lives(50);
  block(100, 10, 10);  // at no moment
  block(100, 10, 12);
  history.blocks.back().placed = false;
  const selection all = select_blocks(history, finest, {49}, 50);
  EXPECT_EQ(kept(all), numbers(0, 50));
  EXPECT_EQ(all.small_below, 0U);
  EXPECT_EQ(all.left_out_below, 0U);
  EXPECT_TRUE(all.key_moments.empty());
  EXPECT_EQ(all.moments.size(), 51U);
  EXPECT_NE(select_blocks(history, finest, {49}, 49).small_below, 0U);
}

TEST_F(kept_few, small_ones_are_those_of_as_many_moments_as_there_is_room_for) {
  short_lives(1000);
  const selection some = select_blocks(history, finest, {999}, 130);
  EXPECT_EQ(some.key_moments, spread(1000, 64)) << "with the exact one 65, which is half";
  EXPECT_EQ(kept(some), some.key_moments);
  EXPECT_EQ(some.small_below, 1024U);
  EXPECT_EQ(some.left_out_below, 0U);
  const selection fewer = select_blocks(history, finest, {999}, 129);
  EXPECT_EQ(fewer.key_moments, spread(1000, 32));
  EXPECT_EQ(kept(fewer), fewer.key_moments);
  const selection one = select_blocks(history, finest, {999}, 4);
  EXPECT_EQ(one.key_moments, spread(1000, 1));
}

TEST_F(kept_few, no_more_than_512_moments_are_added) {
  short_lives(2000);
  const selection some = select_blocks(history, finest, {1999}, 1900);
  EXPECT_EQ(some.key_moments, spread(2000, 512));
  EXPECT_EQ(kept(some), some.key_moments);
}

TEST_F(kept_few, large_ones_are_kept_at_every_moment_and_the_smallest_left_out) {
  bins(100);
  for (const std::uint64_t size : {1024U, 2048U, 4096U})
    for (int i = 0; i < 30; ++i) block(size, 0, 100);
  const selection some = select_blocks(history, finest, {7, 99}, 80);
  EXPECT_EQ(some.small_below, 4096U);
  EXPECT_THAT(some.key_moments, ElementsAre(7, 99)) << "the exact ones alone";
  EXPECT_EQ(some.left_out_below, 2048U);
  EXPECT_EQ(kept(some), numbers(30, 90));
}

TEST_F(kept_few, the_first_to_be_left_out_are_below_512_bytes) {
  bins(10);
  for (int i = 0; i < 30; ++i) block(511, 0, 10);
  for (int i = 0; i < 20; ++i) block(512, 0, 10);
  const selection some = select_blocks(history, finest, {9}, 40);
  EXPECT_EQ(some.small_below, 1024U);
  EXPECT_EQ(some.left_out_below, 512U);
  EXPECT_EQ(kept(some), numbers(30, 50));
}

TEST_F(kept_few, half_of_all_may_be_large_ones) {
  bins(10);
  for (int i = 0; i < 30; ++i) block(100, 0, 10);
  for (int i = 0; i < 10; ++i) block(1024, 0, 10);
  for (int i = 0; i < 10; ++i) block(2048, 0, 10);
  const selection half = select_blocks(history, finest, {9}, 40);
  EXPECT_EQ(half.small_below, 1024U);
  EXPECT_EQ(kept(half), numbers(30, 50));
  const selection fewer = select_blocks(history, finest, {9}, 39);
  EXPECT_EQ(fewer.small_below, 2048U);
  EXPECT_EQ(fewer.left_out_below, 512U);
  EXPECT_EQ(kept(fewer), numbers(30, 50)) << "half of them as small ones";
}

TEST(report_regions, are_whole_pages_without_the_wide_gaps) {
  recording_writer writer;
  writer.allocate(2 * mib + 100, 10);
  writer.allocate(3 * mib, 2 * mib);   // the first page, and the next
  writer.allocate(20 * mib, 2 * mib);  // one page to its end
  trace_event& reserved = writer.add(trace_kind::reserve);
  reserved.address = 40 * mib;
  reserved.size = 6 * mib;
  writer.allocate(48 * mib, 0);
  writer.allocate(100 * mib, 1);
  const report::history history = make_history(writer.out);
  const auto regions = [&](std::size_t most) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    for (const region& each : used_addresses(history, most))
      all.emplace_back(each.address / mib, each.size / mib);
    return all;
  };
  using testing::Pair;
  EXPECT_THAT(regions(6),
              ElementsAre(Pair(2, 4), Pair(20, 2), Pair(40, 6), Pair(48, 2), Pair(100, 2)));
  EXPECT_THAT(regions(5),
              ElementsAre(Pair(2, 4), Pair(20, 2), Pair(40, 6), Pair(48, 2), Pair(100, 2)));
  // Gaps of less than 8 MiB, then of less than 32.
  EXPECT_THAT(regions(4), ElementsAre(Pair(2, 4), Pair(20, 2), Pair(40, 10), Pair(100, 2)));
  EXPECT_THAT(regions(3), ElementsAre(Pair(2, 48), Pair(100, 2)));
  EXPECT_THAT(regions(1), ElementsAre(Pair(2, 100)));
  writer.out.real_addresses = false;
  EXPECT_TRUE(used_addresses(make_history(writer.out)).empty());
}

TEST(report_regions, far_apart_addresses_become_few_ranges) {
  recording_writer writer;
  for (std::uint64_t i = 0; i < 100; ++i) writer.allocate(i << 40, 3 * mib);
  const report::history history = make_history(writer.out);
  EXPECT_EQ(used_addresses(history, 200).size(), 100U);
  const auto few = used_addresses(history, 10);
  EXPECT_LE(few.size(), 10U);
  EXPECT_EQ(few.front().address, 0U);
}

}  // namespace
}  // namespace weir::report_test
