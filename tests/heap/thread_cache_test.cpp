// SPDX-License-Identifier: Apache-2.0
// A thread's cache: lists by size, what others leave, and stopping it from outside.
#include "heap/thread_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace weir { inline namespace v0 { namespace heap { namespace {

struct cache_test : ::testing::Test {
  cache_test() {
    asymmetric_barrier::prepare();
    EXPECT_TRUE(records.prepare(1000));
  }
  block_index block_of(std::uint32_t units, stream_slot slot = 1) {
    const block_index made = records.make();
    block& what = records[made];
    what.units = units;
    what.address = std::uint64_t{made} << 20;
    what.stream = slot;
    what.become(block_kind::thread_cached);
    what.out = {};
    return made;
  }
  /// A block that another thread has freed.
  block_index given_block(std::uint32_t units, stream_slot slot = 1) {
    const block_index made = block_of(units, slot);
    records[made].become(block_kind::live);
    EXPECT_TRUE(claim(records[made], records[made].address));
    records[made].out.given_on = static_cast<std::uint16_t>(slot);
    return made;
  }
  /// A cache with a table for the blocks' stream, which counts accounts up to that one.
  thread_cache& open_for_account(account_number last = 0) {
    thread_cache& opened = *all.open();
    EXPECT_TRUE(opened.make_room(last));
    EXPECT_NE(opened.add_bins(stream_id{9}, 1), nullptr);
    return opened;
  }
  block_store records;
  thread_caches all{4 << 20};
};

struct nobody_listens final : event_sink {
  void on_event(const memory_event& /*event*/) noexcept override {}
};

TEST_F(cache_test, lists_are_last_in_first_out_and_by_size) {
  auto bins = std::make_unique<stream_bins>();
  const auto a = block_of(5), b = block_of(5), c = block_of(2048);
  for (const auto each : {a, b, c}) bins->push(each, records[each]);
  EXPECT_EQ(bins->heads[5], b);
  EXPECT_EQ(records[b].out.next, a);
  EXPECT_EQ(bins->heads[2048], c);
  std::vector<std::size_t> seen;
  bins->for_each_size([&](std::size_t size) {
    seen.push_back(size);
    bins->heads[size] = no_block;
    return true;
  });
  EXPECT_EQ(seen, (std::vector<std::size_t>{2048, 5}));
  bins->for_each_size([&](std::size_t) { return ADD_FAILURE() << "it is empty", true; });
}

TEST_F(cache_test, every_size_is_found_again) {
  auto bins = std::make_unique<stream_bins>();
  for (std::uint32_t size = 1; size <= most_binned_units; ++size) {
    ASSERT_TRUE(records.prepare(1));
    const auto which = block_of(size);
    bins->push(which, records[which]);
    std::size_t found = 0;
    bins->for_each_size([&](std::size_t at) {
      found = at;
      bins->heads[at] = no_block;
      return true;
    });
    ASSERT_EQ(found, size);
  }
}

TEST_F(cache_test, sizes_come_largest_first_until_somebody_has_enough) {
  auto bins = std::make_unique<stream_bins>();
  const std::vector<std::size_t> sizes{2048, 2047, 1024, 520, 512, 511, 65,
                                       64,   63,   15,   10,  9,   8,   1};
  for (const std::size_t each : sizes) {
    const auto made = block_of(static_cast<std::uint32_t>(each));
    bins->push(made, records[made]);
  }
  std::vector<std::size_t> seen;
  const auto see = [&](std::size_t stop_at, bool takes) {
    seen.clear();
    bins->for_each_size([&](std::size_t size) {
      seen.push_back(size);
      if (takes) bins->heads[size] = no_block;
      return size != stop_at;
    });
    return seen;
  };
  EXPECT_EQ(see(0, false), sizes);
  EXPECT_EQ(see(0, false), sizes) << "those that are left are found again";
  EXPECT_EQ(see(10, true), (std::vector<std::size_t>{sizes.begin(), sizes.end() - 3}));
  EXPECT_EQ(see(0, true), (std::vector<std::size_t>{9, 8, 1}));
  EXPECT_EQ(std::count(bins->touched.begin(), bins->touched.end(), true), 0);
}

