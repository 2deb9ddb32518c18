// SPDX-License-Identifier: Apache-2.0
// The data of a page, unpacked as the browser does it: every figure in its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "report/block_index.hpp"
#include "report/page.hpp"
#include "report/series.hpp"
#include "samples.hpp"
#include "support/sizes.hpp"
#include "unpacker.hpp"
#include "weir/base/version.hpp"

namespace weir::report_test { namespace {

using namespace weir::report;
using testing::ElementsAre;
using testing::IsEmpty;

using testing_support::mib;
using numbers = std::vector<std::uint64_t>;

/// One behind the other, read in that order.
std::string join(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

/// The index of a page, in words: one line a part.
struct page_index {
  explicit page_index(const std::string& page)
      : in{inflated(from_base64(element(page, "index")))},
        early{element(page, "early")},
        late{element(page, "store")} {
    about = join({"version ", count(), ", weir ", in.text(), ", file ", in.text(), ", program ",
                  in.text(), ", device ", in.text(), ", capacity ", count(), ", dropped ", count(),
                  ", real ", count(), ", placed by ", in.text()});
    if (in.number() == 1) about += join({", damaged at ", count(), ": ", in.text()});
    events = join({"events ",   count(),   ", last ",    count(),   ", blocks ",
                   count(),     ", peak ", count(),      ", live ", count(),
                   ", in use ", count(),   ", rounded ", count(),   ", reserved ",
                   count(),     " ",       count(),      ", page ", count()});
    for (std::uint64_t left = in.number(); left > 0; --left) {
      std::string text = in.text() + ":";
      group_counts.push_back(in.number());
      for (std::uint64_t i = 0; i < group_counts.back(); ++i) text += " " + in.text();
      groupings.push_back(text);
    }
    layout = join({"shift ", count(), ", bins ", count(), ", levels ", count(), ", level shift ",
                   count(), ", tile ", count()});
    for (std::uint64_t left = in.number(); left > 0; --left)
      index_levels.push_back(join({count(), " x ", count()}));
    const std::uint64_t pieces = in.number();
    early_pieces = in.number();
    for (std::uint64_t i = 0; i < pieces; ++i) lengths.push_back(in.number());
    kept = join({"small below ", count(), ", left out below ", count()});
    std::uint64_t moment = 0;
    for (std::uint64_t left = in.number(); left > 0; --left)
      key_moments.push_back(moment = in.difference(moment));
    for (std::uint64_t left = in.number(); left > 0; --left)
      regions.push_back(join({count(), " + ", count()}));
    for (std::uint64_t left = in.number(); left > 0; --left) tags.push_back(in.text());
    for (std::uint64_t left = in.number(); left > 0; --left) streams.push_back(in.text());
    sites_are = join({"all ", count(), ", stacks ", count()});
    for (std::uint64_t left = in.number(); left > 0; --left) {
      std::string text =
          join({count(), " ", in.text(), ": blocks ", count(), ", bytes ", count(), ", most ",
                count(), ", at peak ", count(), ", at end ", count(), ", lifetime ", count()});
      while (in.number() == 1) text += " | " + in.text();
      sites.push_back(text);
    }
    leaks.push_back(join({"all ", count()}));
    for (std::uint64_t left = in.number(); left > 0; --left) {
      leaks.push_back(join({count(), " ", in.text(), ": tag ", count(), ", blocks ", count(),
                            ", bytes ", count(), ", from ", count(), " to ", count()}));
    }
    for (std::uint64_t left = in.number(); left > 0; --left)
      policies.push_back(join({"recorded ", in.text(), ": ", count(), ", ", count()}));
    for (std::uint64_t left = in.number(); left > 0; --left) {
      std::string text = join({in.text(), ": requested ", count(), ", reserved ", count(),
                               ", calls ", count(), ", time ", count(), ", waits ", count(),
                               ", ooms ", count(), ", fit ", count(), ";"});
      std::uint64_t time = 0;
      for (std::uint64_t samples = in.number(); samples > 0; --samples) {
        time = in.difference(time);
        text += join({" ", std::to_string(time), "=", count()});
      }
      policies.push_back(text);
    }
    all_ooms = in.number();
    for (std::uint64_t left = in.number(); left > 0; --left) {
      std::string text = join(
          {"event ",  count(), ", time ",    count(), ", requested ", count(), ", stream ", count(),
           ", live ", count(), ", rounded ", count(), ", reserved ",  count(), ", limit ",  count(),
           ", free ", count(), " in ",       count(), ", longest ",   count()});
      verdicts.push_back(in.text());
      for (std::uint64_t tagged = in.number(); tagged > 0; --tagged)
        text += join({", ", in.text(), " ", count()});
      ooms.push_back(text);
    }
    all_markers = in.number();
    for (std::uint64_t left = in.number(); left > 0; --left)
      markers.push_back(join({count(), " at ", count(), ": ", in.text()}));
    card = join({"size ", count(), ", left ", count()});
    for (std::uint64_t left = in.number(); left > 0; --left) {
      std::string text = in.text();
      if (in.number() == 1) {
        trials.push_back(text + " fits");
        continue;
      }
      text += join({": event ", count(), ", time ", count(), ", size ", count(), ", live ", count(),
                    ", waiting ", count()});
      for (int kind = 0; kind < 3; ++kind) {
        text += ";";
        for (std::uint64_t holders = in.number(); holders > 0; --holders)
          text += join({" ", in.text(), " ", count(), " in ", count()});
      }
      trials.push_back(text);
    }
    suspensions.push_back(join({"all ", count()}));
    for (std::uint64_t left = in.number(); left > 0; --left) {
      suspensions.push_back(
          join({"pool ", count(), ", events ", count(), " to ", count(), ", times ", count(),
                " to ", count(), ", size ", count(), ", kept ", count()}));
    }
    EXPECT_TRUE(in.done());
  }

  /// A piece of the store.
  [[nodiscard]] unpacker piece(std::size_t number) const {
    const bool is_early = number < early_pieces;
    std::size_t begin = 0;
    for (std::size_t i = is_early ? 0 : early_pieces; i < number; ++i) begin += lengths[i];
    return unpacker{
        inflated(from_base64((is_early ? early : late).substr(begin, lengths[number])))};
  }
  std::string count() { return std::to_string(in.number()); }

  unpacker in;
  std::string early, late;
  std::string about, events, layout, kept, sites_are, card;
  std::vector<std::string> groupings, index_levels, regions, tags, streams, sites, leaks, policies,
      ooms, verdicts, markers, trials, suspensions;
  numbers group_counts, lengths, key_moments;
  std::size_t early_pieces = 0;
  std::uint64_t all_ooms = 0, all_markers = 0;
};

/// A column of `count` numbers, each as its difference from the one before.
numbers column(unpacker& from, std::size_t count) {
  numbers all;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) all.push_back(value = from.difference(value));
  return all;
}
numbers plain(unpacker& from, std::size_t count) {
  numbers all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(from.number());
  return all;
}

/// Of everything a little, no two figures alike.
recording small_recording() {
  recording_writer writer;
  recording& out = writer.out;
  out.program = "train.py";
  out.device = "a GPU";
  out.device_capacity = bytes{77 * mib};
  out.dropped = 5;
  out.tags = {"", "a", "b"};
  out.streams = {3, 9};
  out.frames = {"weir::allocate", "mine at a.py:1", "main at a.py:9"};
  out.stacks = {{0, 1, 2}, {0, 7, 2}};
  out.peaks = {{"torch", bytes{11}, bytes{12}}};
  writer.marker("begin");  // 0
  trace_event& limit = writer.add(trace_kind::limit);
  limit.size = 9 * mib;  // 1
  trace_event& reserved = writer.add(trace_kind::reserve);
  reserved.address = 16 * mib;
  reserved.size = 8 * mib;                           // 2
  writer.allocate(16 * mib, 1000, 0, 1, 1);          // 3
  writer.allocate(18 * mib, 5 * mib - 10, 1, 2, 2);  // 4
  writer.deallocate(16 * mib);                       // 5
  trace_event& failed = writer.add(trace_kind::out_of_memory);
  failed.size = 30 * mib;
  failed.stream = 1;                        // 6
  writer.marker("end");                     // 7
  writer.deallocate(18 * mib);              // 8
  writer.allocate(17 * mib, 700, 0, 1, 1);  // 9
  return out;
}

TEST(report_index, says_everything_about_a_recording) {
  recording recorded = small_recording();
  replay::outcome outcome;
  outcome.policy = replay::policy::balanced;
  outcome.requested_peak = 21;
  outcome.reserved_peak = 22;
  outcome.driver_calls = 23;
  outcome.driver_time = std::chrono::nanoseconds{24};
  outcome.waits = 25;
  outcome.ooms = 26;
  outcome.samples = {{.time = 100, .reserved = 27}, {.time = 90, .reserved = 28}};
  page_source source{recorded, "a.weirtrace"};
  source.policies = {outcome, outcome};
  source.fits = {bytes{29}};
  const page_index index{make_page(source)};
  const std::string version{version_text()};
  EXPECT_EQ(index.about,
            "version 2, weir " + version +
                ", file a.weirtrace, program train.py, device a GPU, capacity 80740352, "
                "dropped 5, real 1, placed by ");
  EXPECT_EQ(index.events,
            "events 10, last 9000, blocks 3, peak 4, live 5243870, in use 5243870, rounded "
            "5243904, reserved 1 "
            "8388608, page 2097152");
  EXPECT_THAT(index.groupings,
              ElementsAre("tag: b a", "size: 2 MiB to 16 MiB below 1 KiB",
                          "stream: stream 9 stream 3", "site: main at a.py:9 mine at a.py:1"));
  EXPECT_EQ(index.layout, "shift 0, bins 10, levels 1, level shift 2, tile 512");
  EXPECT_THAT(index.index_levels, ElementsAre("8192 x 1"));
  EXPECT_EQ(index.kept, "small below 0, left out below 0");
  EXPECT_THAT(index.key_moments, IsEmpty());
  EXPECT_THAT(index.regions, ElementsAre("16777216 + 8388608"));
  EXPECT_THAT(index.tags, ElementsAre("untagged", "a", "b"));
  EXPECT_THAT(index.streams, ElementsAre("stream 3", "stream 9"));
  EXPECT_EQ(index.sites_are, "all 2, stacks 1");
  EXPECT_THAT(
      index.sites,
      ElementsAre(
          "1 main at a.py:9: blocks 1, bytes 5242870, most 5242870, at peak 5242870, at end "
          "0, lifetime 4000 | weir::allocate | main at a.py:9",
          "0 mine at a.py:1: blocks 2, bytes 1700, most 1000, at peak 1000, at end 700, "
          "lifetime 2000 | weir::allocate | mine at a.py:1 | main at a.py:9"));
  EXPECT_THAT(index.leaks, ElementsAre("all 1",
                                       "0 mine at a.py:1: tag 1, blocks 1, bytes 700, "
                                       "from 9000 to 9000"));
  EXPECT_THAT(index.policies,
              ElementsAre("recorded torch: 11, 12",
                          "balanced: requested 21, reserved 22, calls 23, time 24, waits 25, ooms "
                          "26, fit 29; 100=27 90=28",
                          "balanced: requested 21, reserved 22, calls 23, time 24, waits 25, ooms "
                          "26, fit 0; 100=27 90=28"));
  EXPECT_EQ(index.all_ooms, 1U);
  EXPECT_THAT(index.ooms,
              ElementsAre("event 6, time 6000, requested 31457280, stream 1, live 5242870, rounded "
                          "5242880, reserved 8388608, limit 9437184, free 3145728 in 2, longest "
                          "2097152, b 5242870"));
  EXPECT_THAT(index.verdicts,
              ElementsAre(testing::StartsWith("The allocator's limit of 9 MiB is in")));
  EXPECT_EQ(index.all_markers, 2U);
  EXPECT_THAT(index.markers, ElementsAre("0 at 0: begin", "7 at 7000: end"));
  EXPECT_EQ(index.card, "size 0, left 0");
  EXPECT_THAT(index.trials, IsEmpty());
}

TEST(report_index, says_when_memory_was_suspended) {
  recording recorded = small_recording();
  EXPECT_THAT(page_index{make_page({recorded, ""})}.suspensions, ElementsAre("all 0"));
  recorded.events[6] = {
      .time = 6000, .size = 51, .extra = 52, .pool = 3, .kind = trace_kind::suspended};
  recorded.events[7] = {.time = 7000, .pool = 3, .kind = trace_kind::resumed};
  recorded.events[8] = {.time = 8000, .size = 53, .kind = trace_kind::suspended};
  const page_index index{make_page({recorded, ""})};
  EXPECT_THAT(index.suspensions,
              ElementsAre("all 2", "pool 3, events 6 to 7, times 6000 to 7000, size 51, kept 52",
                          "pool 0, events 8 to 10, times 8000 to 9000, size 53, kept 0"));
  EXPECT_THAT(index.groupings[0], testing::EndsWith(" suspended"));
}

TEST(report_index, says_how_policies_do_on_a_card) {
  const recording recorded = small_recording();
  page_source source{recorded, ""};
  replay::card_trial trial{
      .policy = replay::policy::balanced, .card = bytes{41}, .left = bytes{42}};
  source.card = {trial, trial};
  source.card[1].policy = replay::policy::compact;
  source.card[1].first_oom = replay::shortfall{1, 43, 44, 1050};
  const page_index index{make_page(source)};
  EXPECT_EQ(index.card, "size 41, left 42");
  EXPECT_THAT(index.trials,
              ElementsAre("balanced fits",
                          "compact: event 4, time 43, size 44, live 1000, waiting 50; a 1000 in 1; "
                          "mine at a.py:1 1000 in 1; 1000 B 1000 in 1"));
}

TEST(report_index, says_what_is_odd_about_a_recording) {
  recording recorded = small_recording();
  recorded.damage = trace_damage{17, "torn"};
  recorded.real_addresses = false;
  recorded.stacks.clear();
  placement placed;
  placed.policy = replay::policy::compact;
  placed.places = {{16 * mib, 2048}, {}, {17 * mib, 1024}};
  page_source source{recorded, "a.weirtrace"};
  source.placement = &placed;
  replay::outcome outcome;
  outcome.driver_time = std::chrono::nanoseconds{-1};  // a clock that went back
  source.policies = {outcome};
  const page_index index{make_page(source)};
  EXPECT_THAT(index.about,
              testing::EndsWith("dropped 5, real 0, placed by compact, damaged at 17: torn"));
  EXPECT_EQ(index.events,
            "events 10, last 9000, blocks 3, peak 4, live 5243870, in use 5243870, rounded "
            "5244928, reserved 0 0, "
            "page 2097152");
  EXPECT_EQ(index.sites_are, "all 3, stacks 0");
  EXPECT_THAT(index.sites,
              ElementsAre("1 5 MiB: blocks 1, bytes 5242870, most 5242870, at peak 5242870, at end "
                          "0, lifetime 4000",
                          "0 1000 B: blocks 1, bytes 1000, most 1000, at peak 1000, at end 0, "
                          "lifetime 2000",
                          "2 700 B: blocks 1, bytes 700, most 700, at peak 0, at end 700, lifetime "
                          "0"));
  ASSERT_EQ(index.policies.size(), 2U);
  EXPECT_THAT(index.policies[1], testing::HasSubstr("time 0, waits"));
}

TEST(report_index, names_the_first_of_what_there_is_much_of) {
  recording_writer writer;
  writer.out.frames.assign(100, "f");
  writer.out.stacks.assign(301, {});
  writer.out.stacks[300].assign(70, 1);
  for (std::uint32_t i = 0; i < 301; ++i) writer.allocate((1 + i) * mib, 1000 + i, 0, 0, i + 1);
  for (int i = 0; i < 17; ++i) writer.add(trace_kind::out_of_memory).size = 5;
  for (int i = 0; i < 2001; ++i) writer.marker("m");
  writer.add(trace_kind::marker).other = 5000;  // a text that is not there
  for (int i = 0; i < 2001; ++i) writer.add(trace_kind::suspended);
  const page_index index{make_page({writer.out, ""})};
  EXPECT_EQ(index.sites_are, "all 301, stacks 1");
  ASSERT_EQ(index.sites.size(), 300U);
  EXPECT_THAT(index.sites.front(), testing::StartsWith("300 f: blocks 1, bytes 1300"));
  EXPECT_EQ(std::count(index.sites.front().begin(), index.sites.front().end(), '|'), 64);
  EXPECT_THAT(index.sites.back(), testing::StartsWith("1 an empty stack: blocks 1, bytes 1001"));
  EXPECT_EQ(index.all_ooms, 17U);
  EXPECT_EQ(index.ooms.size(), 16U);
  EXPECT_EQ(index.all_markers, 2001U);
  EXPECT_EQ(index.markers.size(), 2000U);
  EXPECT_EQ(index.leaks.front(), "all 301");
  EXPECT_EQ(index.leaks.size(), 1U + 300);
  EXPECT_EQ(index.suspensions.front(), "all 2001");
  EXPECT_EQ(index.suspensions.size(), 1U + 2000);
}

// --- Pieces
// --------------------------------------------------------------------------------------

TEST(report_store, has_the_series_and_their_stacks) {
  const recording recorded = small_recording();
  const page_index index{make_page({recorded, ""})};
  ASSERT_EQ(index.lengths.size(), 6U);
  EXPECT_EQ(index.early_pieces, 5U);
  unpacker frame = index.piece(0);
  EXPECT_THAT(column(frame, 10),
              ElementsAre(0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000));
  EXPECT_THAT(plain(frame, 10), testing::Each(0)) << "the moments, from the begin of their bins";
  EXPECT_THAT(column(frame, 10),
              ElementsAre(0, 0, 0, 1000, 5243870, 5242870, 5242870, 5242870, 0, 700));
  EXPECT_THAT(column(frame, 10), ElementsAre(0, 0, 8388608, 8388608, 8388608, 8388608, 8388608,
                                             8388608, 8388608, 8388608));
  EXPECT_TRUE(frame.done());
  for (const std::size_t grouping : {1U, 2U, 3U, 4U}) {
    unpacker stacks = index.piece(grouping);  // the large block, and the small ones
    EXPECT_THAT(column(stacks, 10),
                ElementsAre(0, 0, 0, 0, 5242870, 5242870, 5242870, 5242870, 0, 0));
    EXPECT_THAT(column(stacks, 10), ElementsAre(0, 0, 0, 1000, 1000, 0, 0, 0, 0, 700));
    EXPECT_TRUE(stacks.done());
  }
}

TEST(report_store, has_the_blocks_and_what_is_mapped) {
  recording recorded = small_recording();
  recorded.events[9].pool = 4;
  const page_index index{make_page({recorded, ""})};
  unpacker blocks = index.piece(6);
  ASSERT_EQ(blocks.number(), 3U);
  EXPECT_THAT(column(blocks, 3), ElementsAre(3, 4, 9)) << "first events";
  EXPECT_THAT(plain(blocks, 3), ElementsAre(2, 4, 1)) << "how many they live";
  EXPECT_THAT(column(blocks, 3), ElementsAre(16 * mib, 18 * mib, 17 * mib)) << "addresses";
  EXPECT_THAT(plain(blocks, 3), ElementsAre(1000, 5242870, 700)) << "sizes";
  EXPECT_THAT(plain(blocks, 3), ElementsAre(24, 10, 324)) << "what they are rounded by";
  EXPECT_THAT(plain(blocks, 3), ElementsAre(1, 2, 1)) << "tags";
  EXPECT_THAT(plain(blocks, 3), ElementsAre(0, 1, 0)) << "streams";
  EXPECT_THAT(plain(blocks, 3), ElementsAre(0, 1, 0)) << "sites";
  EXPECT_THAT(plain(blocks, 3), ElementsAre(0, 0, 4)) << "pools";
  for (int grouping = 0; grouping < 4; ++grouping)
    EXPECT_THAT(plain(blocks, 3), ElementsAre(1, 0, 1));
  EXPECT_THAT(plain(blocks, 3), ElementsAre(0, 0, 1)) << "by pool";
  ASSERT_EQ(blocks.number(), 1U);
  EXPECT_EQ(blocks.difference(0), 2U);
  EXPECT_EQ(blocks.number(), 8U);
  EXPECT_EQ(blocks.difference(0), 16 * mib);
  EXPECT_EQ(blocks.number(), 8 * mib);
  EXPECT_TRUE(blocks.done());
}

/// 20,000 events: several tiles, levels of resolution and of lifetimes.
class long_recording : public testing::Test {
 protected:
  static constexpr std::uint32_t events = 20'000;
  long_recording() {
    // A block of each length of life that the levels tell apart, and many short ones between.
    writer.allocate(1 * mib, 1 * mib);  // lives to the end
    writer.allocate(2 * mib, 9000);     // 8192 events
    writer.allocate(3 * mib, 9001);     // 8193
    while (writer.out.events.size() < events) {
      const auto next = static_cast<std::uint32_t>(writer.out.events.size());
      if (next == 8193) {
        writer.deallocate(2 * mib);
      } else if (next == 8195) {
        writer.deallocate(3 * mib);
      } else if (next % 2 == 1) {
        writer.allocate(10 * mib, 100 + next);
      } else {
        writer.deallocate(10 * mib);
      }
    }
    history = make_history(writer.out);
  }
  recording_writer writer;
  report::history history;
};

TEST_F(long_recording, has_levels_of_a_quarter_of_the_bins_each) {
  const page_index index{make_page({writer.out, ""})};
  EXPECT_EQ(index.layout, "shift 0, bins 20000, levels 3, level shift 2, tile 512");
  EXPECT_THAT(index.index_levels, ElementsAre("8192 x 3", "32768 x 1"));
  // 1250 bins in 3 tiles, then 5000 in 10, then 20000 in 40, five pieces each.
  EXPECT_EQ(index.early_pieces, 15U);
  EXPECT_EQ(index.lengths.size(), (3U + 10 + 40) * 5 + 4);
  const auto expect_tile = [&](std::size_t first_piece, std::size_t first, std::size_t count,
                               unsigned shift) {
    SCOPED_TRACE(first_piece);
    unpacker frame = index.piece(first_piece);
    const numbers times = column(frame, count);
    const numbers moments = plain(frame, count);
    const numbers lows = column(frame, count);
    EXPECT_TRUE(frame.done());
    unpacker stacks = index.piece(first_piece + 1);
    numbers totals(count);
    for (std::uint64_t group = 0; group < index.group_counts[0]; ++group) {
      const numbers values = column(stacks, count);
      for (std::size_t i = 0; i < count; ++i) totals[i] += values[i];
    }
    EXPECT_TRUE(stacks.done());
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t begin = (first + i) << shift;
      const std::size_t end = std::min<std::size_t>(begin + (std::size_t{1} << shift), events);
      const auto from = history.live.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto to = history.live.begin() + static_cast<std::ptrdiff_t>(end);
      ASSERT_EQ(times[i], begin * 1000);
      ASSERT_EQ(lows[i], *std::min_element(from, to));
      ASSERT_EQ(begin + moments[i],
                static_cast<std::size_t>(std::max_element(from, to) - history.live.begin()));
      ASSERT_EQ(totals[i], *std::max_element(from, to));
    }
  };
  expect_tile(0, 0, 512, 4);
  expect_tile(10, 1024, 226, 4);
  expect_tile(15, 0, 512, 2);
  expect_tile(15 + 9 * 5, 9 * 512, 5000 - 9 * 512, 2);
  expect_tile(15 + 50 + 39 * 5, 39 * 512, 20'000 - 39 * 512, 0);
}

/// Each bin of the coarser level is of four events: a block that lives while two markers pass, then
/// nothing. What is reserved grows with the block and goes in the middle of the bin behind it.
TEST(report_store, has_coarser_levels_with_the_first_of_equal_peaks_and_the_most_reserved) {
  constexpr std::size_t events = 2056;  // 514 bins, which are two tiles
  recording_writer writer;
  const auto add = [&](trace_kind kind, std::uint64_t size) {
    trace_event& event = writer.add(kind);
    event.address = 16 * mib;
    event.size = size;
  };
  for (std::uint64_t round = 0; writer.out.events.size() < events; ++round) {
    const std::uint64_t size = (round % 7 + 1) * mib;
    add(trace_kind::reserve, size);
    writer.allocate(16 * mib, size - round);
    writer.marker("");
    writer.marker("");
    writer.deallocate(16 * mib);
    writer.marker("");
    add(trace_kind::release, size);
    writer.marker("");
  }
  const page_index index{make_page({writer.out, ""})};
  EXPECT_EQ(index.layout, "shift 0, bins 2056, levels 2, level shift 2, tile 512");
  EXPECT_EQ(index.early_pieces, 2U * 5);
  const auto expect_tile = [&](std::size_t first_piece, std::size_t first, std::size_t count) {
    unpacker frame = index.piece(first_piece);
    const numbers times = column(frame, count);
    const numbers moments = plain(frame, count);
    const numbers lows = column(frame, count);
    const numbers reserved = column(frame, count);
    EXPECT_TRUE(frame.done());
    unpacker stacks = index.piece(first_piece + 1);
    const numbers untagged = column(stacks, count);
    EXPECT_TRUE(stacks.done());
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bin = first + i;
      const std::uint64_t size = (bin / 2 % 7 + 1) * mib;
      const bool has_block = bin % 2 == 0;
      ASSERT_EQ(times[i], bin * 4000);
      ASSERT_EQ(moments[i], has_block ? 1U : 0U) << "from the bin's first event, in bin " << bin;
      ASSERT_EQ(lows[i], 0U);
      ASSERT_EQ(reserved[i], size);
      ASSERT_EQ(untagged[i], has_block ? size - bin / 2 : 0U);
    }
  };
  expect_tile(0, 0, 512);
  expect_tile(5, 512, 2);
}

TEST_F(long_recording, puts_blocks_into_buckets_by_how_long_they_live) {
  const auto groupings = make_groupings(writer.out, history, tally_sites(writer.out, history));
  const series finest = make_series(writer.out, history, groupings, 1 << 18);
  const selection all = select_blocks(history, finest, {history.peak}, 1'000'000);
  chunk_store store;
  const auto levels = store_block_index(history, groupings, all, store);
  ASSERT_EQ(levels.size(), 2U);
  EXPECT_EQ(levels[0].width, 8192U);
  EXPECT_EQ(levels[0].buckets, 3U);
  EXPECT_EQ(levels[1].width, 32768U);
  EXPECT_EQ(levels[1].buckets, 1U);
  ASSERT_EQ(store.count(), 4U);
  EXPECT_EQ(store.early(), 0U);
  EXPECT_EQ(store.early_text(), "");
  std::size_t begin = 0;
  std::vector<numbers> starts, lifetimes;
  for (const std::size_t length : store.lengths()) {
    unpacker piece{inflated(from_base64(store.text().substr(begin, length)))};
    begin += length;
    const std::size_t count = piece.number();
    starts.push_back(column(piece, count));
    lifetimes.push_back(plain(piece, count));
  }
  EXPECT_EQ(begin, store.text().size());
  // 8192 events at most are of the first level, by where they begin.
  EXPECT_EQ(starts[0].front(), 1U);
  EXPECT_EQ(lifetimes[0].front(), 8192U);
  for (std::size_t bucket = 0; bucket < 3; ++bucket) {
    for (const std::uint64_t start : starts[bucket]) EXPECT_EQ(start / 8192, bucket);
    for (const std::uint64_t lifetime : lifetimes[bucket]) EXPECT_LE(lifetime, 8192U);
  }
  EXPECT_THAT(starts[3], ElementsAre(0, 2));
  EXPECT_THAT(lifetimes[3], ElementsAre(20'000, 8193));
  std::size_t blocks = 0;
  for (const numbers& each : starts) blocks += each.size();
  EXPECT_EQ(blocks, history.blocks.size());
}

TEST(report_store, has_no_more_levels_than_the_longest_life_needs) {
  const auto levels = [](std::size_t events) {
    report::history history;
    history.live.assign(events, 0);
    chunk_store store;
    std::vector<std::string> all;
    for (const index_level& each : store_block_index(history, {}, {}, store))
      all.push_back(std::to_string(each.width) + " x " + std::to_string(each.buckets));
    return all;
  };
  EXPECT_THAT(levels(0), IsEmpty());
  EXPECT_THAT(levels(1), ElementsAre("8192 x 1"));
  EXPECT_THAT(levels(8192), ElementsAre("8192 x 1"));
  EXPECT_THAT(levels(8193), ElementsAre("8192 x 2", "32768 x 1"));
  EXPECT_THAT(levels(32'768), ElementsAre("8192 x 4", "32768 x 1"));
  EXPECT_THAT(levels(32'769), ElementsAre("8192 x 5", "32768 x 2", "131072 x 1"));
}

TEST(report_store, puts_what_is_mapped_into_buckets_by_how_long_it_was) {
  report::history history;
  history.live.assign(20'000, 0);
  history.mappings = {{16 * mib, 2 * mib, 0, 8192},
                      {32 * mib, 2 * mib, 1, 8194},
                      {48 * mib, 2 * mib, 8191, 8192},
                      {64 * mib, 2 * mib, 8192, 16'384},
                      {80 * mib, 2 * mib, 19'999, 20'000}};
  selection chosen;
  chosen.moments.resize(history.events());
  std::iota(chosen.moments.begin(), chosen.moments.end(), 0U);
  chunk_store store;
  EXPECT_EQ(store_block_index(history, {}, chosen, store).size(), 2U);
  std::vector<numbers> starts;
  std::size_t begin = 0;
  for (const std::size_t length : store.lengths()) {
    unpacker piece{inflated(from_base64(store.text().substr(begin, length)))};
    begin += length;
    EXPECT_EQ(piece.number(), 0U) << "blocks";
    starts.emplace_back();
    std::uint64_t start = 0;
    for (std::uint64_t left = piece.number(); left > 0; --left) {
      starts.back().push_back(start = piece.difference(start));
      for (int i = 0; i < 3; ++i) static_cast<void>(piece.number());
    }
    EXPECT_TRUE(piece.done());
  }
  EXPECT_THAT(starts, ElementsAre(numbers{0, 8191}, numbers{8192}, numbers{19'999}, numbers{1}));
}

TEST_F(long_recording, leaves_out_what_does_not_fit_in_steps) {
  const auto groupings = make_groupings(writer.out, history, tally_sites(writer.out, history));
  const series finest = make_series(writer.out, history, groupings, 1 << 18);
  const auto keep = [&](std::size_t most) {
    return select_blocks(history, finest, {history.peak}, most);
  };
  const auto kept = [](const selection& of) {
    return static_cast<std::size_t>(std::count(of.kept.begin(), of.kept.end(), true));
  };
  const std::size_t blocks = history.blocks.size();
  EXPECT_EQ(kept(keep(blocks)), blocks);
  EXPECT_EQ(keep(blocks).small_below, 0U);
  const selection fewer = keep(blocks - 1);
  EXPECT_GT(fewer.small_below, 0U);
  EXPECT_LE(kept(fewer), blocks - 1);
  EXPECT_EQ(fewer.left_out_below, 0U);
  // All of it, not half: small_below is the least power of two that leaves half of them.
  std::size_t large = 0;
  for (const block_lifetime& each : history.blocks) large += each.size >= fewer.small_below;
  EXPECT_LE(large, (blocks - 1) / 2);
  if (fewer.small_below > 1024) {
    std::size_t more = 0;
    for (const block_lifetime& each : history.blocks) more += each.size >= fewer.small_below / 2;
    EXPECT_GT(more, (blocks - 1) / 2);
  }
}

TEST(report_store, has_fewer_bins_where_there_are_no_blocks_to_leave_out) {
  recording_writer writer;
  writer.allocate(mib, 1000);
  while (writer.out.events.size() < 5000) writer.add(trace_kind::record_stream).address = mib;
  EXPECT_EQ(page_index{make_page({writer.out, ""})}.layout,
            "shift 0, bins 5000, levels 2, level shift 2, tile 512");
  EXPECT_EQ(page_index{make_page({writer.out, ""}, {.bytes = 1})}.layout,
            "shift 2, bins 1250, levels 1, level shift 2, tile 512");
}

TEST_F(long_recording, shows_the_peak_and_every_failure_exactly) {
  for (const std::uint32_t event : {5000U, 11'000U}) {
    trace_event& failed = writer.out.events[event];
    failed = trace_event{.time = failed.time, .size = 99, .stream = 3};
    failed.kind = trace_kind::out_of_memory;
  }
  const report::history changed = make_history(writer.out);
  // So few blocks that no other moment has room for its small ones; the peak is one of a bin.
  const page_index index{make_page({writer.out, ""}, {.bins = 1 << 10, .blocks = 4})};
  EXPECT_EQ(index.layout, "shift 5, bins 625, levels 1, level shift 2, tile 512");
  EXPECT_EQ(changed.peak, 8192U - 1);
  EXPECT_THAT(index.key_moments, ElementsAre(5000, changed.peak, 11'000));
}

TEST_F(long_recording, shows_the_request_exactly_that_a_card_has_no_room_for) {
  page_source source{writer.out, ""};
  replay::card_trial trial{
      .policy = replay::policy::balanced, .card = bytes{41}, .left = bytes{42}};
  source.card = {trial, trial, trial};
  source.card[1].first_oom = replay::shortfall{.block = 2001};
  source.card[2].first_oom = replay::shortfall{
      .block = static_cast<std::uint32_t>(history.blocks.size())};  // there is none
  const page_index index{make_page(source, {.bins = 1 << 10, .blocks = 4})};
  EXPECT_EQ(history.blocks[2001].start, 3999U);
  EXPECT_THAT(index.key_moments, ElementsAre(3999, history.peak));
}

TEST(report_store, has_what_is_mapped_at_the_moments_that_can_be_shown) {
  recording_writer writer;
  const auto add = [&](trace_kind kind, std::uint64_t address, std::uint64_t size) {
    trace_event& event = writer.add(kind);
    event.address = address;
    event.size = size;
  };
  add(trace_kind::reserve, 16 * mib, 2 * mib);   // 0 to 2
  writer.marker("");                             // 1
  add(trace_kind::release, 16 * mib, 2 * mib);   // 2
  add(trace_kind::reserve, 32 * mib, 4 * mib);   // 3 to 5
  writer.marker("");                             // 4
  add(trace_kind::release, 32 * mib, 4 * mib);   // 5
  add(trace_kind::reserve, 64 * mib, 6 * mib);   // 6 to the end
  add(trace_kind::reserve, 128 * mib, 8 * mib);  // 7 to the end
  const report::history history = make_history(writer.out);
  ASSERT_EQ(history.mappings.size(), 4U);
  const auto stored = [&](std::vector<std::uint32_t> moments) {
    selection chosen;
    chosen.moments = std::move(moments);
    chunk_store store;
    EXPECT_EQ(store_block_index(history, {}, chosen, store).size(), 1U);
    unpacker piece{inflated(from_base64(store.text()))};
    EXPECT_EQ(piece.number(), 0U) << "blocks";
    std::vector<numbers> mappings;
    std::uint64_t start = 0;
    std::uint64_t address = 0;
    for (std::uint64_t left = piece.number(); left > 0; --left) {
      start = piece.difference(start);
      const std::uint64_t duration = piece.number();
      address = piece.difference(address);
      mappings.push_back({start, duration, address, piece.number()});
    }
    EXPECT_TRUE(piece.done());
    return mappings;
  };
  const numbers first{0, 2, 16 * mib, 2 * mib};
  const numbers second{3, 2, 32 * mib, 4 * mib};
  const numbers third{6, 2, 64 * mib, 6 * mib};
  const numbers fourth{7, 1, 128 * mib, 8 * mib};
  EXPECT_THAT(stored({0, 1, 2, 3, 4, 5, 6, 7}), ElementsAre(first, second, third, fourth));
  EXPECT_THAT(stored({1, 6}), ElementsAre(first, third));
  EXPECT_THAT(stored({2, 4, 5}), ElementsAre(second));
  EXPECT_THAT(stored({2, 5}), IsEmpty());
  EXPECT_THAT(stored({7}), ElementsAre(third, fourth));
  EXPECT_THAT(stored({}), IsEmpty());
}

/// Sizes and addresses are what a file says, however large.
TEST(report_index, ends_for_blocks_as_large_as_numbers_get) {
  report::history history;
  for (std::uint32_t i = 0; i < 40; ++i) {
    const std::uint64_t size = i < 20 ? std::uint64_t{1} << 63 : UINT64_MAX - i;
    history.blocks.push_back({.address = i, .size = size, .rounded = size, .start = i, .end = 41});
  }
  history.live.assign(41, 0);
  series finest;
  for (std::uint32_t i = 0; i < 41; ++i) finest.moment.push_back(i);
  finest.time.assign(41, 0);
  const selection chosen = select_blocks(history, finest, {40}, 10);
  EXPECT_EQ(chosen.small_below, UINT64_MAX);
  EXPECT_LE(std::count(chosen.kept.begin(), chosen.kept.end(), true), 10);
}

TEST(report_index, ends_for_addresses_at_the_end_of_all) {
  report::history history;
  const std::uint64_t page = 2 * mib;
  // Ranges that touch, up to the last page, which has no end; and the first page.
  for (std::uint64_t i = 0; i < 8; ++i)
    history.mappings.push_back({UINT64_MAX - 16 * page + 2 * i * page, page, 0, 1});
  history.mappings.push_back({UINT64_MAX - 512, 512, 0, 1});
  history.mappings.push_back({0, 512, 0, 1});
  const auto found = used_addresses(history, 2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].address, 0U);
  EXPECT_EQ(found[0].size, page);
  EXPECT_EQ(found[1].address, UINT64_MAX - 17 * page + 1);
  EXPECT_EQ(found[1].size, 17 * page - 1);
  EXPECT_EQ(used_addresses(history, 1).size(), 1U);
}

}  // namespace
}  // namespace weir::report_test
