// SPDX-License-Identifier: Apache-2.0
// Counters, tags, limits, snapshots and reports.
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class stats_test : public heap_test {
 protected:
  /// After reset_peaks() each is what it is now.
  static void expect_no_peaks(const memory_stats& now) {
    EXPECT_EQ(now.requested.peak, now.requested.current);
    EXPECT_EQ(now.allocated.peak, now.allocated.current);
    EXPECT_EQ(now.active.peak, now.active.current);
    EXPECT_EQ(now.reserved.peak, now.reserved.current);
    EXPECT_EQ(now.blocks.peak, now.blocks.current);
    EXPECT_EQ(now.active_requested.peak, now.active_requested.current);
    EXPECT_EQ(now.active_blocks.peak, now.active_blocks.current);
  }
};

const tag weights = tag::named("stats test: weights").value();
const tag scratch = tag::named("stats test: scratch").value();

TEST_F(stats_test, are_exact_through_caches_and_stores) {
  auto memory = make();
  const auto stream = new_stream();
  void* const a = memory.allocate(1000_B, stream);
  void* const b = memory.allocate(3_MiB, stream);
  auto now = memory.stats();
  EXPECT_EQ(now.requested.current, 1000_B + 3_MiB);
  EXPECT_EQ(now.allocated.current, 1024_B + 3_MiB);
  EXPECT_EQ(now.active, now.allocated);
  EXPECT_GE(now.reserved.current, now.active.current);
  EXPECT_EQ(now.blocks.current, 2u);
  EXPECT_EQ(now.allocations, 2u);
  EXPECT_EQ(now.cached, now.reserved.current - now.active.current);
  memory.deallocate(a, stream);
  memory.deallocate(b, stream);
  now = memory.stats();
  EXPECT_EQ(now.requested.current, 0_B);
  EXPECT_EQ(now.allocated.current, 0_B);
  EXPECT_EQ(now.allocated.peak, 1024_B + 3_MiB);
  EXPECT_EQ(now.blocks.current, 0u);
  EXPECT_EQ(now.frees, 2u);
  EXPECT_EQ(now.thread_cached, 1024_B + 3_MiB);
  EXPECT_EQ(now.hits, 0u);
  memory.deallocate(memory.allocate(1000_B, stream), stream);
  memory.deallocate(memory.allocate(3_MiB, stream), stream);
  now = memory.stats();
  EXPECT_EQ(now.hits, 2u);
  EXPECT_EQ(now.allocations, 4u);
  EXPECT_EQ(now.frees, 4u);
  memory.reset_peaks();
  now = memory.stats();
  EXPECT_EQ(now.allocated.peak, 0_B);
  EXPECT_EQ(now.reserved.peak, now.reserved.current);
  EXPECT_GT(now.metadata, 0_B);
}

TEST_F(stats_test, every_allocation_is_a_hit_a_heap_hit_or_a_miss) {
  auto memory = make({.thread_cache = {}});
  const auto stream = new_stream();
  const auto expect = [&](std::uint64_t heap_hits, std::uint64_t misses) {
    const auto now = memory.stats();
    EXPECT_EQ(now.hits, 0u);  // there are no thread caches
    EXPECT_EQ(now.heap_hits, heap_hits);
    EXPECT_EQ(now.misses, misses);
    EXPECT_EQ(now.allocations, heap_hits + misses);
  };
  void* const first = memory.allocate(64_MiB, stream);
  expect(0, 1);  // taken from the driver
  memory.deallocate(first, stream);
  void* const again = memory.allocate(64_MiB, stream);
  expect(1, 1);  // free as it lay
  void* const more = memory.allocate(64_MiB, stream);
  expect(1, 2);
  memory.deallocate(again, stream);
  memory.deallocate(more, stream);
}

