// SPDX-License-Identifier: Apache-2.0
// Flushing the caches of a bare core to a host that notes what comes.
#include "heap/cache_flusher.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::block;
using heap::block_index;
using heap::block_kind;
using heap::no_block;
using heap::stream_slot;
using heap::thread_cache;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class noting_store final : public heap::cache_flusher_host {
 public:
  void free_to_store(block_index index, heap::stamp freed) noexcept override {
    came.push_back(index);
    last = freed;
  }
  void report_second_free(const block& block) noexcept override {
    second_frees.push_back(block.address);
  }
  [[nodiscard]] std::vector<block_index> take() { return std::exchange(came, {}); }

  std::vector<block_index> came;
  std::vector<std::uint64_t> second_frees;
  heap::stamp last;
};

/// Caches of 1 MiB.
class cache_flusher_test : public heap_test {
 protected:
  cache_flusher_test() {
    const detail::mutex_lock lock{core.mutex_};
    heap::asymmetric_barrier::prepare();
    EXPECT_TRUE(core.blocks_.prepare(1000));
    static_cast<void>(core.accounts_.number_of(pool_id{}, tag{}).value());
    slot = core.order_.meet(on, on.id());
    other_slot = core.order_.meet(other, other.id());
  }
  // With the lock.

  [[nodiscard]] thread_cache& open() {
    thread_cache& opened = *core.caches_.open();
    EXPECT_TRUE(opened.make_room(0));
    EXPECT_NE(opened.add_bins(on.id(), slot), nullptr);
    return opened;
  }
  [[nodiscard]] block_index live_block(std::uint32_t units) {
    core.mutex_.assert_held();
    const block_index made = core.blocks_.make();
    block& record = core.blocks_[made];
    record.units = units;
    record.address = std::uint64_t{made} << 24;
    record.stream = slot;
    record.become(block_kind::live);
    record.account = 0;
    record.out = {};
    core.accounts_.allocated(0, record.size(), record.size());
    return made;
  }
  /// A block that another thread than that of its home freed.
  [[nodiscard]] block_index given_block(std::uint32_t units, const thread_cache* home = nullptr) {
    const block_index made = live_block(units);
    block& record = core.blocks_[made];
    if (home != nullptr) record.out.home = home->home();
    EXPECT_TRUE(heap::claim(record, record.address));
    record.out.given_on = static_cast<std::uint16_t>(slot);
    return made;
  }
  /// A live block that the cache's owner frees into its list of the size.
  block_index binned(thread_cache& cache, std::uint32_t units) {
    const block_index made = live_block(units);
    block& record = core.blocks_[made];
    record.become(block_kind::thread_cached);
    cache.bins_of(slot)->push(made, record);
    cache.units += units;
    cache.count_free(0, record.size(), record.size());
    return made;
  }
  [[nodiscard]] std::uint64_t frees() {
    core.mutex_.assert_held();
    return core.accounts_.total().frees;
  }
  [[nodiscard]] std::uint64_t peak() {
    core.mutex_.assert_held();
    return core.accounts_.total().blocks.peak;
  }

  bare_core core{gpu(), {.thread_cache = 1_MiB}};
  noting_store store;
  heap::cache_flusher flusher{core, store};
  const stream on = new_stream();
  const stream other = new_stream();
  stream_slot slot{};
  stream_slot other_slot{};
};

