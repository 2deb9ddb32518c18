// SPDX-License-Identifier: Apache-2.0
// Shares of a card where the host has no memory: whichever allocation fails, it is told, and no
// place stays taken.
#include "support/scarce_machine.hpp"
#include "support/scratch.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/share/budget.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

class scarce_budget : public scarce_machine {};

TEST_F(scarce_budget, leaves_no_place_taken) {
  auto memory = caching_allocator::create(gpu()).value();
  const scratch_folder folder;
  const budget_options wanted{.share = {.floor = 1_MiB},
                              .name = "thirty-one letters are the most",
                              .folder = folder.path(""),
                              .period = std::chrono::milliseconds{0}};
  sweep([&] {
    const auto member = budget_member::join(memory, wanted);
    if (met(member)) {
      met((*member)->share());
      met((*member)->set_share({.floor = 2_MiB, .ceiling = 64_MiB}));
      met((*member)->serve());
      const auto listing = read_budgets(wanted.folder);
      if (met(listing)) {
        EXPECT_EQ(listing->cards.size(), 1u);
      }
    }
  });
  EXPECT_EQ(read_budgets(wanted.folder).value().cards.at(0).members.size(), 0u);
}

TEST_F(scarce_budget, texts_are_read_or_refused) {
  sweep([&] {
    met(parse_budget("floor=8GiB,ceiling=20GiB,name=a-name-of-many-letters,folder=/a/long/folder"));
    met(parse_budget("floor=many-of-them-and-of-others-too"), errc::bad_option);
  });
}

}  // namespace
}  // namespace weir::testing_support