TEST_F(stats_test, counters_begin_anew_and_amounts_stay) {
  auto memory = make();
  const auto stream = new_stream();
  const tag_scope named{weights};
  void* const kept = memory.allocate(64_MiB, stream);
  memory.deallocate(memory.allocate(1000_B, stream), stream);
  memory.deallocate(memory.allocate(1000_B, stream), stream);  // a hit
  EXPECT_EQ(code_of(memory.try_allocate(100_GiB, stream)), errc::out_of_memory);
  const auto before = memory.stats();
  EXPECT_EQ(before.allocations, 3u);
  EXPECT_EQ(before.hits, 1u);
  EXPECT_EQ(before.failures, 1u);
  EXPECT_GT(before.handles_created, 0u);
  memory.reset_counters();
  for (const auto& now : {memory.stats(), memory.stats(weights)}) {
    EXPECT_EQ(now.allocations, 0u);
    EXPECT_EQ(now.frees, 0u);
    EXPECT_EQ(now.hits, 0u);
    EXPECT_EQ(now.heap_hits, 0u);
    EXPECT_EQ(now.misses, 0u);
    EXPECT_EQ(now.failures, 0u);
    EXPECT_EQ(now.handles_created, 0u);
    EXPECT_EQ(now.waits, 0u);
    EXPECT_EQ(now.events, 0u);
    EXPECT_EQ(now.allocated.current, 64_MiB);
    EXPECT_EQ(now.blocks.current, 1u);
  }
  memory.deallocate(kept, stream);
  EXPECT_EQ(memory.stats().frees, 1u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(stats_test, every_peak_of_pools_tags_and_all_begins_anew) {
  auto memory = make();
  const auto stream = new_stream();
  const auto reader = new_stream();
  const auto pool = memory.create_pool("apart").value();
  {
    const tag_scope as{weights};
    void* const inside = pool.allocate(3'000'000_B, stream);
    void* const read = pool.allocate(5'000'000_B, stream);
    void* const outside = memory.allocate(7'000'000_B, stream);
    write(reader, read, 5_KiB);
    ASSERT_TRUE(memory.record_stream(read, reader));
    memory.deallocate(read, stream);
    memory.deallocate(inside, stream);
    memory.deallocate(outside, stream);
  }
  const auto expect = [](const memory_stats& now, std::uint64_t requested, std::uint64_t rounded,
                         bytes reserved, std::uint64_t blocks) {
    EXPECT_EQ(now.requested, (byte_gauge{0_B, bytes{requested}}));
    EXPECT_EQ(now.allocated, (byte_gauge{0_B, bytes{rounded}}));
    EXPECT_EQ(now.active, (byte_gauge{5'000'192_B, bytes{rounded}}));
    EXPECT_EQ(now.reserved.peak, reserved);
    EXPECT_EQ(now.blocks, (gauge{0, blocks}));
    EXPECT_EQ(now.active_requested, (byte_gauge{5'000'000_B, bytes{requested}}));
    EXPECT_EQ(now.active_blocks, (gauge{1, blocks}));
    EXPECT_EQ(now.pending, 5'000'192_B);
  };
  expect(memory.stats(), 15'000'000, 15'000'576, 16_MiB, 3);
  expect(memory.stats(weights), 15'000'000, 15'000'576, bytes{15'000'576}, 3);
  expect(pool.stats(), 8'000'000, 8'000'512, 8_MiB, 2);
  machine->run_until_idle();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved, (byte_gauge{0_B, 16_MiB}));
  EXPECT_EQ(pool.stats().reserved, (byte_gauge{0_B, 8_MiB}));
  memory.reset_peaks();
  expect_no_peaks(memory.stats());
  expect_no_peaks(memory.stats(weights));
  expect_no_peaks(pool.stats());
}

/// What a thread's cache has counted and not told is told before anything is set anew.
TEST_F(stats_test, resets_count_what_caches_hold) {
  auto memory = make();
  const auto stream = new_stream();
  const tag_scope as{weights};
  void* const p = memory.allocate(100_KiB, stream);
  memory.deallocate(p, stream);  // not told
  memory.reset_peaks();
  EXPECT_EQ(memory.stats().allocated.peak, 0_B);
  EXPECT_EQ(memory.stats(weights).blocks.peak, 0u);
  EXPECT_EQ(memory.allocate(100_KiB, stream), p);  // a hit, not told
  memory.reset_counters();
  EXPECT_EQ(memory.stats().hits, 0u);
  EXPECT_EQ(memory.stats().allocations, 0u);
  memory.deallocate(p, stream);
  const auto by_tag = memory.stats_by_tag();
  EXPECT_THAT(by_tag, IsEmpty()) << "nothing was allocated since";
  EXPECT_EQ(memory.allocate(100_KiB, stream), p);
  const auto again = memory.stats_by_tag();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].tag, weights);
  EXPECT_EQ(again[0].stats.hits, 1u);
  EXPECT_EQ(again[0].stats.allocated.current, 100_KiB);
  memory.deallocate(p, stream);
}

