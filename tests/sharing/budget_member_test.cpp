// SPDX-License-Identifier: Apache-2.0
// Members of a budget: what they may have, who gives way to whom, and what a changed share does.
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "sharing/budget_fixture.hpp"
#include "support/sanitizers.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- Joining and leaving -------------------------------------------------------------------------

TEST_F(budget_test, a_member_is_in_the_page_until_it_leaves) {
  auto memory = make();
  const bytes before = memory.limit();
  {
    const auto member = join(memory, options("one", 256_MiB, 1_GiB, 7));
    const budget_row shown = row("one");
    EXPECT_EQ(shown.process, ::getpid());
    EXPECT_EQ(shown.share, (budget_share{256_MiB, 1_GiB, 7}));
    EXPECT_EQ(shown.held, 0_B);
    EXPECT_EQ(shown.asked, 0_B);
    EXPECT_EQ(shown.given, 0_B);
    EXPECT_EQ(memory.limit(), 1_GiB);
    EXPECT_EQ(member->share().value(), (budget_share{256_MiB, 1_GiB, 7}));
    const auto listing = read_budgets(pages.path()).value();
    EXPECT_EQ(listing.cards.front().card, card());
    EXPECT_EQ(listing.cards.front().capacity, card_size);
    EXPECT_EQ(to_string(listing),
              "1 cards\ncard " + card() + ", capacity 2 GiB\nprocess " +
                  std::to_string(::getpid()) + ", number " + std::to_string(shown.number) +
                  ", name one, floor 256 MiB, ceiling 1 GiB, priority 7, held 0 B, asked 0 B, "
                  "given 0 B");
  }
  EXPECT_EQ(rows().size(), 0u);
  EXPECT_EQ(memory.limit(), before);
}

TEST_F(budget_test, a_ceiling_above_the_card_is_the_card_and_names_come_from_the_program) {
  auto memory = make();
  const auto member = budget_member::join(memory, {.folder = pages.path(), .period = 0ms}).value();
  ASSERT_EQ(rows().size(), 1u);
  EXPECT_EQ(rows().front().share, (budget_share{0_B, card_size, 0}));
  EXPECT_EQ(rows().front().name, detail::name_of_process(::getpid()));
  EXPECT_EQ(memory.limit(), card_size);
}

TEST_F(budget_test, shares_that_cannot_be_are_refused) {
  auto memory = make();
  const auto code = [&](const budget_options& how) {
    return code_of(budget_member::join(memory, how));
  };
  EXPECT_EQ(code(options("x", 2_MiB, 1_MiB)), errc::invalid_argument);
  EXPECT_EQ(code(options("x", 0_B, 0_B)), errc::invalid_argument);
  EXPECT_EQ(code(options("x", 3_GiB, bytes::max())), errc::invalid_argument);
  EXPECT_EQ(code(options("x", 0_B, 1_GiB, 1001)), errc::invalid_argument);
  EXPECT_EQ(code(options("x", 0_B, 1_GiB, -1001)), errc::invalid_argument);
  EXPECT_EQ(code(options("a name of thirty-two characters!", 0_B, 1_GiB)), errc::invalid_argument);
  EXPECT_EQ(code(options("two\nlines", 0_B, 1_GiB)), errc::invalid_argument);
  EXPECT_EQ(code(options("gr\xc3\xbcn", 0_B, 1_GiB)), errc::invalid_argument);
  auto how = options("x", 0_B, 1_GiB);
  how.period = -1ms;
  EXPECT_EQ(code(how), errc::invalid_argument);
  how = options("x", 0_B, 1_GiB);
  how.patience = 2h;
  EXPECT_EQ(code(how), errc::invalid_argument);
  EXPECT_EQ(rows().size(), 0u);
  const auto limit = memory.limit();
  const auto kept = join(memory, options("~thirty-one characters are fine", 0_B, 1_GiB, -1000));
  EXPECT_EQ(row("~thirty-one characters are fine").share.priority, -1000);
  EXPECT_NE(memory.limit(), limit);

  caching_allocator gone = make();
  const caching_allocator taken = std::move(gone);
  EXPECT_EQ(code_of(budget_member::join(gone, options("x", 0_B, 1_GiB))), errc::moved_from);
  auto closed = make();
  ASSERT_TRUE(closed.close());
  EXPECT_EQ(code_of(budget_member::join(closed, options("x", 0_B, 1_GiB))), errc::closed);
}

