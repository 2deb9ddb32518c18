// SPDX-License-Identifier: Apache-2.0
// States of pages, and the pages that byte ranges mean.
#include "growable/page_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/reports.hpp"

namespace weir::growable { namespace {

using namespace weir::literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing_support::code_of;

TEST(page_states, are_counted) {
  page_table pages{8};
  EXPECT_EQ(pages.count(), 8u);
  EXPECT_EQ(pages.count_of(page_state::empty), 8u);
  EXPECT_EQ(pages.committed_end(), 0u);
  pages.set(2, page_state::committed);
  pages.set(5, page_state::committed);
  pages.set(6, page_state::ahead);
  EXPECT_EQ(pages[2], page_state::committed);
  EXPECT_EQ(pages[6], page_state::ahead);
  EXPECT_EQ(pages.count_of(page_state::committed), 2u);
  EXPECT_EQ(pages.count_of(page_state::ahead), 1u);
  EXPECT_EQ(pages.count_of(page_state::empty), 5u);
  EXPECT_EQ(pages.committed_end(), 6u);
  pages.set(5, page_state::held);
  EXPECT_EQ(pages.committed_end(), 3u);
  EXPECT_EQ(pages.count_of(page_state::held), 1u);
  pages.set(2, page_state::empty);
  EXPECT_EQ(pages.committed_end(), 0u);
  EXPECT_EQ(pages.committed_peak(), 2u);
}

TEST(page_states, know_how_many_holds_a_page_has) {
  page_table pages{2};
  pages.add_hold(1);
  pages.add_hold(1);
  EXPECT_EQ(pages.holds(0), 0u);
  EXPECT_EQ(pages.holds(1), 2u);
  pages.drop_hold(1);
  EXPECT_EQ(pages.holds(1), 1u);
}

TEST(byte_ranges, touch_every_page_that_they_begin_or_end_in) {
  const page_ranges of{4_MiB, 40_MiB};
  const auto touched = [&](std::vector<byte_range> ranges) {
    return of.touched_by(ranges).value();
  };
  EXPECT_THAT(touched({{0_B, 1_B}}), ElementsAre(0u));
  EXPECT_THAT(touched({{4_MiB - 1_B, 2_B}}), ElementsAre(0u, 1u));
  EXPECT_THAT(touched({{4_MiB, 4_MiB}}), ElementsAre(1u));
  EXPECT_THAT(touched({{8_MiB, 9_MiB}, {0_B, 4_MiB}, {12_MiB, 1_B}}), ElementsAre(0u, 2u, 3u, 4u));
  EXPECT_THAT(touched({{36_MiB, 4_MiB}}), ElementsAre(9u));
  EXPECT_THAT(touched({{5_MiB, 0_B}}), IsEmpty());
}

TEST(byte_ranges, that_go_beyond_the_size_are_refused) {
  const page_ranges of{4_MiB, 40_MiB};
  const byte_range beyond{36_MiB, 4_MiB + 1_B};
  const auto refused = of.touched_by({&beyond, 1});
  EXPECT_EQ(code_of(refused), errc::invalid_argument);
  EXPECT_THAT(refused.error().detail(), ::testing::HasSubstr("at offset 36 MiB goes beyond"));
  const byte_range endless{1_B, bytes::max()};
  EXPECT_EQ(code_of(of.touched_by({&endless, 1})), errc::invalid_argument);
}

TEST(byte_ranges, contain_the_pages_that_lie_in_them_as_a_whole) {
  const page_ranges of{4_MiB, 40_MiB};
  const auto within = [&](std::vector<byte_range> ranges) { return of.within(ranges, 10); };
  EXPECT_THAT(within({{0_B, 4_MiB - 1_B}}), IsEmpty());
  EXPECT_THAT(within({{0_B, 4_MiB}}), ElementsAre(0u));
  EXPECT_THAT(within({{1_B, 12_MiB}}), ElementsAre(1u, 2u));
  EXPECT_THAT(within({{32_MiB, bytes::max()}}), ElementsAre(8u, 9u));
  EXPECT_THAT(within({{4_MiB, 8_MiB}, {8_MiB, 4_MiB}}), ElementsAre(1u, 2u));
}

}}  // namespace weir::growable