TEST_F(stats_test, handles_and_waits_are_counted_by_what_was_done) {
  auto memory = make({.policy = placement_policy::compact, .limit = 32_MiB, .thread_cache = {}});
  const auto one = new_stream();
  const auto two = new_stream();
  std::vector<void*> all;
  for (int i = 0; i < 16; ++i) all.push_back(memory.allocate(2_MiB, one));
  for (std::size_t i = 0; i < 16; i += 2) memory.deallocate(std::exchange(all[i], nullptr), one);
  const auto expect = [&](std::uint64_t created, std::uint64_t moved, std::uint64_t returned,
                          std::uint64_t released, std::uint64_t waits) {
    const auto now = memory.stats();
    EXPECT_EQ(now.handles_created, created);
    EXPECT_EQ(now.handles_moved, moved);
    EXPECT_EQ(now.handles_returned, returned);
    EXPECT_EQ(now.handles_released, released);
    EXPECT_EQ(now.waits, waits);
  };
  expect(16, 0, 0, 0, 0);
  void* const large = memory.allocate(12_MiB, one);
  expect(16, 6, 0, 0, 0);
  memory.deallocate(large, one);
  // The last of the six is free again, and what lies beside its old place.
  void* const part = memory.allocate(10_MiB, one);
  void* const beside = std::exchange(all[9], nullptr);
  memory.deallocate(beside, one);
  memory.deallocate(std::exchange(all[11], nullptr), one);
  void* const back = memory.allocate(6_MiB, one);
  expect(16, 6, 1, 0, 0);
  write(one, back, 6_MiB);
  memory.deallocate(back, one);
  void* const behind = memory.allocate(6_MiB, two);
  EXPECT_EQ(behind, beside);
  expect(16, 6, 1, 0, 1);
  EXPECT_GT(memory.stats().events, 0u);
  machine->run_until_idle();
  EXPECT_EQ(memory.trim(26_MiB).value(), 4_MiB);
  expect(16, 6, 1, 2, 1);
  memory.reset_counters();
  expect(0, 0, 0, 0, 0);
  EXPECT_EQ(memory.stats().events, 0u);
  // From then on they count again.
  write(two, behind, 6_MiB);
  memory.deallocate(behind, two);
  EXPECT_EQ(memory.allocate(6_MiB, one), behind);
  expect(0, 0, 0, 0, 1);
  all.push_back(memory.allocate(2_MiB, one));
  expect(1, 0, 0, 0, 1);
  for (void* const p : all) memory.deallocate(p, one);
  memory.deallocate(part, one);
  memory.deallocate(behind, one);
}

TEST_F(stats_test, a_pools_figures_are_its_own) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  void* const own = memory.allocate(10_MiB, stream);
  void* const cached = memory.allocate(3_MiB, stream);
  void* const inside = pool.allocate(6_MiB, stream);
  void* const freed = pool.allocate(4_MiB, stream);
  const auto held = hold(stream);
  write(stream, freed, 4_MiB);
  memory.deallocate(freed, stream);
  memory.deallocate(cached, stream);  // into the thread's cache
  const auto picture = memory.snapshot();
  EXPECT_EQ(picture.device, device_id{0});
  EXPECT_EQ(picture.stats, memory.stats());
  ASSERT_EQ(picture.pools.size(), 2u);
  EXPECT_EQ(picture.pools[1].id, pool.id());
  EXPECT_EQ(picture.pools[1].name, "apart");
  EXPECT_EQ(picture.pools[1].stats, pool.stats());
  const memory_stats& ours = picture.pools[0].stats;
  const memory_stats& theirs = picture.pools[1].stats;
  EXPECT_EQ(ours.allocated.current, 10_MiB);
  EXPECT_EQ(ours.reserved.current, 14_MiB);
  EXPECT_EQ(ours.cached, 4_MiB);
  EXPECT_EQ(ours.thread_cached, 3_MiB);
  EXPECT_EQ(ours.stream_bound, 0_B);
  EXPECT_EQ(theirs.allocated.current, 6_MiB);
  EXPECT_EQ(theirs.reserved.current, 10_MiB);
  EXPECT_EQ(theirs.cached, 4_MiB);
  EXPECT_EQ(theirs.thread_cached, 0_B);
  EXPECT_EQ(theirs.stream_bound, 4_MiB);
  EXPECT_EQ(picture.stats.cached, 8_MiB);
  EXPECT_EQ(picture.stats.thread_cached, 3_MiB);
  EXPECT_EQ(picture.stats.stream_bound, 4_MiB);
  EXPECT_GT(ours.metadata, 0_B);
  EXPECT_GT(theirs.metadata, 0_B);
  EXPECT_GT(picture.stats.metadata, ours.metadata + theirs.metadata);
  memory.deallocate(own, stream);
  memory.deallocate(inside, stream);
  EXPECT_EQ(caching_allocator::create(gpu(1)).value().snapshot().device, device_id{1});
}