TEST_F(cache_flusher_test, all_that_a_cache_has_goes_and_is_counted) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  thread_cache& theirs = open();
  const block_index in_bins = binned(mine, 3);
  const block_index large = live_block(4096);
  ASSERT_TRUE(flusher.keep(mine, large, slot, on.id()));
  core.accounts_.freed(0, 4096 * 512, 4096 * 512);
  const block_index remote = given_block(5);
  ASSERT_TRUE(mine.push_remote(remote, core.blocks_[remote], 5));
  const block_index aside = given_block(6);
  mine.set_aside(aside, core.blocks_[aside], theirs);
  const block_index unplaced = given_block(7);
  mine.leave_unplaced(unplaced, core.blocks_[unplaced]);

  EXPECT_TRUE(flusher.flush(mine));
  auto came = store.take();
  std::sort(came.begin(), came.end());
  EXPECT_THAT(came, ElementsAre(in_bins, large, remote, aside, unplaced));
  EXPECT_EQ(store.last, core.order_.now(slot));
  EXPECT_EQ(mine.held(), 0u);
  EXPECT_EQ(frees(), 5u);
  EXPECT_EQ(core.accounts_.total().blocks.current, 0u);
  EXPECT_EQ(peak(), 4u);
  EXPECT_FALSE(theirs.has_remote()) << "what is aside went to the store";
  EXPECT_FALSE(flusher.flush(mine)) << "nothing is left";
}

TEST_F(cache_flusher_test, to_settle_counts_and_leaves_blocks_where_they_are) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  thread_cache& theirs = open();
  const block_index kept = binned(mine, 3);
  const block_index aside = given_block(6);
  mine.set_aside(aside, core.blocks_[aside], theirs);
  const block_index unplaced = given_block(7);
  mine.leave_unplaced(unplaced, core.blocks_[unplaced]);
  flusher.settle_caches();
  EXPECT_THAT(store.take(), ElementsAre(unplaced));
  EXPECT_EQ(mine.bins_of(slot)->heads[3], kept);
  EXPECT_EQ(theirs.bins_of(slot)->heads[6], aside) << "it is where it came from";
  EXPECT_EQ(mine.aside.count, 0u);
  EXPECT_TRUE(mine.sum.is_empty());
  EXPECT_TRUE(theirs.sum.is_empty());
  EXPECT_EQ(frees(), 3u);
}

TEST_F(cache_flusher_test, peaks_are_what_was_live_at_one_time) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  const block_index first = binned(mine, 1);
  static_cast<void>(binned(mine, 1));
  flusher.fold(mine);
  EXPECT_EQ(peak(), 2u);
  EXPECT_EQ(core.accounts_.total().blocks.current, 0u);
  // Three at a time in the cache's own counts, which the accounts do not know yet.
  for (int i = 0; i < 3; ++i) mine.count_allocation(0, 512, 512);
  mine.count_free(0, 512, 512);
  EXPECT_EQ(peak(), 2u);
  flusher.raise_peaks(mine);
  EXPECT_EQ(peak(), 3u);
  EXPECT_EQ(mine.sum.allocations(), 3u) << "they are the cache's until it is folded in";
  flusher.fold(mine);
  EXPECT_EQ(core.accounts_.total().blocks.current, 2u);
  EXPECT_EQ(peak(), 3u);
  EXPECT_EQ(core.blocks_[first].is(), block_kind::thread_cached);
}

TEST_F(cache_flusher_test, the_calling_threads_cache_is_its_own) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  mine.count_allocation(0, 512, 512);
  flusher.raise_own_peaks();
  EXPECT_EQ(peak(), 0u) << "this thread has no cache";
  const auto before = std::exchange(heap::this_thread, {.cache = &mine, .owner = core.serial_});
  flusher.raise_own_peaks();
  heap::this_thread = before;
  EXPECT_EQ(peak(), 1u);
}

TEST_F(cache_flusher_test, a_freed_block_finds_its_place_and_others_make_way) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  const auto bound = static_cast<std::uint32_t>(mine.bound());
  const block_index large = live_block(heap::most_binned_units + 1);
  ASSERT_TRUE(flusher.keep(mine, large, slot, on.id()));
  EXPECT_EQ(mine.large, large);
  EXPECT_EQ(core.blocks_[large].is(), block_kind::thread_cached);
  const block_index larger = live_block(heap::most_binned_units + 2);
  ASSERT_TRUE(flusher.keep(mine, larger, slot, on.id()));
  EXPECT_EQ(mine.large, larger);
  EXPECT_THAT(store.take(), ElementsAre(large));

  std::vector<block_index> all;
  for (int i = 0; i < 4; ++i) all.push_back(binned(mine, bound / 4));
  const block_index one_more = live_block(8);
  ASSERT_TRUE(flusher.keep(mine, one_more, slot, on.id()));
  EXPECT_THAT(store.take(), ElementsAre(all[3], all[2], all[1], all[0]))
      << "nothing of it was asked for again";
  EXPECT_EQ(mine.units, 8u);
  EXPECT_EQ(core.blocks_[one_more].out.home, mine.home());
}