TEST_F(budget_test, floors_may_not_pass_the_card_and_the_error_says_who_has_what) {
  auto first = make();
  auto second = make();
  const auto trainer = join(first, options("trainer", 1_GiB, 2_GiB, 3));
  void* const block = first.allocate(64_MiB, on);
  ASSERT_TRUE(trainer->serve());
  const auto refused = budget_member::join(second, options("server", 1_GiB + 2_MiB, 2_GiB));
  ASSERT_EQ(code_of(refused), errc::limit_exceeded);
  EXPECT_EQ(refused.error().requested(), 1_GiB + 2_MiB);
  EXPECT_EQ(refused.error().detail(),
            "the floors of others leave 1 GiB of the card's 2 GiB: trainer (process " +
                std::to_string(::getpid()) + ", floor 1 GiB, priority 3) holds 64 MiB");
  EXPECT_EQ(rows().size(), 1u);
  const auto server = join(second, options("server", 1_GiB, 2_GiB));
  EXPECT_EQ(code_of(server->set_share({1_GiB + 1_B, 2_GiB, 0})), errc::limit_exceeded);
  EXPECT_EQ(row("server").share, (budget_share{1_GiB, 2_GiB, 0}));
  first.deallocate(block, on);
}

TEST_F(budget_test, all_places_can_be_taken) {
  auto memory = make();
  std::vector<std::unique_ptr<budget_member>> members;
  for (std::size_t i = 0; i < budget::most_members; ++i)
    members.push_back(join(memory, options("many", 0_B, 1_GiB)));
  EXPECT_EQ(rows().size(), budget::most_members);
  const auto refused = budget_member::join(memory, options("more", 0_B, 1_GiB));
  ASSERT_EQ(code_of(refused), errc::limit_exceeded);
  EXPECT_THAT(refused.error().detail(), HasSubstr("a card can have 64 members: many (process "));
  members[10].reset();
  members[10] = join(memory, options("more", 0_B, 1_GiB));
  EXPECT_EQ(rows()[10].name, "more");
}

TEST_F(budget_test, two_cards_have_two_pages) {
  auto memory = make();
  auto other = caching_allocator::create(gpu(1)).value();
  const auto here = join(memory, options("here", 2_GiB, 2_GiB));
  const auto there = join(other, options("there", 2_GiB, 2_GiB));
  const auto listing = read_budgets(pages.path()).value();
  ASSERT_EQ(listing.cards.size(), 2u);
  EXPECT_EQ(listing.cards[0].members.front().name, "here");
  EXPECT_EQ(listing.cards[1].members.front().name, "there");
}

TEST_F(budget_test, a_share_goes_with_its_allocator) {
  auto memory = std::make_unique<caching_allocator>(make());
  const auto member = join(*memory, serving("short", 1_GiB, 2_GiB));
  memory.reset();
  EXPECT_TRUE(comes([&] { return rows().empty(); }));
  EXPECT_EQ(code_of(member->serve()), errc::closed);
  EXPECT_EQ(code_of(member->set_share({})), errc::closed);
  EXPECT_EQ(code_of(member->share()), errc::closed);
}

/// Whether or not somebody still has a handle, and without waiting for a thread to look.
TEST_F(budget_test, a_share_ends_when_its_allocator_is_closed) {
  auto memory = make();
  const auto without_thread = join(memory, options("short", 1_GiB, 2_GiB));
  const auto with_thread = join(memory, serving("shorter", 0_B, 2_GiB));
  cache(memory, 64_MiB);
  ASSERT_EQ(rows().size(), 2u);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(rows().size(), 0u);
  for (const auto* const each : {&without_thread, &with_thread}) {
    EXPECT_EQ(code_of((*each)->serve()), errc::closed);
    EXPECT_EQ(code_of((*each)->set_share({})), errc::closed);
    EXPECT_EQ(code_of((*each)->share()), errc::closed);
  }
  EXPECT_EQ(rows().size(), 0u) << "nobody took the place again";
  auto next = make();
  EXPECT_NE(join(next, options("next", 2_GiB, 2_GiB)), nullptr) << "the floor is free";
}

TEST_F(budget_test, a_share_that_ends_with_the_last_handle_ends_at_once) {
  std::unique_ptr<budget_member> member;
  {
    auto memory = make();
    member = join(memory, options("short", 1_GiB, 2_GiB));
  }
  EXPECT_EQ(rows().size(), 0u);
}

/// Members look at the page, give way and change their shares while their allocators are closed.
TEST_F(budget_test, no_place_is_left_of_allocators_that_close_while_members_serve) {
  for (int round = 0; round < 20; ++round) {
    auto memory = make();
    auto member = join(memory, serving("busy", 0_B, 2_GiB));
    std::thread serving_thread{[&] {
      for (int i = 0; i < 20; ++i) {
        static_cast<void>(member->serve());
        static_cast<void>(member->set_share({0_B, 1_GiB, i}));
      }
    }};
    ASSERT_TRUE(memory.close());
    EXPECT_EQ(rows().size(), 0u);
    serving_thread.join();
    EXPECT_EQ(rows().size(), 0u);
    if (round % 2 == 0) memory = make();  // the handle goes before the member
    member.reset();
  }
}