TEST_F(stats_test, metadata_counts_all_that_there_is) {
  auto memory = make();
  bytes before = memory.stats().metadata;
  const auto grew = [&] {
    const bytes now = memory.stats().metadata;
    return now > std::exchange(before, now);
  };
  const auto stream = new_stream();
  void* const first = memory.allocate(1_KiB, stream);
  EXPECT_TRUE(grew()) << "a store, a thread's cache, a stream";
  const auto pool = memory.create_pool("apart").value();
  EXPECT_TRUE(grew()) << "an account";
  memory.deallocate(pool.allocate(1_KiB, stream), stream);
  EXPECT_TRUE(grew()) << "its store";
  const auto others = new_stream();
  const auto held = hold(others);
  write(others, first, 1_KiB);
  ASSERT_TRUE(memory.record_stream(first, others));
  EXPECT_TRUE(grew()) << "a stream, and a recorded use";
  const bytes without_waiting = before;
  memory.deallocate(first, stream);
  EXPECT_NE(memory.stats().metadata, without_waiting) << "a block that waits, and a mark";
  static_cast<void>(grew());
  std::vector<void*> all;
  for (int i = 0; i < 5000; ++i) all.push_back(memory.allocate(512_B, stream));
  EXPECT_GE(memory.stats().metadata - before, bytes{5000 * 48}) << "records and the table";
  for (void* const p : all) memory.deallocate(p, stream);
}

TEST_F(stats_test, tags_are_listed_by_what_is_live_if_anything_ever_was) {
  auto memory = make();
  const auto stream = new_stream();
  const auto reader = new_stream();
  const tag refused = tag::named("stats test: refused").value();
  const tag last = tag::named("stats test: last").value();
  ASSERT_TRUE(memory.set_limit(last, 1_GiB));  // never used, though the heap knows it
  ASSERT_TRUE(memory.set_limit(refused, 512_B));
  void* live = nullptr;
  void* waiting = nullptr;
  {
    const tag_scope as{refused};
    EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream)), errc::out_of_memory);
  }
  {
    const tag_scope as{weights};
    live = memory.allocate(2_MiB, stream);
  }
  {
    const tag_scope as{scratch};
    waiting = memory.allocate(5_MiB, stream);
  }
  const auto held = hold(reader);
  write(reader, waiting, 5_MiB);
  ASSERT_TRUE(memory.record_stream(waiting, reader));
  memory.deallocate(waiting, stream);
  const auto all = memory.stats_by_tag();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].tag, weights) << "what waits is live no more";
  EXPECT_EQ(all[1].tag, scratch);
  EXPECT_EQ(all[1].stats.active.current, 5_MiB);
  EXPECT_EQ(all[1].stats.reserved, all[1].stats.active);
  EXPECT_EQ(all[2].tag, refused);
  EXPECT_EQ(all[2].stats.failures, 1u);
  memory.deallocate(live, stream);
}

TEST_F(stats_test, of_a_closed_allocator_there_is_nothing) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  const tag_scope as{weights};
  memory.deallocate(memory.allocate(1_KiB, stream), stream);
  memory.deallocate(pool.allocate(1_KiB, stream), stream);
  void* const p = memory.allocate(1_KiB, stream);
  memory.deallocate(p, stream);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(memory.stats(), memory_stats{});
  EXPECT_EQ(memory.stats(weights), memory_stats{});
  EXPECT_EQ(pool.stats(), memory_stats{});
  EXPECT_THAT(memory.stats_by_tag(), IsEmpty());
  EXPECT_THAT(memory.snapshot().pools, IsEmpty());
  EXPECT_EQ(memory.snapshot().stats, memory_stats{});
  EXPECT_THAT(pool.snapshot().blocks, IsEmpty());
  EXPECT_EQ(pool.snapshot().name, "");
  EXPECT_EQ(code_of(memory.size_of(p)), errc::closed);
  EXPECT_EQ(code_of(memory.block_at(p)), errc::closed);
  EXPECT_EQ(code_of(memory.handles_under(p)), errc::closed);
  memory.reset_peaks();
  memory.reset_counters();
}