TEST_F(cache_flusher_test, of_a_full_cache_that_is_used_the_newer_half_stays) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  const auto bound = static_cast<std::uint32_t>(mine.bound());
  std::vector<block_index> all;
  for (int i = 0; i < 8; ++i) all.push_back(binned(mine, bound / 8));
  for (int i = 0; i < 8; ++i) mine.count_allocation(0, 512, 512);
  const block_index one_more = live_block(8);
  ASSERT_TRUE(flusher.keep(mine, one_more, slot, on.id()));
  EXPECT_THAT(store.take(), ElementsAre(all[3], all[2], all[1], all[0]));
}

TEST_F(cache_flusher_test, a_block_that_is_larger_than_the_cache_finds_no_place) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  mine.most_units.store(64, std::memory_order_relaxed);
  const block_index too_large = live_block(65);
  EXPECT_FALSE(flusher.keep(mine, too_large, slot, on.id()));
  EXPECT_EQ(core.blocks_[too_large].is(), block_kind::live);
  EXPECT_THAT(store.take(), IsEmpty());
}

TEST_F(cache_flusher_test, the_table_that_was_not_used_for_longest_makes_way) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  const block_index oldest = binned(mine, 3);
  std::vector<stream> others;
  for (std::size_t i = 1; i < thread_cache::most_streams; ++i) {
    others.push_back(new_stream());
    const stream_slot met = core.order_.meet(others.back(), others.back().id());
    EXPECT_NE(flusher.ensure_bins(mine, others.back().id(), met), nullptr);
  }
  EXPECT_THAT(store.take(), IsEmpty());
  const auto* const bins = flusher.ensure_bins(mine, other.id(), other_slot);
  ASSERT_NE(bins, nullptr);
  EXPECT_EQ(bins->id, other.id());
  EXPECT_THAT(store.take(), ElementsAre(oldest));
  EXPECT_EQ(mine.bins_of(slot), nullptr);
  EXPECT_EQ(flusher.ensure_bins(mine, other.id(), other_slot), bins);
}

TEST_F(cache_flusher_test, of_one_stream_every_cache_hands_over_what_it_has) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  thread_cache& theirs = open();
  const block_index first = binned(mine, 3);
  const block_index second = binned(theirs, 4);
  const block_index large = live_block(4096);
  ASSERT_TRUE(flusher.keep(theirs, large, slot, on.id()));
  const block_index stays = live_block(5);
  ASSERT_TRUE(flusher.keep(mine, stays, other_slot, other.id()));
  flusher.flush_stream(slot);
  EXPECT_THAT(store.take(), ElementsAre(first, large, second));
  EXPECT_EQ(mine.bins_of(slot), nullptr);
  EXPECT_EQ(mine.units, 5u);
  flusher.flush_caches();
  EXPECT_THAT(store.take(), ElementsAre(stays));
}

TEST_F(cache_flusher_test, of_several_frees_one_is_the_first) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& theirs = open();
  for (const std::uint32_t units : {8u, heap::most_binned_units, heap::most_binned_units + 1}) {
    const block_index index = live_block(units);
    core.blocks_[index].out.home = units == 8 ? theirs.home() : 0;
    EXPECT_TRUE(flusher.begin_free(index));
    EXPECT_EQ(core.blocks_[index].is(), block_kind::thread_cached);
    EXPECT_FALSE(core.blocks_[index].claimed);
    EXPECT_FALSE(flusher.begin_free(index));
    EXPECT_FALSE(core.blocks_[index].claimed);
  }
  const block_index claimed = given_block(8);
  EXPECT_FALSE(flusher.begin_free(claimed));
  EXPECT_TRUE(core.blocks_[claimed].claimed);
  EXPECT_EQ(theirs.attention.load() & thread_cache::stopped, 0u);
}