// --- Giving way ----------------------------------------------------------------------------------

TEST_F(budget_test, a_request_within_the_floor_gets_what_others_cache_above_theirs) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, serving("other", 512_MiB, 2_GiB, 9));
  cache(others, usable);
  const auto member = join(mine, options("mine", 1_GiB, 2_GiB, 0));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  void* const block = mine.allocate(1_GiB, on);
  EXPECT_EQ(others.stats().reserved.current, usable - 1_GiB);
  EXPECT_EQ(row("other").held, usable - 1_GiB);
  EXPECT_EQ(row("other").given, 1_GiB);
  EXPECT_EQ(row("other").asked, 0_B);
  mine.deallocate(block, on);
}

/// The page has what a member held when it last looked: nothing, here.
TEST_F(budget_test, who_has_grown_since_it_last_looked_gives_way_as_well) {
  auto mine = make();
  auto others = make();
  auto how = options("other", 512_MiB, 2_GiB, 9);
  how.period = 300ms;
  const auto other = join(others, how);
  const auto member = join(mine, options("mine", 1_GiB, 2_GiB, 0));
  cache(others, usable);
  const bytes known = row("other").held;
  const auto block = mine.try_allocate(1_GiB, on);
  ASSERT_TRUE(block) << block.error().message();
  // A machine that is busy may have looked before.
  EXPECT_THAT(known, ::testing::AnyOf(0_B, usable));
  EXPECT_EQ(others.stats().reserved.current, usable - 1_GiB);
  EXPECT_EQ(row("other").held, usable - 1_GiB);
  EXPECT_EQ(row("other").given, 1_GiB);
  mine.deallocate(*block, on);
}

TEST_F(budget_test, who_looks_and_has_nothing_to_spare_goes_on_without_a_pause) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, serving("other", 512_MiB, 2_GiB));
  const auto member = join(mine, options("mine", 1536_MiB, 2_GiB));
  void* const live = others.allocate(512_MiB, on);
  EXPECT_EQ(code_of(mine.try_allocate(1536_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(row("other").held, 512_MiB);
  EXPECT_EQ(row("other").given, 0_B);
  EXPECT_EQ(others.limit(), card_size);
  others.deallocate(live, on);
}

TEST_F(budget_test, nobody_gives_below_the_floor) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, serving("other", 1280_MiB, 2_GiB));
  cache(others, usable);
  const auto member = join(mine, options("mine", 768_MiB, 2_GiB));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  const auto refused = mine.try_allocate(768_MiB, on);  // with the context it is more than there is
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(others.stats().reserved.current, 1280_MiB);
  EXPECT_THAT(
      refused.error().detail(),
      HasSubstr("Other users of the device hold 1.31 GiB of the device's 2 GiB: have them release "
                "64 MiB. Of these: other (process " +
                std::to_string(::getpid()) + ", floor 1.25 GiB, priority 0) holds 1.25 GiB."));
}