TEST_F(stats_test, a_pending_block_names_the_streams_it_waits_for) {
  auto memory = make({.limit = 256_MiB});
  const auto own = new_stream();
  const auto reader = new_stream();
  const auto idle = new_stream();
  void* const p = memory.allocate(128_MiB, own);
  write(reader, p, 128_MiB);
  ASSERT_TRUE(memory.record_stream(p, reader));
  ASSERT_TRUE(memory.record_stream(p, idle));
  memory.deallocate(p, own);
  const auto snapshot = memory.snapshot();
  const auto& blocks = snapshot.pools.front().blocks;
  const auto pending = std::find_if(blocks.begin(), blocks.end(), [](const block_info& each) {
    return each.state == block_state::pending;
  });
  ASSERT_NE(pending, blocks.end());
  // Nobody has looked yet how far they have come.
  EXPECT_THAT(pending->waits_for, ::testing::ElementsAre(reader.id(), idle.id()));
  const auto number = [](const stream& each) { return std::to_string(each.id().number()); };
  EXPECT_THAT(to_string(*pending),
              ::testing::EndsWith(": 128 MiB pending on stream " + number(own) +
                                  ", waits for stream " + number(reader) + " and " + number(idle)));
  // A look finds that one of them has nothing to do.
  EXPECT_EQ(memory.trim().value(), 0_B);
  const auto report = memory.explain(200_MiB, own);
  ASSERT_EQ(report.awaited.size(), 1u);
  EXPECT_EQ(report.awaited.front().stream, reader.id());
  EXPECT_EQ(report.awaited.front().size, 128_MiB);
  EXPECT_THAT(report.text(), HasSubstr("waiting for stream " +
                                       std::to_string(reader.id().number()) + ": 128 MiB"));
  machine->run_until_idle();
  ASSERT_TRUE(memory.empty_cache());
}

TEST_F(stats_test, the_rounding_rule_is_public) {
  EXPECT_EQ(caching_allocator::rounded_size(0_B).value(), 0_B);
  EXPECT_EQ(caching_allocator::rounded_size(1_B).value(), 512_B);
  EXPECT_EQ(caching_allocator::rounded_size(512_B).value(), 512_B);
  EXPECT_EQ(caching_allocator::rounded_size(513_B).value(), 1024_B);
  EXPECT_EQ(code_of(caching_allocator::rounded_size(bytes::max())), errc::size_overflow);
  constexpr bytes most = 2_TiB - 1024_B;
  EXPECT_EQ(caching_allocator::rounded_size(most).value(), most);
  EXPECT_EQ(code_of(caching_allocator::rounded_size(most + 1_B)), errc::size_overflow);
}

TEST_F(stats_test, a_peak_counts_what_was_live_together_only) {
  auto memory = make();
  const auto stream = new_stream();
  memory.deallocate(memory.allocate(100_MiB, stream), stream);
  memory.deallocate(memory.allocate(200_MiB, stream), stream);
  memory.deallocate(memory.allocate(150_MiB, stream), stream);
  EXPECT_EQ(memory.stats().allocated.peak, 200_MiB);
  EXPECT_EQ(memory.stats().requested.peak, 200_MiB);
  EXPECT_EQ(check(memory), "");
}

TEST_F(stats_test, a_peak_counts_what_a_thread_served_itself) {
  auto memory = make();
  const auto stream = new_stream();
  for (const bytes size : {1000_B, 1_MiB, 8_MiB}) {
    const bytes rounded = caching_allocator::rounded_size(size).value();
    memory.deallocate(memory.allocate(size, stream), stream);
    memory.reset_peaks();
    const std::uint64_t hits = memory.stats().hits;
    memory.deallocate(memory.allocate(size, stream), stream);
    const memory_stats now = memory.stats();
    ASSERT_EQ(now.hits, hits + 1);
    EXPECT_EQ(now.requested.peak, size);
    EXPECT_EQ(now.allocated.peak, rounded);
    EXPECT_EQ(now.active.peak, rounded);
    EXPECT_EQ(now.active_requested.peak, size);
    EXPECT_EQ(now.blocks.peak, 1u);
    EXPECT_EQ(now.active_blocks.peak, 1u);
    EXPECT_EQ(memory.snapshot().pools[0].stats.allocated.peak, rounded);
    EXPECT_EQ(memory.stats(tag{}).allocated.peak, rounded);
  }
  EXPECT_EQ(check(memory), "");
}

TEST_F(stats_test, a_peak_of_hits_counts_what_was_freed_after_them) {
  auto memory = make();
  const auto stream = new_stream();
  const auto reader = new_stream();
  memory.deallocate(memory.allocate(1_MiB, stream), stream);
  void* const read = memory.allocate(2_MiB, stream);
  ASSERT_TRUE(memory.record_stream(read, reader));
  memory.deallocate(memory.allocate(1_MiB, stream), stream);  // kept by size again
  memory.reset_peaks();
  memory.deallocate(memory.allocate(1_MiB, stream), stream);
  memory.deallocate(read, stream);  // with the lock
  EXPECT_EQ(memory.stats().allocated.peak, 3_MiB);
  EXPECT_EQ(memory.stats().blocks.peak, 2u);
}

