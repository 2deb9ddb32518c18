// SPDX-License-Identifier: Apache-2.0
// Which pages are kept by whom.
#include "growable/holds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir::growable { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(holds, keep_the_pages_that_are_committed_when_they_begin) {
  page_table pages{4};
  pages.set(0, page_state::committed);
  pages.set(2, page_state::committed);
  holds all;
  const auto first = all.add(pages);
  EXPECT_THAT(first->pages, ElementsAre(0u, 2u));
  pages.set(3, page_state::committed);
  EXPECT_EQ(pages.holds(0), 1u);
  EXPECT_EQ(pages.holds(3), 0u);
  EXPECT_THAT(all.sweep(pages), IsEmpty());
}

TEST(holds, let_go_of_pages_when_the_last_one_ends) {
  page_table pages{4};
  pages.set(0, page_state::committed);
  pages.set(1, page_state::committed);
  holds all;
  const auto first = all.add(pages);
  const auto second = all.add(pages);
  pages.set(0, page_state::held);
  first->ended = true;
  EXPECT_THAT(all.sweep(pages), IsEmpty());  // the second keeps it
  EXPECT_EQ(pages.holds(0), 1u);
  EXPECT_FALSE(all.empty());
  second->ended = true;
  EXPECT_THAT(all.sweep(pages), ElementsAre(0u));  // page 1 is committed still
  EXPECT_EQ(pages.holds(1), 0u);
  EXPECT_TRUE(all.empty());
}

}}  // namespace weir::growable