TEST_F(budget_test, who_has_nothing_to_spare_is_not_waited_for) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, options("other", 512_MiB, 2_GiB));  // and would never answer
  void* const live = others.allocate(512_MiB, on);
  cache(mine, 1_GiB);
  ASSERT_TRUE(mine.empty_cache());
  ASSERT_TRUE(other->serve());
  auto how = options("mine", 1_GiB, 2_GiB);
  how.patience = 1h;
  const auto member = join(mine, how);
  EXPECT_EQ(code_of(mine.try_allocate(1536_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(row("other").asked, 0_B);
  others.deallocate(live, on);
}

TEST_F(budget_test, above_the_floor_only_lower_priorities_give_way) {
  auto mine = make();
  auto same = make();
  auto low = make();
  const auto first = join(same, serving("same", 0_B, 2_GiB, 5));
  const auto second = join(low, serving("low", 0_B, 2_GiB, 4));
  cache(same, 1_GiB);
  cache(low, usable - 1_GiB);
  const auto member = join(mine, options("mine", 0_B, 2_GiB, 5));
  ASSERT_TRUE(comes([&] { return row("same").held + row("low").held == usable; }));
  void* const block = mine.allocate(512_MiB, on);
  EXPECT_EQ(same.stats().reserved.current, 1_GiB);
  EXPECT_EQ(low.stats().reserved.current, usable - 1536_MiB);
  EXPECT_EQ(code_of(mine.try_allocate(512_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(same.stats().reserved.current, 1_GiB) << "it is no less important";
  mine.deallocate(block, on);
}

TEST_F(budget_test, the_lowest_priority_gives_first_and_then_the_next) {
  auto mine = make();
  auto middle = make();
  auto low = make();
  const auto first = join(middle, serving("middle", 256_MiB, 2_GiB, 1));
  const auto second = join(low, serving("low", 256_MiB, 2_GiB, 0));
  cache(middle, 1_GiB);
  cache(low, usable - 1_GiB);
  const auto member = join(mine, options("mine", 1_GiB, 2_GiB, 2));
  ASSERT_TRUE(comes([&] { return row("middle").held + row("low").held == usable; }));
  void* const one = mine.allocate(512_MiB, on);
  EXPECT_EQ(row("low").given, 512_MiB);
  EXPECT_EQ(row("middle").given, 0_B);
  void* const two = mine.allocate(512_MiB, on);
  EXPECT_EQ(row("low").held, 256_MiB);
  EXPECT_EQ(row("low").given, usable - 1_GiB - 256_MiB);
  EXPECT_EQ(row("middle").given, 1_GiB - row("low").given);
  mine.deallocate(one, on);
  mine.deallocate(two, on);
}

TEST_F(budget_test, live_memory_stays_and_evictable_memory_goes) {
  auto mine = make();
  auto others = make();
  const tag stash = tag::named("budget stash").value();
  ASSERT_TRUE(others.declare_suspendable(
      stash, {.evictable = true, .eviction = {.contents = suspended_contents::discard}}));
  void* stashed = nullptr;
  {
    const tag_scope scope{stash};
    stashed = others.allocate(512_MiB, on);
  }
  void* const live = others.allocate(usable - 512_MiB, on);
  const auto other = join(others, serving("other", 256_MiB, 2_GiB));
  const auto member = join(mine, options("mine", 1_GiB, 2_GiB));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  void* const block = mine.allocate(512_MiB, on);
  EXPECT_TRUE(others.is_suspended(stash));
  EXPECT_EQ(row("other").held, usable - 512_MiB);
  EXPECT_EQ(row("other").given, 512_MiB);
  const auto refused = mine.try_allocate(512_MiB, on);
  ASSERT_EQ(code_of(refused), errc::out_of_memory) << "the rest is live";
  EXPECT_EQ(row("other").held, usable - 512_MiB);
  mine.deallocate(block, on);
  ASSERT_TRUE(mine.empty_cache());
  const auto back = others.resume(stash);  // which waits until the pause is over
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->reserved, 512_MiB);
  others.deallocate(stashed, on);
  others.deallocate(live, on);
}

TEST_F(budget_test, memory_that_comes_back_is_given_way_to_as_a_request_is) {
  auto mine = make();
  auto others = make();
  const tag stash = tag::named("budget comes back").value();
  ASSERT_TRUE(mine.declare_suspendable(stash));
  void* stashed = nullptr;
  {
    const tag_scope scope{stash};
    stashed = mine.allocate(512_MiB, on);
  }
  ASSERT_TRUE(mine.suspend(stash, {.contents = suspended_contents::discard}));
  const auto other = join(others, serving("other", 1_GiB, 2_GiB));
  cache(others, usable);
  const auto member = join(mine, options("mine", 512_MiB, 2_GiB));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  const auto back = mine.resume(stash);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->reserved, 512_MiB);
  EXPECT_EQ(row("other").given, 512_MiB);
  ASSERT_TRUE(mine.suspend(stash, {.contents = suspended_contents::discard}));
  ASSERT_TRUE(member->set_share({256_MiB, 2_GiB, 0}));
  ASSERT_TRUE(comes([&] { return others.limit() == card_size; })) << "it may grow again";
  ASSERT_TRUE(others.empty_cache());
  cache(others, usable);
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  const auto refused = mine.resume(stash);
  ASSERT_EQ(code_of(refused), errc::out_of_memory) << "it is above the floor";
  EXPECT_THAT(refused.error().detail(), HasSubstr("Of these: other (process "));
  EXPECT_EQ(row("other").given, 512_MiB);
  mine.deallocate(stashed, on);
}

TEST_F(budget_test, work_that_uses_cached_memory_is_waited_for) {
  auto mine = make();
  auto others = make();
  const stream busy = new_stream();
  void* const used = others.allocate(usable, busy);
  write(busy, used, 4_KiB);
  others.deallocate(used, busy);
  const auto other = join(others, serving("other", 0_B, 2_GiB));
  const auto member = join(mine, options("mine", 1_GiB, 2_GiB));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  void* const block = mine.allocate(512_MiB, on);
  EXPECT_EQ(row("other").given, 512_MiB);
  mine.deallocate(block, on);
}

TEST_F(budget_test, a_request_above_the_ceiling_asks_nobody) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, serving("other", 0_B, 2_GiB));
  cache(others, 1_GiB);
  const auto member = join(mine, options("mine", 256_MiB, 256_MiB, 9));
  ASSERT_TRUE(comes([&] { return row("other").held == 1_GiB; }));
  const auto refused = mine.try_allocate(512_MiB, on);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_THAT(refused.error().detail(),
              HasSubstr("The ceiling of the allocator's budget share, 256 MiB, is in the way"));
  EXPECT_EQ(row("other").given, 0_B);
}

TEST_F(budget_test, a_request_up_to_the_ceiling_asks_others) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, serving("other", 0_B, 2_GiB));
  cache(others, usable);
  const auto member = join(mine, options("mine", 0_B, 512_MiB, 9));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  void* const block = mine.allocate(512_MiB, on);
  EXPECT_EQ(row("other").given, 512_MiB);
  mine.deallocate(block, on);
}