/// One hit, which is still live: the block that is freed with the lock was live beside it.
TEST_F(stats_test, a_single_hit_counts_beside_what_is_freed_after_it) {
  auto memory = make();
  const auto stream = new_stream();
  const auto reader = new_stream();
  memory.deallocate(memory.allocate(1_MiB, stream), stream);
  void* const read = memory.allocate(1_MiB + 512_B, stream);  // too large for what is kept
  ASSERT_TRUE(memory.record_stream(read, reader));
  memory.deallocate(memory.allocate(1_MiB, stream), stream);  // kept by size again
  memory.reset_peaks();
  const std::uint64_t hits = memory.stats().hits;
  void* const hit = memory.allocate(1_MiB - 1_B, stream);
  memory.deallocate(read, stream);  // with the lock
  const memory_stats now = memory.stats();
  ASSERT_EQ(now.hits, hits + 1);
  EXPECT_EQ(now.allocated, (byte_gauge{1_MiB, 2_MiB + 512_B}));
  EXPECT_EQ(now.requested, (byte_gauge{1_MiB - 1_B, 2_MiB + 511_B}));
  EXPECT_EQ(now.blocks.current, 1u);
  EXPECT_EQ(now.blocks.peak, 2u);
  EXPECT_EQ(memory.stats(tag{}).allocated.peak, 2_MiB + 512_B);
  EXPECT_EQ(memory.snapshot().pools[0].stats.allocated.peak, 2_MiB + 512_B);
  memory.deallocate(hit, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(stats_test, two_tags_that_share_a_block_have_a_peak_each_and_one_together) {
  auto memory = make();
  const auto stream = new_stream();
  const tag first = tag::named("first of a pair").value();
  const tag second = tag::named("second of a pair").value();
  const auto take_and_free = [&](tag as) {
    const tag_scope tagged{as};
    memory.deallocate(memory.allocate(1_MiB, stream), stream);
  };
  take_and_free(first);
  take_and_free(second);
  memory.reset_peaks();
  const std::uint64_t hits = memory.stats().hits;
  take_and_free(first);
  take_and_free(second);
  ASSERT_EQ(memory.stats().hits, hits + 2);
  EXPECT_EQ(memory.stats(first).allocated.peak, 1_MiB);
  EXPECT_EQ(memory.stats(second).allocated.peak, 1_MiB);
  EXPECT_LE(memory.stats().allocated.peak, 1_MiB);
  EXPECT_EQ(check(memory), "");
}

TEST_F(stats_test, tags_follow_the_scope_and_add_up) {
  auto memory = make();
  const auto stream = new_stream();
  void* untagged = memory.allocate(512_B, stream);
  void* first = nullptr;
  void* second = nullptr;
  {
    const tag_scope outer{weights};
    first = memory.allocate(1_MiB, stream);
    {
      const tag_scope inner{scratch};
      second = memory.allocate(2_MiB, stream);
    }
    memory.deallocate(untagged, stream);
    untagged = memory.allocate(512_B, stream);  // a hit, with a tag now
  }
  EXPECT_EQ(memory.stats(weights).allocated.current, 1_MiB + 512_B);
  EXPECT_EQ(memory.stats(scratch).allocated.current, 2_MiB);
  EXPECT_EQ(memory.stats(tag{}).allocated.current, 0_B);
  const auto all = memory.stats_by_tag();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].tag, scratch);
  bytes sum;
  for (const auto& each : all) sum += each.stats.allocated.current;
  EXPECT_EQ(sum, memory.stats().allocated.current);
  EXPECT_EQ(memory.stats(weights).reserved, memory.stats(weights).active);
  for (void* const p : {untagged, first, second}) memory.deallocate(p, stream);
  EXPECT_EQ(memory.stats(weights).blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(stats_test, a_tags_limit_holds_through_the_caches) {
  auto memory = make();
  const auto stream = new_stream();
  const tag_scope as{weights};
  // Cached blocks of the tag, before there is a limit.
  void* p[4];
  for (auto& each : p) each = memory.allocate(100_KiB, stream);
  for (auto* const each : p) memory.deallocate(each, stream);
  ASSERT_TRUE(memory.set_limit(weights, 300_KiB));
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 3; ++i) p[i] = memory.allocate(100_KiB, stream);
    EXPECT_EQ(code_of(memory.try_allocate(1_B, stream)), errc::out_of_memory);
    for (int i = 0; i < 3; ++i) memory.deallocate(p[i], stream);
  }
  EXPECT_EQ(memory.stats().failures, 5u);
  {
    const tag_scope other{scratch};
    memory.deallocate(memory.allocate(10_MiB, stream), stream);
  }
  ASSERT_TRUE(memory.set_limit(weights, bytes::max()));
  memory.deallocate(memory.allocate(10_MiB, stream), stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(stats_test, limits_bound_what_is_reserved) {
  allocator_options settings;
  settings.limit = 256_MiB;
  auto memory = make(settings);
  const auto stream = new_stream();
  EXPECT_EQ(memory.limit(), 256_MiB);
  EXPECT_EQ(code_of(memory.try_allocate(300_MiB, stream)), errc::out_of_memory);
  void* const p = memory.allocate(200_MiB, stream);
  EXPECT_EQ(code_of(memory.try_allocate(100_MiB, stream)), errc::out_of_memory);
  EXPECT_LE(memory.stats().reserved.peak, 256_MiB);
  ASSERT_TRUE(memory.set_limit_fraction(0.5));
  EXPECT_EQ(memory.limit(), 1_GiB);
  void* const q = memory.allocate(700_MiB, stream);
  EXPECT_EQ(code_of(memory.set_limit_fraction(0.0)), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.set_limit_fraction(1.5)), errc::invalid_argument);
  EXPECT_EQ(code_of(memory.set_limit_fraction(std::numeric_limits<double>::quiet_NaN())),
            errc::invalid_argument);
  memory.deallocate(p, stream);
  memory.deallocate(q, stream);
  settings.limit = {};
  settings.limit_percent = 25;
  EXPECT_EQ(make(settings).limit(), 512_MiB);
}

TEST_F(stats_test, a_snapshot_covers_everything) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const tag_scope as{weights};
  void* const live = memory.allocate(1000_B, one);
  void* const cached = memory.allocate(2000_B, one);
  void* const pending = memory.allocate(5_MiB, one);
  write(two, pending, 5_MiB);
  ASSERT_TRUE(memory.record_stream(pending, two));
  memory.deallocate(cached, one);
  memory.deallocate(pending, one);
  const auto picture = memory.snapshot();
  ASSERT_EQ(picture.pools.size(), 1u);
  std::uint64_t next = picture.pools[0].blocks.front().address;
  std::uint64_t in_memory = 0;
  const auto state_of = [&](void* p) {
    for (const auto& each : picture.pools[0].blocks)
      if (each.address == reinterpret_cast<std::uint64_t>(p)) return each;
    return block_info{.state = block_state::hole};
  };
  for (const auto& each : picture.pools[0].blocks) {
    EXPECT_EQ(each.address, next) << "no gaps";
    next = each.address + each.size.count();
    if (each.state != block_state::hole) in_memory += each.size.count();
  }
  EXPECT_EQ(bytes{in_memory}, picture.stats.reserved.current);
  EXPECT_EQ(state_of(live).state, block_state::live);
  EXPECT_EQ(state_of(live).requested, 1000_B);
  EXPECT_EQ(state_of(live).tag, weights);
  EXPECT_EQ(state_of(live).stream, one.id());
  EXPECT_THAT(state_of(live).waits_for, IsEmpty());
  EXPECT_EQ(state_of(cached).state, block_state::thread_cached);
  EXPECT_EQ(state_of(pending).state, block_state::pending);
  EXPECT_THAT(state_of(pending).waits_for, ElementsAre(two.id()));
  for (void* const freed : {cached, pending}) {
    EXPECT_EQ(state_of(freed).requested, 0_B);
    EXPECT_EQ(state_of(freed).tag, tag{});
    EXPECT_EQ(state_of(freed).stream, one.id());
  }
  EXPECT_EQ(picture.stats.allocated.current, 1024_B);
  memory.deallocate(live, one);
}

