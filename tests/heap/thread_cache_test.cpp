// A thread's cache: lists by size, what others leave, and stopping it from outside.
#include "heap/thread_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace weir::inline v0::heap {
namespace {

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
  block_store records;
  thread_caches all{4 << 20};
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

TEST_F(cache_test, takes_in_what_others_left_up_to_its_bound) {
  thread_cache& mine = *all.open();
  ASSERT_TRUE(mine.make_room(0));
  ASSERT_NE(mine.add_bins(stream_id{9}, 1), nullptr);
  const auto placed = block_of(100);
  const auto other_stream = block_of(100, 2);
  EXPECT_FALSE(mine.has_remote());
  EXPECT_TRUE(mine.push_remote(placed, records[placed], 100));
  EXPECT_TRUE(mine.push_remote(other_stream, records[other_stream], 100));
  EXPECT_TRUE(mine.has_remote());
  mine.take_in_remote(records);
  EXPECT_FALSE(mine.has_remote());
  EXPECT_EQ(mine.units, 100u);
  EXPECT_EQ(mine.current->heads[100], placed);
  EXPECT_EQ(mine.unplaced, other_stream);
  EXPECT_EQ(mine.deltas[0].frees, 1u) << "what is not placed is not counted yet";
  EXPECT_EQ(mine.deltas[0].allocated, -100 * std::int64_t{unit});
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
    const auto next = block_of(1024);
    if (!mine.push_remote(next, records[next], 1024)) break;
  }
  EXPECT_EQ(taken, all.bound_at(0) / 1024);
  mine.remote.store(remote_closed);
  const auto late = block_of(1);
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
}  // namespace weir::inline v0::heap