TEST_F(budget_test, who_does_not_answer_is_waited_for_as_long_as_patience_lasts) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, options("other", 0_B, 2_GiB));
  cache(others, usable);
  ASSERT_TRUE(other->serve());
  auto how = options("mine", 1_GiB, 2_GiB);
  how.patience = 30ms;
  const auto member = join(mine, how);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(code_of(mine.try_allocate(1_GiB, on)), errc::out_of_memory);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 30ms);
  EXPECT_EQ(row("other").asked, 0_B) << "it is not wanted any more";
  EXPECT_EQ(other->serve().value(), 0_B);
  EXPECT_EQ(others.stats().reserved.current, usable);
}

TEST_F(budget_test, who_gave_way_takes_no_more_for_a_while_and_then_goes_on) {
  auto mine = make();
  auto others = make();
  const auto other = join(others, serving("other", 0_B, 2_GiB));
  cache(others, usable);
  const auto member = join(mine, options("mine", 1_GiB, 2_GiB));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  const auto begun = std::chrono::steady_clock::now();
  void* const block = mine.allocate(512_MiB, on);
  const bytes limit = others.limit();
  // The pause lasts 200 ms; a machine that is busy may be back later.
  if (std::chrono::steady_clock::now() - begun < 200ms) {
    EXPECT_EQ(limit, usable - 512_MiB);
  }
  mine.deallocate(block, on);
  ASSERT_TRUE(mine.empty_cache());
  // The request waits until the pause is over; it does not fail.
  void* const more = others.allocate(usable - 256_MiB, on);
  EXPECT_EQ(others.limit(), card_size);
  others.deallocate(more, on);
}

/// It waits for the end of the pause, and then asks as any other does.
TEST_F(budget_test, who_gave_way_a_moment_ago_may_ask_others) {
  auto mine = make();
  auto above = make();
  auto below = make();
  const auto member = join(mine, options("mine", 1_GiB, 2_GiB, 1));
  const auto higher = join(above, options("above", 0_B, 2_GiB, 2));
  const auto lower = join(below, serving("below", 0_B, 2_GiB, 0));
  cache(mine, 1280_MiB);
  ASSERT_TRUE(member->serve());
  std::thread asking{[&] { above.deallocate(above.allocate(768_MiB, on), on); }};
  EXPECT_TRUE(comes([&] { return requests_of("mine") != 0; }));
  EXPECT_GT(member->serve().value(), 0_B);
  asking.join();
  EXPECT_LT(mine.limit(), card_size);
  ASSERT_TRUE(above.empty_cache());
  ASSERT_TRUE(mine.empty_cache());
  cache(below, usable);
  ASSERT_TRUE(comes([&] { return row("below").held == usable; }));
  const auto block = mine.try_allocate(512_MiB, on);
  ASSERT_TRUE(block) << block.error().message();
  EXPECT_EQ(row("below").given, 512_MiB);
  mine.deallocate(*block, on);
}

TEST_F(budget_test, two_who_ask_at_once_get_both_what_they_need) {
  auto others = make();
  auto first = make();
  auto second = make();
  const auto other = join(others, serving("other", 0_B, 2_GiB));
  cache(others, usable);
  const auto one = join(first, serving("one", 512_MiB, 2_GiB));
  const auto two = join(second, serving("two", 512_MiB, 2_GiB));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  void* a = nullptr;
  void* b = nullptr;
  const stream further = new_stream();
  std::thread beside{[&] { a = first.try_allocate(512_MiB, on).value_or(nullptr); }};
  b = second.try_allocate(512_MiB, further).value_or(nullptr);
  beside.join();
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_GE(row("other").given, 1_GiB);
  EXPECT_EQ(others.stats().reserved.current, usable - row("other").given);
  first.deallocate(a, on);
  second.deallocate(b, further);
}