TEST_F(stats_test, a_report_says_where_the_memory_is_and_what_helps) {
  allocator_options settings;
  settings.limit = 512_MiB;
  auto memory = make(settings);
  const auto one = new_stream();
  const auto two = new_stream();
  void* live = nullptr;
  {
    const tag_scope as{weights};
    live = memory.allocate(300_MiB, one);
  }
  void* const bound = memory.allocate(100_MiB, two);
  auto held = hold(two);
  write(two, bound, 100_MiB);
  memory.deallocate(bound, two);
  ASSERT_TRUE(memory.release_stream(two));
  const auto about = memory.explain(400_MiB, one);
  EXPECT_EQ(about.requested, 400_MiB);
  EXPECT_EQ(about.limit, 512_MiB);
  EXPECT_EQ(about.stream, one.id());
  ASSERT_FALSE(about.tags.empty());
  EXPECT_EQ(about.tags[0].tag, weights);
  ASSERT_FALSE(about.largest.empty());
  EXPECT_EQ(about.largest[0].size, 300_MiB);
  ASSERT_EQ(about.bound.size(), 1u);
  EXPECT_EQ(about.bound[0].stream, two.id());
  EXPECT_EQ(about.bound[0].size, 100_MiB);
  EXPECT_THAT(about.advice, HasSubstr("Raise it by"));
  EXPECT_THAT(about.advice, HasSubstr("bound to stream " + std::to_string(two.id().number())));
  EXPECT_THAT(about.text(), HasSubstr("stats test: weights"));
  held.release();
  try {
    static_cast<void>(memory.allocate(600_MiB, one));
    FAIL();
  } catch (const out_of_memory& found) {
    EXPECT_EQ(found.reason().code(), errc::out_of_memory);
    EXPECT_EQ(found.reason().requested(), 600_MiB);
    EXPECT_THAT(found.report(), HasSubstr("300 MiB"));
  }
  memory.deallocate(live, one);
}

