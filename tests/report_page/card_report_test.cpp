// SPDX-License-Identifier: Apache-2.0
// What is in the way on a card: the moment, and what was live then.
#include "report/card_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "samples.hpp"
#include "support/sizes.hpp"

namespace weir::report_test { namespace {

using namespace weir::report;
using testing::ElementsAre;
using testing_support::mib;

/// Two tags and two stacks; the fourth block is the one that fails.
recording four_blocks() {
  recording_writer writer;
  recording& out = writer.out;
  out.tags = {"", "weights", "caches"};
  out.frames = {"load at a.py:1", "grow at b.py:2"};
  out.stacks = {{0}, {1}};
  writer.marker("begin");                       // 0
  writer.allocate(16 * mib, 3 * mib, 0, 1, 1);  // 1
  writer.allocate(32 * mib, 2 * mib, 0, 2, 2);  // 2
  writer.allocate(48 * mib, 2 * mib, 0, 2, 1);  // 3
  writer.deallocate(32 * mib);                  // 4
  writer.allocate(64 * mib, 9 * mib, 0, 2, 2);  // 5
  return out;
}

TEST(card_report, is_of_what_was_live_before_the_request) {
  const recording recorded = four_blocks();
  const history history = make_history(recorded);
  const card_shortage found = explain_shortage(recorded, history, {3, 5000, 9 * mib, 7 * mib});
  EXPECT_EQ(found.event, 5U);
  EXPECT_EQ(found.live, 5 * mib);
  EXPECT_EQ(found.waiting, 2 * mib);
  EXPECT_THAT(found.tags, ElementsAre(holder{"weights", 3 * mib, 1}, holder{"caches", 2 * mib, 1}));
  EXPECT_THAT(found.sites, ElementsAre(holder{"load at a.py:1", 5 * mib, 2}));
  EXPECT_THAT(found.sizes, ElementsAre(holder{"3 MiB", 3 * mib, 1}, holder{"2 MiB", 2 * mib, 1}));
  // As of the third request both before it were live, and nothing waited.
  const card_shortage earlier = explain_shortage(recorded, history, {2, 3000, 2 * mib, 4 * mib});
  EXPECT_EQ(earlier.event, 3U);
  EXPECT_EQ(earlier.live, 5 * mib);
  EXPECT_EQ(earlier.waiting, 0U);
}

TEST(card_report, names_eight_holders_and_adds_up_equals) {
  recording_writer writer;
  for (std::uint64_t i = 0; i < 20; ++i) writer.allocate((i + 1) * mib, (1 + i % 10) * 1024);
  writer.allocate(100 * mib, mib);
  const history history = make_history(writer.out);
  const card_shortage found = explain_shortage(writer.out, history, {20, 0, mib, 110 * 1024});
  ASSERT_EQ(found.sizes.size(), most_holders);
  EXPECT_EQ(found.sizes.front(), (holder{"10 KiB", 20 * 1024, 2}));
  EXPECT_EQ(found.sizes.back(), (holder{"3 KiB", 6 * 1024, 2}));
  EXPECT_THAT(found.tags, ElementsAre(holder{"untagged", 110 * 1024, 20}));
}

TEST(card_report, of_a_request_that_the_recording_does_not_have_is_empty) {
  const recording recorded = four_blocks();
  const card_shortage found = explain_shortage(recorded, make_history(recorded), {4, 0, 1, 1});
  EXPECT_EQ(found.live, 0U);
  EXPECT_TRUE(found.tags.empty());
}

TEST(card_report, is_said_in_words) {
  const recording recorded = four_blocks();
  const history history = make_history(recorded);
  replay::card_trial trial{
      .policy = replay::policy::compact, .card = bytes{1024 * mib}, .left = bytes{495 * mib}};
  EXPECT_EQ(card_text(recorded, history, trial), "compact fits on a card of 1 GiB\n");
  trial.first_oom = replay::shortfall{3, 5000, 9 * mib, 7 * mib};
  EXPECT_EQ(
      card_text(recorded, history, trial),
      "compact does not fit on a card of 1 GiB, of which 495 MiB are left after the context: at "
      "0.000005000 s, event 5, 9 MiB could not be allocated with 7 MiB in use\n"
      "  in the way: 5 MiB live\n"
      "  by tag: weights: 3 MiB in 1 block; caches: 2 MiB in 1 block\n"
      "  by site: load at a.py:1: 5 MiB in 2 blocks\n"
      "  by size: 3 MiB: 3 MiB in 1 block; 2 MiB: 2 MiB in 1 block\n"
      "  and 2 MiB that was freed but is not reusable yet\n");
  trial.first_oom->time = 2'000'000'005;
  EXPECT_THAT(card_text(recorded, history, trial), testing::HasSubstr(": at 2.000000005 s, "));
}

}  // namespace
}  // namespace weir::report_test