/// The page does not say what `other` caches: both have it look, the second one while it was not
/// heard of since the first.
TEST_F(budget_test, two_who_ask_a_member_to_look_at_once_get_both_what_they_need) {
  auto others = make();
  auto first = make();
  auto second = make();
  auto how = options("other", 0_B, 2_GiB);
  how.period = 1h;  // it looks when the test says so
  const auto other = join(others, how);
  const auto one = join(first, options("one", 512_MiB, 2_GiB));
  const auto two = join(second, options("two", 512_MiB, 2_GiB));
  cache(others, usable);
  const stream further = new_stream();
  std::atomic<int> ended{0};
  void* a = nullptr;
  void* b = nullptr;
  std::thread asks_first{[&] {
    a = first.try_allocate(512_MiB, on).value_or(nullptr);
    ++ended;
  }};
  ASSERT_TRUE(comes([&] { return requests_of("other") == 1; }));
  std::thread asks_second{[&] {
    b = second.try_allocate(512_MiB, further).value_or(nullptr);
    ++ended;
  }};
  EXPECT_TRUE(comes([&] { return requests_of("other") == 2 || ended != 0; }));
  EXPECT_EQ(ended, 0) << "nobody gives up before other has looked";
  EXPECT_TRUE(comes([&] { return other->serve() && ended == 2; }));
  asks_first.join();
  asks_second.join();
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  first.deallocate(a, on);
  second.deallocate(b, further);
}