TEST_F(cache_flusher_test, what_its_owner_freed_first_stays_the_owners) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  thread_cache& theirs = open();
  const block_index cached = given_block(5, &theirs);
  const block_index live = given_block(6, &theirs);
  const block_index given = given_block(7, &theirs);
  core.blocks_[cached].become(block_kind::thread_cached);
  core.blocks_[live].become(block_kind::live);  // handed out again
  for (const block_index each : {cached, live, given})
    mine.leave_unplaced(each, core.blocks_[each]);
  flusher.flush_unplaced(mine);
  EXPECT_THAT(store.take(), ElementsAre(given));
  EXPECT_THAT(store.second_frees,
              ElementsAre(core.blocks_[live].address, core.blocks_[cached].address));
  EXPECT_EQ(core.blocks_[cached].is(), block_kind::thread_cached);
  EXPECT_EQ(core.blocks_[live].is(), block_kind::live);
  for (const block_index each : {cached, live, given}) EXPECT_FALSE(core.blocks_[each].claimed);
  EXPECT_EQ(frees(), 1u);
}

TEST_F(cache_flusher_test, a_block_goes_to_the_store_when_nobody_has_claimed_it_any_more) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  thread_cache& theirs = open();
  thread_cache& thirds = open();
  std::vector<block_index> twice;
  std::vector<block_index> once;
  for (std::uint32_t i = 0; i < 3; ++i) {
    twice.push_back(given_block(3 + i, &mine));
    once.push_back(given_block(10 + i, &mine));
  }
  for (const auto& blocks : {twice, once}) {
    theirs.set_aside(blocks[0], core.blocks_[blocks[0]], mine);
    thirds.leave_unplaced(blocks[1], core.blocks_[blocks[1]]);
    const block_index last = blocks[2];
    ASSERT_TRUE(theirs.push_remote(last, core.blocks_[last], core.blocks_[last].units));
  }
  for (const block_index each : twice) {
    block& record = core.blocks_[each];
    record.become(block_kind::thread_cached);
    mine.bins_of(slot)->push(each, record);
    mine.units += record.units;
    mine.count_free(0, record.size(), record.size());
  }
  EXPECT_TRUE(flusher.flush(mine));
  EXPECT_THAT(store.take(), ElementsAre(twice[2], twice[1], twice[0]));
  EXPECT_EQ(store.second_frees.size(), 3u);
  for (const block_index each : twice) EXPECT_FALSE(core.blocks_[each].claimed);
  for (const block_index each : once) EXPECT_TRUE(core.blocks_[each].claimed);
  EXPECT_EQ(frees(), 3u);
  flusher.settle_caches();
  EXPECT_THAT(store.take(), ::testing::UnorderedElementsAre(once[0], once[1], once[2]));
  EXPECT_EQ(store.second_frees.size(), 3u);
  EXPECT_EQ(frees(), 6u);
}

TEST_F(cache_flusher_test, a_cache_whose_thread_ends_is_closed_to_others) {
  const detail::mutex_lock lock{core.mutex_};
  thread_cache& mine = open();
  thread_cache& theirs = open();
  const block_index kept = binned(mine, 3);
  const block_index remote = given_block(5);
  ASSERT_TRUE(mine.push_remote(remote, core.blocks_[remote], 5));
  const block_index aside = given_block(6);
  mine.set_aside(aside, core.blocks_[aside], theirs);
  flusher.close(mine);
  EXPECT_THAT(store.take(), ElementsAre(remote, kept));
  EXPECT_TRUE(theirs.has_remote()) << "what was aside is back where it came from";
  const block_index late = given_block(1);
  EXPECT_FALSE(mine.push_remote(late, core.blocks_[late], 1));
  EXPECT_EQ(frees(), 2u);
  flusher.close(mine);
  EXPECT_THAT(store.take(), IsEmpty());
}

}}  // namespace weir::testing_support
