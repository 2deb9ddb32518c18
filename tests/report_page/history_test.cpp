// The history of a recording: blocks, physical memory, groups, resolutions, the blocks kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "report/block_index.hpp"
#include "report/groups.hpp"
#include "report/history.hpp"
#include "report/oom_report.hpp"
#include "report/series.hpp"
#include "samples.hpp"

namespace weir::report_test {
namespace {

using namespace weir::report;
using testing::ElementsAre;

constexpr std::uint64_t mib = 1 << 20;

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

TEST(report_history, a_size_at_the_end_of_the_address_space_does_not_wrap) {
  const report::history history = make_history(sample_named("hostile", 0));
  for (const block_lifetime& block : history.blocks) {
    EXPECT_GE(block.address + block.rounded, block.address);
  }
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

TEST(report_groups, a_site_is_named_by_the_frame_of_the_program) {
  recording recorded;
  recorded.frames = {"weir::allocate", "x at /usr/lib/site-packages/a.py:1", "mine at b.py:2"};
  recorded.stacks = {{0, 1, 2}, {0, 1}};
  EXPECT_EQ(site_label(recorded, {1, 0}), "mine at b.py:2");
  EXPECT_EQ(site_label(recorded, {2, 0}), "weir::allocate");
  EXPECT_EQ(site_label(recorded, {0, 0}), "no stack");
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

TEST(report_regions, far_apart_addresses_become_few_ranges) {
  recording_writer writer;
  for (std::uint64_t i = 0; i < 100; ++i) writer.allocate(i << 40, 3 * mib);
  const report::history history = make_history(writer.out);
  EXPECT_EQ(used_addresses(history, 200).size(), 100U);
  const auto few = used_addresses(history, 10);
  EXPECT_LE(few.size(), 10U);
  EXPECT_EQ(few.front().address, 0U);
}

// --- Out of memory -------------------------------------------------------------------------------

recording full_card(std::uint64_t capacity, std::uint64_t requested) {
  recording_writer writer;
  writer.out.device_capacity = bytes{capacity};
  writer.out.tags = {"", "a", "b"};
  trace_event& reserved = writer.add(trace_kind::reserve);
  reserved.address = 100 * mib;
  reserved.size = 40 * mib;
  for (std::uint64_t i = 0; i < 10; ++i) writer.allocate((100 + 4 * i) * mib, 2 * mib, 0, 1);
  trace_event& failed = writer.add(trace_kind::out_of_memory);
  failed.size = requested;
  return writer.out;
}

TEST(report_oom, fragments_are_told_from_a_full_card) {
  const recording fragments = full_card(50 * mib, 15 * mib);
  const auto reports = explain_ooms(fragments, make_history(fragments), 16);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].free.bytes, 20 * mib);
  EXPECT_EQ(reports[0].free.pieces, 10U);
  EXPECT_EQ(reports[0].free.longest, 2 * mib);
  EXPECT_THAT(reports[0].verdict, testing::StartsWith("Fragmentation: 20 MiB"));

  const recording full = full_card(50 * mib, 40 * mib);
  EXPECT_THAT(explain_ooms(full, make_history(full), 16)[0].verdict,
              testing::StartsWith("The program needs more than the device has"));
  const recording elsewhere = full_card(500 * mib, 40 * mib);
  EXPECT_THAT(explain_ooms(elsewhere, make_history(elsewhere), 16)[0].verdict,
              testing::HasSubstr("other allocators or processes held at least 420 MiB"));
  const recording unknown = full_card(0, 40 * mib);
  EXPECT_THAT(explain_ooms(unknown, make_history(unknown), 16)[0].verdict,
              testing::HasSubstr("cannot be told"));
}

TEST(report_oom, a_limit_is_named) {
  recording limited = full_card(500 * mib, 40 * mib);
  trace_event limit = limited.events.front();
  limit.kind = trace_kind::limit;
  limit.size = 30 * mib;
  limited.events.insert(limited.events.begin(), limit);
  EXPECT_THAT(explain_ooms(limited, make_history(limited), 16)[0].verdict,
              testing::StartsWith("The limit of 30 MiB is in the way"));
}

}  // namespace
}  // namespace weir::report_test