TEST_F(cache_test, the_largest_size_alone_may_be_enough) {
  auto bins = std::make_unique<stream_bins>();
  const auto largest = block_of(2048), next = block_of(2047);
  for (const auto each : {largest, next}) bins->push(each, records[each]);
  int calls = 0;
  bins->for_each_size([&](std::size_t size) {
    EXPECT_EQ(size, 2048u);
    ++calls;
    return false;
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(cache_test, takes_in_what_others_left_up_to_its_bound) {
  thread_cache& mine = *all.open();
  ASSERT_TRUE(mine.make_room(0));
  ASSERT_NE(mine.add_bins(stream_id{9}, 1), nullptr);
  const auto placed = given_block(100);
  const auto other_stream = given_block(100, 2);
  EXPECT_FALSE(mine.has_remote());
  EXPECT_TRUE(mine.push_remote(placed, records[placed], 100));
  EXPECT_TRUE(mine.push_remote(other_stream, records[other_stream], 100));
  EXPECT_TRUE(mine.has_remote());
  mine.take_in_remote(records);
  EXPECT_FALSE(mine.has_remote());
  EXPECT_EQ(mine.units, 100u);
  EXPECT_EQ(mine.current->heads[100], placed);
  EXPECT_EQ(mine.unplaced, other_stream);
  EXPECT_EQ(mine.sum.frees(), 1u) << "what is not placed is not counted yet";
  EXPECT_EQ(mine.sum.change().allocated, -100 * std::int64_t{unit});
}

TEST_F(cache_test, takes_in_as_much_as_fills_it_and_not_a_unit_more) {
  thread_cache& mine = open_for_account();
  mine.units = mine.bound() - 100;
  const auto fits = given_block(100), too_much = given_block(1);
  ASSERT_TRUE(mine.push_remote(fits, records[fits], 100));
  mine.take_in_remote(records);
  EXPECT_EQ(mine.units, mine.bound());
  EXPECT_EQ(mine.current->heads[100], fits);
  ASSERT_TRUE(mine.push_remote(too_much, records[too_much], 1));
  mine.take_in_remote(records);
  EXPECT_EQ(mine.units, mine.bound());
  EXPECT_EQ(mine.unplaced, too_much);
  EXPECT_EQ(mine.unplaced_count, 1u);
  EXPECT_EQ(mine.unplaced_units, 1u);
  EXPECT_EQ(mine.sum.frees(), 1u);
}

TEST_F(cache_test, takes_in_what_it_counts) {
  thread_cache& mine = open_for_account(2);
  mine.limits[1] = true;
  std::vector<block_index> made;
  for (account_number account = 0; account < 4; ++account) {
    made.push_back(given_block(10));
    records[made[account]].account = account;
    records[made[account]].out.waste = 7;
    ASSERT_TRUE(mine.push_remote(made[account], records[made[account]], 10));
  }
  mine.take_in_remote(records);
  EXPECT_EQ(mine.unplaced, made[1]) << "its tag has a limit";
  EXPECT_EQ(records[made[1]].out.given_next, made[3]) << "it has no figures of that account";
  EXPECT_EQ(mine.unplaced_count, 2u);
  EXPECT_EQ(mine.current->heads[10], made[0]);
  EXPECT_EQ(records[made[0]].out.next, made[2]);
  EXPECT_EQ(mine.units, 20u);
  for (const std::size_t account : {0u, 2u}) {
    EXPECT_EQ(mine.deltas[account].frees(), 1u);
    EXPECT_EQ(mine.deltas[account].change().requested, -(10 * std::int64_t{unit} - 7));
    EXPECT_EQ(mine.deltas[account].change().allocated, -10 * std::int64_t{unit});
  }
  EXPECT_TRUE(mine.deltas[1].is_empty());
  EXPECT_EQ(mine.sum.frees(), 2u);
  EXPECT_EQ(mine.sum.change().allocated, -20 * std::int64_t{unit});
}

TEST_F(cache_test, a_claim_is_one_threads_and_of_a_live_block) {
  const auto made = block_of(3), other = block_of(3);
  block& it = records[made];
  EXPECT_FALSE(claim(it, it.address)) << "it is freed";
  EXPECT_FALSE(it.claimed);
  it.become(block_kind::live);
  EXPECT_FALSE(claim(it, records[other].address)) << "it is another block";
  EXPECT_FALSE(it.claimed);
  EXPECT_EQ(it.is(), block_kind::live);
  EXPECT_TRUE(claim(it, it.address));
  EXPECT_EQ(it.is(), block_kind::given_back);
  EXPECT_FALSE(claim(it, it.address));
  EXPECT_TRUE(it.claimed);
  withdraw(it);
  EXPECT_EQ(it.is(), block_kind::live);
  EXPECT_FALSE(it.claimed);
  ASSERT_TRUE(claim(it, it.address));
  EXPECT_TRUE(decide(it));
  EXPECT_EQ(it.is(), block_kind::thread_cached);
  EXPECT_FALSE(it.claimed);
}

TEST_F(cache_test, a_large_block_is_freed_without_the_lock_only_if_the_record_is_still_its_own) {
  const auto made = block_of(most_binned_units + 1), other = block_of(3);
  block& it = records[made];
  it.become(block_kind::live);
  EXPECT_FALSE(begin_free(it, records[other].address)) << "it is another block";
  EXPECT_EQ(it.is(), block_kind::live);
  EXPECT_TRUE(begin_free(it, it.address));
  EXPECT_EQ(it.is(), block_kind::thread_cached);
  EXPECT_FALSE(begin_free(it, it.address)) << "it is freed";
  EXPECT_EQ(it.is(), block_kind::thread_cached);
  // A record that stands for a smaller block now, which has a home or is claimed by who frees it.
  records[other].become(block_kind::live);
  EXPECT_FALSE(begin_free(records[other], records[other].address));
  EXPECT_EQ(records[other].is(), block_kind::live);
  // Another thread's look at a live block is no free, and no second look begins meanwhile.
  it.become(block_kind::questioned);
  EXPECT_TRUE(it.is_live());
  EXPECT_FALSE(begin_free(it, it.address));
  EXPECT_EQ(it.is(), block_kind::questioned);
}

TEST_F(cache_test, the_owners_free_of_a_claimed_block_is_the_first) {
  for (const auto kind : {block_kind::thread_cached, block_kind::live}) {
    block& it = records[given_block(3)];
    it.become(kind);  // freed, and perhaps handed out again, without a look at the claim
    EXPECT_FALSE(claim(it, it.address)) << "it is in a list";
    EXPECT_TRUE(it.claimed);
    EXPECT_FALSE(decide(it));
    EXPECT_EQ(it.is(), kind);
    EXPECT_FALSE(it.claimed);
    EXPECT_EQ(claim(it, it.address), kind == block_kind::live);
    it.become(kind);
    withdraw(it);
    EXPECT_EQ(it.is(), kind);
  }
}

TEST_F(cache_test, what_the_owner_freed_first_is_not_taken_in_twice) {
  thread_cache& mine = open_for_account();
  const auto cached = given_block(10), again = given_block(20), given = given_block(30);
  for (const auto each : {cached, again, given})
    ASSERT_TRUE(mine.push_remote(each, records[each], records[each].units));
  records[cached].become(block_kind::thread_cached);
  mine.current->push(cached, records[cached]);
  records[again].become(block_kind::live);
  mine.take_in_remote(records);
  EXPECT_EQ(mine.current->heads[10], cached);
  EXPECT_EQ(records[cached].out.next, no_block);
  EXPECT_EQ(mine.current->heads[20], no_block);
  EXPECT_EQ(mine.current->heads[30], given);
  EXPECT_FALSE(records[given].claimed);
  EXPECT_TRUE(records[cached].claimed && records[again].claimed);
  EXPECT_EQ(mine.unplaced_count, 2u) << "until somebody has the lock";
  EXPECT_EQ(mine.sum.frees(), 1u);
}

TEST_F(cache_test, several_blocks_are_left_in_one_go) {
  thread_cache& mine = open_for_account();
  const auto first = given_block(10), last = given_block(20), alone = given_block(30);
  records[first].out.given_next = last;
  ASSERT_TRUE(mine.push_remote(alone, records[alone], 30));
  ASSERT_TRUE(mine.push_remote(first, records[last], 30));
  EXPECT_EQ(mine.remote.load(), std::uint64_t{60} << 32 | first);
  EXPECT_EQ(records[last].out.given_next, alone);
  mine.take_in_remote(records);
  EXPECT_EQ(mine.remote.load(), 0u);
  EXPECT_EQ(mine.units, 60u);
  for (const auto each : {first, last, alone})
    EXPECT_EQ(mine.current->heads[records[each].units], each);
}

TEST_F(cache_test, what_is_aside_goes_home_in_one_go_or_is_left_unplaced) {
  thread_cache& mine = open_for_account();
  thread_cache& home = open_for_account();
  const auto first = given_block(10), second = given_block(20), late = given_block(30);
  mine.hand_back_aside(records);
  EXPECT_FALSE(home.has_remote()) << "nothing is aside";
  mine.set_aside(first, records[first], home);
  mine.set_aside(second, records[second], home);
  mine.hand_back_aside(records);
  EXPECT_EQ(mine.aside.count, 0u);
  EXPECT_EQ(home.remote.load(), std::uint64_t{30} << 32 | second);
  EXPECT_EQ(home.close_remote(), second) << "the list, without its units";
  EXPECT_EQ(records[second].out.given_next, first);
  EXPECT_EQ(home.close_remote(), no_block);
  mine.set_aside(late, records[late], home);
  mine.hand_back_aside(records);
  EXPECT_EQ(mine.aside.count, 0u);
  EXPECT_EQ(mine.unplaced, late) << "its home takes no more";
  EXPECT_EQ(mine.unplaced_units, 30u);
  mine.set_aside(first, records[first], home);
  mine.leave_aside_unplaced(records);
  EXPECT_EQ(mine.unplaced, first);
  EXPECT_EQ(mine.unplaced_count, 2u);
}

TEST_F(cache_test, a_block_that_becomes_live_knows_what_was_asked_for) {
  const auto made = block_of(3);
  become_live(records[made], 5, 1400, 1536);
  EXPECT_EQ(records[made].is(), block_kind::live);
  EXPECT_EQ(records[made].account, 5u);
  EXPECT_EQ(records[made].out.waste, 136u);
}

TEST_F(cache_test, others_may_leave_as_much_as_it_may_hold) {
  thread_cache& mine = *all.open();
  const auto whole = block_of(1), late = block_of(1);
  EXPECT_FALSE(mine.push_remote(whole, records[whole], mine.bound() + 1));
  EXPECT_FALSE(mine.has_remote());
  EXPECT_TRUE(mine.push_remote(whole, records[whole], mine.bound()));
  EXPECT_FALSE(mine.push_remote(late, records[late], 1));
  EXPECT_EQ(mine.remote.load(), mine.bound() << 32 | whole);
  mine.remote.store(0);
  // As much as the upper half of a word can say; one more would say that it is closed.
  mine.most_units.store(~std::uint64_t{0});
  EXPECT_FALSE(mine.push_remote(late, records[late], 0xffff'ffff));
  EXPECT_TRUE(mine.push_remote(late, records[late], 0xffff'fffe));
  EXPECT_EQ(mine.remote.load() >> 32, 0xffff'fffeu);
}

TEST_F(cache_test, sixteen_blocks_or_a_quarter_of_its_bound_are_set_aside) {
  thread_cache& mine = *all.open();
  thread_cache& owner = *all.open();
  std::vector<block_index> made;
  for (std::uint32_t i = 0; i < thread_cache::most_aside; ++i) {
    EXPECT_FALSE(mine.has_enough_aside()) << i;
    made.push_back(block_of(2));
    mine.set_aside(made.back(), records[made.back()], owner);
    EXPECT_EQ(mine.aside.first, made.back());
    EXPECT_EQ(mine.aside.last, made.front());
  }
  EXPECT_TRUE(mine.has_enough_aside());
  EXPECT_EQ(mine.aside.units, 32u);
  EXPECT_EQ(mine.aside.owner, &owner);
  EXPECT_EQ(records[made[15]].out.given_next, made[14]);

  mine.aside = {};
  const auto quarter = block_of(static_cast<std::uint32_t>(mine.bound() / 4)), more = block_of(1);
  mine.set_aside(quarter, records[quarter], owner);
  EXPECT_FALSE(mine.has_enough_aside());
  mine.set_aside(more, records[more], owner);
  EXPECT_TRUE(mine.has_enough_aside());
}

TEST_F(cache_test, knows_what_it_set_aside_eight_before) {
  thread_cache& mine = *all.open();
  for (block_index i = 1; i <= 20; ++i)
    EXPECT_EQ(mine.left_before(i), i > 8 ? i - 8 : no_block) << i;
}

TEST_F(cache_test, beyond_the_last_number_is_nobodys_home) {
  std::set<std::uint16_t> homes;
  for (int i = 0; i < 4095; ++i) homes.insert(all.open()->home());
  EXPECT_EQ(homes.size(), 4095u);
  EXPECT_FALSE(homes.contains(0));
  const thread_cache& late = *all.open();
  EXPECT_EQ(late.home(), 0u);
  EXPECT_NE(late.number, 0u) << "a block without a home would be taken for one of this cache";
  EXPECT_FALSE(homes.contains(late.number));
}

TEST_F(cache_test, what_has_no_place_is_worth_the_lock_in_numbers_or_in_bytes) {
  thread_cache& mine = *all.open();
  for (std::uint32_t i = 0; i < thread_cache::most_unplaced; ++i) {
    EXPECT_FALSE(mine.has_enough_unplaced()) << i;
    const auto small = block_of(1);
    mine.leave_unplaced(small, records[small]);
  }
  EXPECT_TRUE(mine.has_enough_unplaced());
  thread_cache& other = *all.open();
  const auto as_much_as_it_may_hold = block_of(static_cast<std::uint32_t>(other.bound()));
  other.leave_unplaced(as_much_as_it_may_hold, records[as_much_as_it_may_hold]);
  EXPECT_FALSE(other.has_enough_unplaced());
  const auto more = block_of(1);
  other.leave_unplaced(more, records[more]);
  EXPECT_TRUE(other.has_enough_unplaced());
}

TEST_F(cache_test, may_hold_a_share_of_what_is_reserved) {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  EXPECT_EQ(all.bound_at(0) * unit, mib / 4 * 5);
  EXPECT_EQ(all.bound_at(3072 * mib) * unit, 3 * mib);
  EXPECT_EQ(all.bound_at(1'000'000 * mib) * unit, 4 * mib) << "what it was made with";
}

TEST_F(cache_test, takes_no_more_than_its_bound_from_others) {
  thread_cache& mine = *all.open();
  std::size_t taken = 0;
  for (;; ++taken) {
    ASSERT_TRUE(records.prepare(1));
    const auto next = given_block(1024);
    if (!mine.push_remote(next, records[next], 1024)) break;
  }
  EXPECT_EQ(taken, all.bound_at(0) / 1024);
  mine.remote.store(remote_closed);
  const auto late = given_block(1);
  EXPECT_FALSE(mine.push_remote(late, records[late], 1));
  mine.take_in_remote(records);
  EXPECT_EQ(mine.remote.load(), remote_closed);
}

TEST_F(cache_test, reasons_keep_the_owner_out) {
  thread_cache& mine = *all.open();
  EXPECT_EQ(mine.enter_fast() & ~thread_cache::fenced, 0u);
  mine.leave();
  all.set_reason(thread_cache::capturing, true);
  EXPECT_NE(mine.enter_fast(), 0u);
  mine.leave();
  EXPECT_FALSE(mine.enter(thread_cache::closer_look));
  EXPECT_TRUE(mine.enter(thread_cache::closer_look | thread_cache::capturing));
  mine.leave();
  EXPECT_NE(all.open()->attention.load() & thread_cache::capturing, 0u) << "caches to come as well";
  all.set_reason(thread_cache::capturing, false);
  EXPECT_TRUE(mine.enter(thread_cache::fenced));
  mine.leave();
}

TEST_F(cache_test, caches_of_threads_that_ended_serve_others) {
  thread_cache* const first = all.open();
  const auto number = first->number;
  EXPECT_NE(number, 0u);
  EXPECT_EQ(all.at(number), first);
  all.recycle(*first);
  EXPECT_EQ(all.open(), first);
  EXPECT_NE(all.open(), first);
}

TEST_F(cache_test, counts_accounts_that_it_has_room_for) {
  thread_cache& mine = *all.open();
  EXPECT_FALSE(mine.counts(0));
  ASSERT_TRUE(mine.make_room(0));
  EXPECT_EQ(mine.delta_count, 1u);
  EXPECT_TRUE(mine.counts(0));
  EXPECT_FALSE(mine.counts(1));
  EXPECT_FALSE(mine.counts_tags);
  mine.count_free(0, 500, 512);
  EXPECT_EQ(mine.sum.frees(), 1u);
  EXPECT_TRUE(mine.deltas[0].is_empty()) << "one account is counted in the sum only";
  mine.sum = {};  // folded in
  ASSERT_TRUE(mine.make_room(3));
  EXPECT_TRUE(mine.counts_tags);
  EXPECT_EQ(mine.delta_count, 4u);
  EXPECT_EQ(mine.limits.size(), 4u);
  EXPECT_TRUE(mine.counts(3));
  EXPECT_FALSE(mine.counts(4));
  mine.count_free(0, 500, 512);
  mine.count_free(3, 1000, 1024);
  EXPECT_EQ(mine.sum.change(), (live_amounts{-1500, -1536, -2}));
  EXPECT_EQ(mine.deltas[0].change(), (live_amounts{-500, -512, -1}));
  EXPECT_EQ(mine.deltas[3].change(), (live_amounts{-1000, -1024, -1}));
  mine.limits[3] = true;
  EXPECT_FALSE(mine.counts(3));
  ASSERT_TRUE(mine.make_room(2));
  ASSERT_TRUE(mine.make_room(3));
  EXPECT_EQ(mine.delta_count, 4u);
  EXPECT_TRUE(mine.limits[3]);
}

TEST_F(cache_test, remembers_the_most_of_each_amount_since_the_fold) {
  thread_cache& mine = open_for_account();
  const account_delta& seen = mine.sum;
  EXPECT_TRUE(seen.is_empty());
  mine.count_allocation(0, 1000, 1024);
  mine.count_allocation(0, 100, 512);
  EXPECT_EQ(seen.most(), (live_amounts{1100, 1536, 2}));
  mine.count_free(0, 1000, 1024);
  EXPECT_EQ(seen.change(), (live_amounts{100, 512, 1}));
  mine.count_allocation(0, 1000, 1024);
  EXPECT_EQ(seen.most(), (live_amounts{1100, 1536, 2})) << "as much is not more";
  mine.count_free(0, 1000, 1024);
  mine.count_allocation(0, 1024, 1024);
  EXPECT_EQ(seen.most(), (live_amounts{1124, 1536, 2})) << "more was asked for, of as much";
  mine.count_free(0, 1024, 1024);
  mine.count_free(0, 100, 512);
  for (int i = 0; i < 2; ++i) mine.count_allocation(0, 1, 512);
  EXPECT_EQ(seen.most(), (live_amounts{1124, 1536, 2}));
  mine.count_allocation(0, 1, 512);
  EXPECT_EQ(seen.most(), (live_amounts{1124, 1536, 3})) << "more blocks, of as much memory";
  EXPECT_EQ(seen.change(), (live_amounts{3, 1536, 3}));
  EXPECT_EQ(seen.allocations(), 7u);
  EXPECT_EQ(seen.frees(), 4u);
}

TEST_F(cache_test, knows_the_most_of_all_tags_together) {
  thread_cache& mine = open_for_account(2);
  mine.count_allocation(1, 1000, 1024);
  mine.count_free(1, 1000, 1024);
  mine.count_allocation(2, 2000, 2048);
  EXPECT_EQ(mine.sum.most(), (live_amounts{2000, 2048, 1})) << "one after the other";
  EXPECT_EQ(mine.deltas[1].most(), (live_amounts{1000, 1024, 1}));
  EXPECT_EQ(mine.deltas[2].most(), (live_amounts{2000, 2048, 1}));
  mine.count_allocation(1, 1000, 1024);
  EXPECT_EQ(mine.sum.most(), (live_amounts{3000, 3072, 2})) << "both at a time";
  EXPECT_EQ(mine.deltas[1].most(), (live_amounts{1000, 1024, 1}));
  EXPECT_TRUE(mine.deltas[0].is_empty());
}

TEST_F(cache_test, tables_are_found_by_stream_and_slot) {
  thread_cache& mine = *all.open();
  EXPECT_EQ(mine.bins_of(stream_id{}), nullptr);
  EXPECT_EQ(mine.bins_of(no_stream), nullptr);
  EXPECT_EQ(mine.least_recent(), nullptr);
  EXPECT_EQ(thread_cache::nothing.last_used, 0u) << "it is never written";
  std::vector<stream_bins*> made;
  for (std::uint32_t i = 1; i <= thread_cache::most_streams; ++i) {
    EXPECT_FALSE(mine.has_every_bins());
    made.push_back(mine.add_bins(stream_id{10 + i}, stream_slot{i}));
    EXPECT_EQ(mine.current, made.back());
  }
  EXPECT_TRUE(mine.has_every_bins());
  EXPECT_EQ(mine.least_recent(), made[0]);
  EXPECT_EQ(mine.bins_of(stream_id{11}), made[0]);
  EXPECT_EQ(mine.current, made[0]);
  EXPECT_EQ(mine.least_recent(), made[1]);
  EXPECT_EQ(mine.bins_of(stream_slot{2}), made[1]);
  EXPECT_EQ(mine.current, made[1]);
  EXPECT_EQ(mine.bins_of(stream_slot{2}), made[1]);
  EXPECT_EQ(mine.least_recent(), made[2]);
  EXPECT_EQ(mine.bins_of(stream_id{9}), nullptr);
  EXPECT_EQ(mine.bins_of(stream_slot{9}), nullptr);
  EXPECT_EQ(mine.current, made[1]) << "who was not found changes nothing";

  mine.remove_bins(made[2]);
  EXPECT_EQ(mine.current, made[1]);
  EXPECT_FALSE(mine.has_every_bins());
  EXPECT_EQ(mine.bins_of(stream_slot{3}), nullptr);
  mine.remove_bins(made[1]);
  EXPECT_EQ(mine.current, &thread_cache::nothing);
  EXPECT_EQ(mine.least_recent(), made[3]);
  EXPECT_EQ(mine.tables.size(), 6u);
}

TEST_F(cache_test, tables_do_not_make_way_in_turns) {
  thread_cache& mine = *all.open();
  mine.add_bins(stream_id{11}, stream_slot{1});
  mine.add_bins(stream_id{12}, stream_slot{2});
  for (std::uint32_t i = 0; i < thread_cache::most_turns; ++i)
    EXPECT_TRUE(mine.makes_way_for(stream_slot{10 + i})) << i;
  EXPECT_FALSE(mine.makes_way_for(stream_slot{50}));
  EXPECT_FALSE(mine.makes_way_for(stream_slot{51}));
  EXPECT_FALSE(mine.makes_way_for(stream_slot{50})) << "another one came in between";
  EXPECT_TRUE(mine.makes_way_for(stream_slot{50})) << "twice in a row";
  EXPECT_FALSE(mine.makes_way_for(stream_slot{50})) << "it would have a table by now";
  // Each table that is found, other than the one found last, pays for one that makes way.
  EXPECT_NE(mine.bins_of(stream_slot{1}), nullptr);
  EXPECT_NE(mine.bins_of(stream_slot{1}), nullptr);
  EXPECT_TRUE(mine.makes_way_for(stream_slot{60}));
  EXPECT_FALSE(mine.makes_way_for(stream_slot{61}));
  EXPECT_NE(mine.bins_of(stream_id{12}), nullptr);
  EXPECT_NE(mine.bins_of(stream_id{11}), nullptr);
  EXPECT_TRUE(mine.makes_way_for(stream_slot{62}));
  EXPECT_TRUE(mine.makes_way_for(stream_slot{63}));
  EXPECT_FALSE(mine.makes_way_for(stream_slot{64}));
  all.recycle(mine);
  EXPECT_TRUE(all.open()->makes_way_for(stream_slot{64})) << "the next thread begins anew";
}

TEST_F(cache_test, a_table_is_given_to_another_stream) {
  thread_cache& mine = *all.open();
  stream_bins* const older = mine.add_bins(stream_id{11}, stream_slot{1});
  stream_bins* const newer = mine.add_bins(stream_id{12}, stream_slot{2});
  EXPECT_EQ(mine.reassign_bins(*older, stream_id{13}, stream_slot{3}), older);
  EXPECT_EQ(mine.current, older);
  EXPECT_EQ(mine.tables.size(), 2u);
  EXPECT_EQ(mine.bins_of(stream_id{11}), nullptr);
  EXPECT_EQ(mine.bins_of(stream_slot{1}), nullptr);
  EXPECT_EQ(mine.bins_of(stream_slot{3}), older);
  EXPECT_EQ(mine.bins_of(stream_id{13}), older);
  EXPECT_EQ(mine.least_recent(), newer) << "it was used last";
}

TEST_F(cache_test, holds_what_is_kept_by_size_and_a_large_one) {
  thread_cache& mine = *all.open();
  mine.units = 3;
  mine.large_units = 4000;
  EXPECT_EQ(mine.held(), 4003 * unit);
}

TEST_F(cache_test, tells_the_memory_that_it_takes) {
  thread_cache& mine = *all.open();
  static_cast<void>(all.open());
  EXPECT_EQ(mine.footprint(), sizeof(thread_cache));
  EXPECT_EQ(all.footprint(), sizeof(thread_caches) + 2 * sizeof(thread_cache));
  ASSERT_TRUE(mine.make_room(2));
  for (std::uint32_t i = 1; i <= 2; ++i) ASSERT_NE(mine.add_bins(stream_id{i}, i), nullptr);
  const std::size_t more =
      2 * sizeof(stream_bins) + mine.delta_storage.capacity() * sizeof(account_delta);
  EXPECT_EQ(mine.footprint(), sizeof(thread_cache) + more);
  EXPECT_EQ(all.footprint(), sizeof(thread_caches) + 2 * sizeof(thread_cache) + more);
}

TEST_F(cache_test, is_as_new_for_the_next_thread) {
  thread_cache& mine = open_for_account();
  const std::uint32_t reasons = mine.attention.load();
  mine.per_thread_stream = stream_id{9};
  mine.most_units.store(7);
  mine.remote.store(remote_closed);
  mine.attention.store(thread_cache::closed);
  all.recycle(mine);
  EXPECT_EQ(mine.tables.size(), 0u);
  EXPECT_EQ(mine.current, &thread_cache::nothing);
  EXPECT_EQ(mine.per_thread_stream, stream_id{});
  EXPECT_EQ(mine.remote.load(), remote_closed) << "until somebody has it";
  nobody_listens sink;
  all.set_observer(&sink);
  ASSERT_EQ(all.open(), &mine);
  EXPECT_EQ(mine.bound(), all.bound_at(0));
  EXPECT_EQ(mine.remote.load(), 0u);
  EXPECT_EQ(mine.observer, &sink);
  EXPECT_EQ(mine.attention.load(), reasons | thread_cache::observed);
}

TEST_F(cache_test, numbers_count_from_one) {
  for (std::uint16_t number = 1; number <= 3; ++number) {
    EXPECT_EQ(all.at(number), nullptr);
    thread_cache& opened = *all.open();
    EXPECT_EQ(opened.number, number);
    EXPECT_EQ(opened.home(), number);
    EXPECT_EQ(all.at(number), &opened);
  }
}

TEST_F(cache_test, without_a_size_there_are_none) {
  EXPECT_TRUE(all.enabled());
  EXPECT_FALSE(thread_caches{0}.enabled());
}

TEST_F(cache_test, says_whether_somebody_is_inside) {
  thread_cache& mine = *all.open();
  EXPECT_EQ(mine.busy.load(), 0u);
  static_cast<void>(mine.enter_fast());
  EXPECT_EQ(mine.busy.load(), 1u);
  mine.leave();
  EXPECT_EQ(mine.busy.load(), 0u);
  ASSERT_TRUE(mine.enter(thread_cache::closer_look));
  EXPECT_EQ(mine.busy.load(), 1u);
  mine.leave();
  all.set_reason(thread_cache::closed, true);
  EXPECT_FALSE(mine.enter(thread_cache::closer_look | thread_cache::capturing));
  EXPECT_EQ(mine.busy.load(), 0u) << "whoever is refused is outside";
}

TEST_F(cache_test, listeners_and_captures_are_known_to_every_cache) {
  thread_cache& mine = *all.open();
  const std::uint32_t before = mine.attention.load();
  nobody_listens sink;
  all.set_observer(&sink);
  EXPECT_TRUE(mine.is_observed());
  EXPECT_FALSE(mine.asks_captures());
  EXPECT_EQ(mine.observer, &sink);
  EXPECT_EQ(all.open()->observer, &sink) << "those to come as well";
  all.set_reason(thread_cache::capturing, true);
  EXPECT_TRUE(mine.asks_captures());
  EXPECT_EQ(mine.attention.load(), before | thread_cache::observed | thread_cache::capturing);
  all.set_observer(nullptr);
  EXPECT_FALSE(mine.is_observed());
  EXPECT_TRUE(mine.asks_captures()) << "one reason leaves the others";
  EXPECT_EQ(mine.observer, nullptr);
  EXPECT_EQ(all.open()->attention.load(), before | thread_cache::capturing);
  all.set_reason(thread_cache::capturing, false);
  EXPECT_EQ(mine.attention.load(), before);
}

TEST_F(cache_test, all_but_the_callers_own_are_stopped) {
  std::vector<thread_cache*> caches;
  for (int i = 0; i < 3; ++i) caches.push_back(all.open());
  all.set_reason(thread_cache::limited, true);
  const std::uint32_t before = caches[0]->attention.load();
  const auto reasons = [&] {
    return std::array{caches[0]->attention.load(), caches[1]->attention.load(),
                      caches[2]->attention.load()};
  };
  using figures = std::array<std::uint32_t, 3>;
  caches[1]->busy.store(1);  // the caller itself
  {
    const thread_caches::stop stopped{all, caches[1]};
    EXPECT_EQ(reasons(),
              (figures{before | thread_cache::stopped, before, before | thread_cache::stopped}));
    caches[1]->attention.store(before | thread_cache::stopped);
  }
  EXPECT_EQ(reasons(), (figures{before, before | thread_cache::stopped, before}))
      << "who was not stopped is not let go";
}

TEST_F(cache_test, who_is_stopped_already_is_let_go_once) {
  thread_cache& mine = *all.open();
  const std::uint32_t before = mine.attention.load();
  {
    const thread_caches::stop outer{all, nullptr};
    {
      const thread_caches::stop inner{all, nullptr};
      all.await_owner(mine);
    }
    EXPECT_EQ(mine.attention.load(), before | thread_cache::stopped);
  }
  EXPECT_EQ(mine.attention.load(), before);
  all.await_owner(mine);
  EXPECT_EQ(mine.attention.load(), before);
}

TEST_F(cache_test, what_an_owner_was_doing_is_over_and_seen) {
  thread_cache& mine = *all.open();
  const std::uint32_t before = mine.attention.load();
  std::atomic<bool> inside{false};
  std::thread owner{[&] {
    mine.busy.store(1);
    inside = true;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    mine.units = 7;
    mine.leave();
  }};
  while (!inside) std::this_thread::yield();
  all.await_owner(mine);
  EXPECT_EQ(mine.units, 7u);
  EXPECT_EQ(mine.attention.load(), before);
  owner.join();
  // Nobody is there whose thread has ended.
  mine.busy.store(1);
  mine.remote.store(remote_closed);
  all.await_owner(mine);
}

/// The owner counts up two numbers without a lock; whoever stops it sees them equal, and what it
/// writes meanwhile is seen by the owner.
TEST_F(cache_test, a_stopped_owner_is_outside_and_stays_there) {
  if (!asymmetric_barrier::is_free()) GTEST_SKIP() << "the kernel has no membarrier";
  thread_cache& mine = *all.open();
  std::atomic<bool> over{false};
  std::uint64_t refused = 0;
  std::uint64_t wrong = 0;
  std::thread owner{[&] {
    while (!over.load(std::memory_order_relaxed)) {
      if (mine.enter_fast() != 0) {
        mine.leave();
        ++refused;
        continue;
      }
      if (mine.units != mine.large_units) ++wrong;
      mine.units = mine.units + 1;
      std::atomic_signal_fence(std::memory_order_seq_cst);
      mine.large_units = mine.large_units + 1;
      mine.leave();
    }
  }};
  for (int i = 0; i < 3000; ++i) {
    const thread_caches::stop stopped{all, nullptr};
    ASSERT_EQ(mine.units, mine.large_units);
    mine.units += 1000;
    mine.large_units += 1000;
  }
  over = true;
  owner.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GE(mine.units, 3'000'000u);
}

}  // namespace
}}}  // namespace weir::v0::heap