/// A thread counts its hits by itself. Until it is asked, the books may show less than nothing is
/// live; no peak may come of that.
TEST_F(stats_test, a_hit_that_another_thread_frees_raises_no_peak) {
  auto memory = make();
  const auto stream = new_stream();
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  memory.reset_peaks();  // counts everything
  void* const hit = memory.allocate(64_KiB, stream);
  std::thread{[&] {
    memory.deallocate(hit, stream);
    memory.deallocate(memory.allocate(512_B, stream), stream);
  }}.join();
  const memory_stats now = memory.stats();
  EXPECT_EQ(now.hits, 1u);
  EXPECT_EQ(now.requested.current, 0_B);
  EXPECT_LE(now.requested.peak, 65_KiB);
  EXPECT_LE(now.allocated.peak, 65_KiB);
  EXPECT_LE(now.active.peak, 65_KiB);
  EXPECT_LE(now.blocks.peak, 2u);
}

// A thread's cache counts by tag. What one tag had freed there and another took was told in two
// parts, and the sum of all tags was too high in between, and its peak for good.
TEST_F(stats_test, a_block_that_changes_its_tag_in_a_cache_is_never_counted_twice) {
  auto memory = make();
  const auto stream = new_stream();
  const tag first = tag::named("first owner").value();
  const tag second = tag::named("second owner").value();
  void* large = nullptr;
  void* pin = nullptr;
  {
    const tag_scope tagged{first};
    large = memory.allocate(32_MiB, stream);
  }
  {
    const tag_scope tagged{second};
    pin = memory.allocate(1_KiB, stream);  // there is room beside it
  }
  static_cast<void>(memory.stats());
  {
    const tag_scope tagged{first};
    memory.deallocate(large, stream);  // into the cache; not told yet
  }
  {
    const tag_scope tagged{second};
    large = memory.allocate(32_MiB, stream);              // from the cache
    void* const other = memory.allocate(64_KiB, stream);  // from the store, which is told
    constexpr bytes most = 32_MiB + 65_KiB;
    EXPECT_EQ(memory.stats().active.peak, most);
    EXPECT_EQ(memory.stats().allocated.peak, most);
    memory.deallocate(other, stream);
    memory.deallocate(pin, stream);
  }
  memory.deallocate(large, stream);
}

/// A cache counts the tags up to the last that was used; the next is the first that it does not.
TEST_F(stats_test, a_tag_that_is_new_to_the_thread_is_counted) {
  const tag last = tag::named("stats test: known to the thread").value();
  const tag next = tag::named("stats test: new to the thread").value();
  ASSERT_EQ(next.number(), last.number() + 1);
  auto memory = make();
  const auto stream = new_stream();
  {
    const tag_scope as{last};
    memory.deallocate(memory.allocate(1000_B, stream), stream);
  }
  const tag_scope as{next};
  void* const p = memory.allocate(1000_B, stream);
  EXPECT_EQ(memory.stats(next).allocations, 1u);
  EXPECT_EQ(memory.stats(next).requested.current, 1000_B);
  EXPECT_EQ(memory.stats(next).allocated.current, 1024_B);
  EXPECT_EQ(memory.stats(last).blocks.current, 0u);
  memory.deallocate(p, stream);
  EXPECT_EQ(memory.stats(next).frees, 1u);
  EXPECT_EQ(memory.stats(next).blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

}  // namespace
}  // namespace weir::testing_support