TEST_F(budget_test, a_member_that_did_not_look_in_time_is_not_waited_for_again) {
  auto mine = make();
  auto others = make();
  auto how = options("other", 0_B, 2_GiB);
  how.period = 1h;
  const auto other = join(others, how);
  how = options("mine", 1_GiB, 2_GiB);
  how.patience = 30ms;
  const auto member = join(mine, how);
  cache(others, usable);
  EXPECT_EQ(code_of(mine.try_allocate(512_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(requests_of("other"), 1u);
  EXPECT_EQ(code_of(mine.try_allocate(512_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(requests_of("other"), 1u);
  ASSERT_TRUE(others.empty_cache());
  ASSERT_TRUE(other->serve());
  cache(others, usable);
  EXPECT_EQ(code_of(mine.try_allocate(512_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(requests_of("other"), 2u) << "it has looked since";
}

// --- Changes from outside ------------------------------------------------------------------------

TEST_F(budget_test, a_changed_share_is_noticed) {
  auto memory = make();
  const auto member = join(memory, serving("one", 256_MiB, 2_GiB, 0));
  cache(memory, 1_GiB);
  const int number = row("one").number;
  ASSERT_TRUE(change_budget(card(), ::getpid(), number, {128_MiB, 512_MiB, 4}, pages.path()));
  EXPECT_EQ(row("one").share, (budget_share{128_MiB, 512_MiB, 4}));
  EXPECT_TRUE(comes([&] { return memory.limit() == 512_MiB; }));
  EXPECT_TRUE(comes([&] { return memory.stats().reserved.current == 512_MiB; })) << "and trimmed";
  EXPECT_EQ(member->share().value(), (budget_share{128_MiB, 512_MiB, 4}));
  EXPECT_EQ(code_of(change_budget(card(), ::getpid(), number, {1_GiB, 512_MiB, 4}, pages.path())),
            errc::invalid_argument);
  EXPECT_EQ(code_of(change_budget(card(), ::getpid(), number + 1, {}, pages.path())),
            errc::not_found);
  EXPECT_EQ(code_of(change_budget("GPU-none", ::getpid(), number, {}, pages.path())),
            errc::invalid_argument);
  ASSERT_TRUE(member->set_share({0_B, 1_GiB, 1}));
  EXPECT_EQ(memory.limit(), 1_GiB);
}

TEST_F(budget_test, a_member_whose_page_was_removed_joins_anew) {
  auto memory = make();
  const auto member = join(memory, options("one", 256_MiB, 1_GiB, 2));
  ASSERT_EQ(::unlink(page_path().c_str()), 0);
  EXPECT_EQ(code_of(member->share()), errc::not_found);
  EXPECT_EQ(code_of(clear_budgets(pages.path())), std::nullopt);
  ASSERT_TRUE(member->serve());
  EXPECT_EQ(row("one").share, (budget_share{256_MiB, 1_GiB, 2}));
}

TEST_F(budget_test, a_user_who_sets_the_limit_keeps_it) {
  auto memory = make();
  {
    const auto member = join(memory, options("one", 0_B, 1_GiB));
    ASSERT_TRUE(memory.set_limit(512_MiB));
    ASSERT_TRUE(member->serve());
    EXPECT_EQ(memory.limit(), 512_MiB);
  }
  EXPECT_EQ(memory.limit(), 512_MiB);
}

TEST_F(budget_test, the_smaller_of_a_users_limit_and_the_ceiling_counts) {
  auto memory = make({.limit = 700_MiB});
  listener told;
  const auto registration = memory.add_observer(told).value();
  static_cast<void>(told.take());
  const auto limits_told = [&] {
    std::vector<bytes> all;
    for (const memory_event& each : told.take())
      if (each.kind == memory_event_kind::limit) all.push_back(bytes{each.size});
    return all;
  };
  auto member = join(memory, options("one", 0_B, 1_GiB));
  EXPECT_EQ(memory.limit(), 700_MiB) << "joining raises no limit";
  EXPECT_THAT(limits_told(), ElementsAre());
  ASSERT_TRUE(memory.set_limit(bytes::max()));
  EXPECT_EQ(memory.limit(), 1_GiB) << "the ceiling holds";
  EXPECT_THAT(limits_told(), ElementsAre(1_GiB));
  ASSERT_TRUE(member->serve());
  EXPECT_EQ(memory.limit(), 1_GiB);
  const auto refused = memory.try_allocate(1_GiB + 512_MiB, on);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_THAT(refused.error().detail(),
              HasSubstr("The ceiling of the allocator's budget share, 1 GiB"));
  ASSERT_TRUE(memory.set_limit_fraction(1.0));
  EXPECT_EQ(memory.limit(), 1_GiB);
  ASSERT_TRUE(member->set_share({0_B, 512_MiB, 0}));
  EXPECT_EQ(memory.limit(), 512_MiB);
  ASSERT_TRUE(memory.set_limit(256_MiB));
  EXPECT_EQ(memory.limit(), 256_MiB);
  EXPECT_THAT(memory.try_allocate(512_MiB, on).error().detail(),
              HasSubstr("The allocator's limit of 256 MiB is in the way"));
  ASSERT_TRUE(member->set_share({0_B, 128_MiB, 0}));
  EXPECT_EQ(memory.limit(), 128_MiB);
  EXPECT_THAT(limits_told(), ElementsAre(1_GiB, 512_MiB, 256_MiB, 128_MiB));
  member.reset();
  EXPECT_EQ(memory.limit(), 256_MiB) << "the user's own, set last";
}

TEST_F(budget_test, of_several_shares_of_an_allocator_the_lowest_ceiling_counts) {
  auto memory = make();
  auto first = join(memory, options("first", 0_B, 512_MiB));
  auto second = join(memory, options("second", 0_B, 1_GiB));
  EXPECT_EQ(memory.limit(), 512_MiB);
  first.reset();
  EXPECT_EQ(memory.limit(), 1_GiB);
  first = join(memory, options("first", 0_B, 256_MiB));
  second.reset();
  EXPECT_EQ(memory.limit(), 256_MiB);
  first.reset();
  EXPECT_EQ(memory.limit(), bytes::max());
}

/// Its own memory is evicted by priority alone.
TEST_F(budget_test, an_allocator_with_several_shares_does_not_ask_itself) {
  auto memory = make();
  const auto first = join(memory, serving("first", 0_B, 2_GiB, 1));
  const auto second = join(memory, serving("second", 0_B, 2_GiB, 0));
  const tag high = tag::named("budget high").value();
  const tag low = tag::named("budget low").value();
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 5}));
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true, .priority = 1}));
  const auto allocate = [&](tag with, bytes size) {
    const tag_scope scope{with};
    return memory.try_allocate(size, on);
  };
  void* const block = allocate(high, 1536_MiB).value();
  ASSERT_TRUE(comes([&] { return row("second").held == 1536_MiB; }));
  EXPECT_EQ(code_of(allocate(low, 512_MiB)), errc::out_of_memory);
  EXPECT_FALSE(memory.is_suspended(high));
  EXPECT_EQ(requests_of("first") + requests_of("second"), 0u);
  memory.deallocate(block, on);
}

TEST_F(budget_test, a_request_above_the_users_own_limit_asks_nobody) {
  auto mine = make({.limit = 256_MiB});
  auto others = make();
  const auto other = join(others, serving("other", 0_B, 2_GiB));
  cache(others, usable);
  const auto member = join(mine, options("mine", 1_GiB, 1_GiB, 9));
  ASSERT_TRUE(comes([&] { return row("other").held == usable; }));
  EXPECT_EQ(code_of(mine.try_allocate(512_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(row("other").given, 0_B);
  void* const block = mine.allocate(256_MiB, on);
  EXPECT_EQ(row("other").given, 256_MiB);
  mine.deallocate(block, on);
}

// --- Trouble -------------------------------------------------------------------------------------

TEST_F(budget_test, trouble_with_the_page_is_reported_once_and_memory_goes_on) {
  auto memory = make();
  const auto member = join(memory, serving("one", 0_B, 1_GiB));
  ASSERT_EQ(::truncate(page_path().c_str(), 100), 0);
  std::vector<error> told;
  EXPECT_TRUE(comes([&] {
    for (error& each : heard.take()) told.push_back(std::move(each));
    return !told.empty();
  }));
  std::this_thread::sleep_for(30ms);
  for (error& each : heard.take()) told.push_back(std::move(each));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told.front().code(), errc::invalid_argument);
  EXPECT_EQ(told.front().detail(), page_path() + ": not a budget file");
  void* const block = memory.allocate(64_MiB, on);
  memory.deallocate(block, on);
  EXPECT_EQ(code_of(memory.try_allocate(3_GiB, on)), errc::out_of_memory);
  ASSERT_EQ(::unlink(page_path().c_str()), 0);
  EXPECT_TRUE(comes([&] { return rows().size() == 1; })) << "it joins anew";
}

TEST_F(budget_test, a_forked_child_is_no_member) {
  if (with_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer does not know the parent's threads in a child";
  }
  auto memory = make();
  const auto member = join(memory, serving("parent", 256_MiB, 1_GiB));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_right = code_of(member->serve()) == errc::driver_gone &&
                          code_of(member->share()) == errc::driver_gone &&
                          code_of(member->set_share({})) == errc::driver_gone;
    delete const_cast<std::unique_ptr<budget_member>&>(member).release();
    ::_exit(is_right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(row("parent").share, (budget_share{256_MiB, 1_GiB, 0}));
  ASSERT_TRUE(member->set_share({0_B, 512_MiB, 0}));
  EXPECT_EQ(row("parent").share, (budget_share{0_B, 512_MiB, 0}));
}

// --- Options -------------------------------------------------------------------------------------

TEST(budget_text, is_read_as_it_is_documented) {
  const auto all = parse_budget(
      "floor=8GiB,ceiling=20GiB,priority=-2,name=trainer,folder=/tmp/x,period=5ms,patience=100");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->share, (budget_share{8_GiB, 20_GiB, -2}));
  EXPECT_EQ(all->name, "trainer");
  EXPECT_EQ(all->folder, "/tmp/x");
  EXPECT_EQ(all->period, 5ms);
  EXPECT_EQ(all->patience, 100ms);
  EXPECT_EQ(parse_budget("floor=1MiB ceiling=2MiB")->share, (budget_share{1_MiB, 2_MiB, 0}));
  EXPECT_EQ(parse_budget("")->share, budget_share{});
  const auto why = [](std::string_view text) {
    const auto read = parse_budget(text);
    EXPECT_EQ(code_of(read), errc::bad_option) << text;
    return read ? "" : read.error().detail();
  };
  EXPECT_EQ(why("floor"), "budget: \"floor\": expected name=value");
  EXPECT_EQ(why("floor=lots"), "budget: floor cannot be \"lots\"");
  EXPECT_EQ(why("priority=2x"), "budget: priority cannot be \"2x\"");
  EXPECT_EQ(why("period=-5"), "budget: period cannot be \"-5\"");
  EXPECT_EQ(why("name="), "budget: name cannot be \"\"");
  EXPECT_EQ(why("floor=1,floor=2"), "budget: floor is given twice");
  EXPECT_EQ(why("roof=1"),
            "budget: \"roof\" is unknown; expected floor, ceiling, priority, name, folder, period "
            "or patience");
  EXPECT_EQ(to_string(budget_share{1_MiB, bytes::max(), 2}),
            "floor 1 MiB, ceiling none, priority 2");
}

TEST_F(budget_test, an_allocator_joins_because_its_options_say_so) {
  allocator_options settings;
  settings.budget = "floor=128MiB,ceiling=1GiB,name=opted,period=0,folder=" + pages.path();
  {
    const auto memory = make(settings);
    EXPECT_EQ(row("opted").share, (budget_share{128_MiB, 1_GiB, 0}));
    EXPECT_EQ(memory.limit(), 1_GiB);
  }
  settings.budget = "floor=4GiB,folder=" + pages.path();
  EXPECT_EQ(code_of(caching_allocator::create(gpu(), settings)), errc::invalid_argument);
  settings.budget = "roof=4GiB";
  EXPECT_EQ(code_of(caching_allocator::create(gpu(), settings)), errc::bad_option);
}

TEST_F(budget_test, an_allocator_joins_because_the_environment_says_so) {
  ASSERT_EQ(
      ::setenv("WEIR_BUDGET", ("floor=2MiB,period=1,name=e,folder=" + pages.path()).c_str(), 1), 0);
  {
    const auto memory = make();
    EXPECT_EQ(row("e").share, (budget_share{2_MiB, card_size, 0}));
  }
  ASSERT_EQ(::setenv("WEIR_BUDGET", "floor=many", 1), 0);
  {
    const auto memory = make();  // which works all the same
    const auto told = heard.take();
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told.front().detail(), "WEIR_BUDGET: budget: floor cannot be \"many\"");
  }
  ASSERT_EQ(::setenv("WEIR_BUDGET", "off", 1), 0);
  { const auto memory = make(); }
  ::unsetenv("WEIR_BUDGET");
  EXPECT_TRUE(comes([&] { return rows().empty(); })) << "it went with its allocator";
}

}  // namespace
}  // namespace weir::testing_support
