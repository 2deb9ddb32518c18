// SPDX-License-Identifier: Apache-2.0
// What threads' caches keep and what they hand over, to the byte.
#include <thread>
#include <utility>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

/// Caches of 1 MiB, whatever is reserved.
class flush_test : public graph_test {
 protected:
  [[nodiscard]] static heap::thread_cache& own_cache() { return *heap::this_thread.cache; }
  [[nodiscard]] std::vector<void*> take(std::size_t count, bytes size, const stream_ref& on) {
    std::vector<void*> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(memory.allocate(size, on));
    return all;
  }
  void free(const std::vector<void*>& all, const stream_ref& on) {
    for (void* const p : all) memory.deallocate(p, on);
  }
  /// Without asking, which would have everybody tell what he counted.
  [[nodiscard]] static bytes cached() { return bytes{own_cache().held()}; }

  caching_allocator memory = make({.thread_cache = 1_MiB});
  const stream one = new_stream();
  const stream two = new_stream();
};

TEST_F(flush_test, a_cache_takes_what_it_may_hold) {
  const auto all = take(17, 64_KiB, one);
  for (std::size_t i = 0; i < 16; ++i) {
    memory.deallocate(all[i], one);
    EXPECT_EQ(cached(), (i + 1) * 64_KiB);
  }
  EXPECT_EQ(own_cache().bound() * 512, (1_MiB).count());
  // Nothing of it was asked for again: all goes but for the last one.
  memory.deallocate(all[16], one);
  EXPECT_EQ(cached(), 64_KiB);
  EXPECT_EQ(memory.stats().thread_cached, 64_KiB);
  EXPECT_EQ(memory.stats().frees, 17u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, a_full_cache_keeps_the_newer_half_of_what_is_asked_for_again) {
  const auto all = take(17, 64_KiB, one);
  free({all.begin(), all.begin() + 16}, one);
  for (int i = 0; i < 5; ++i) memory.deallocate(memory.allocate(64_KiB, one), one);
  memory.deallocate(all[16], one);  // 5 hits of 22 frees are enough
  EXPECT_EQ(cached(), 9 * 64_KiB);
  EXPECT_EQ(memory.allocate(64_KiB, one), all[16]) << "the last one first";
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(memory.allocate(64_KiB, one), all[15 - i]) << "those that were freed last";
  EXPECT_EQ(cached(), 0_B);
  EXPECT_EQ(memory.stats().hits, 14u);
  EXPECT_EQ(memory.stats().allocated.current, 9 * 64_KiB);
  free({all.begin() + 8, all.end()}, one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, a_full_cache_keeps_nothing_of_what_is_hardly_asked_for_again) {
  const auto all = take(17, 64_KiB, one);
  free({all.begin(), all.begin() + 16}, one);
  for (int i = 0; i < 4; ++i) memory.deallocate(memory.allocate(64_KiB, one), one);
  memory.deallocate(all[16], one);  // 4 hits of 21 frees are not
  EXPECT_EQ(cached(), 64_KiB);
  EXPECT_EQ(memory.stats().hits, 4u);
  EXPECT_EQ(memory.stats().frees, 21u);
  EXPECT_EQ(memory.stats().allocated, (byte_gauge{0_B, 17 * 64_KiB}));
}

TEST_F(flush_test, what_is_asked_for_again_is_a_quarter_of_the_frees_rounded_down) {
  for (const std::size_t hits : {9u, 10u}) {
    memory = make({.thread_cache = 1_MiB});
    const auto all = take(33, 32_KiB, one);
    free({all.begin(), all.begin() + 32}, one);
    ASSERT_EQ(cached(), 1_MiB);
    for (std::size_t i = 0; i < hits; ++i) memory.deallocate(memory.allocate(32_KiB, one), one);
    memory.deallocate(all[32], one);
    // Of 42 frees ten would be enough, and of 43.
    EXPECT_EQ(cached(), hits == 10 ? 17 * 32_KiB : 32_KiB) << hits;
  }
}

TEST_F(flush_test, lists_are_halved_from_the_largest_size_until_half_is_free) {
  // 768, 192 and 64 KiB fill it.
  const auto large = take(6, 128_KiB, one);
  const auto middle = take(3, 64_KiB, one);
  const auto small = take(64, 1_KiB, one);
  void* const last = memory.allocate(1_KiB, one);
  free(large, one);
  free(middle, one);
  free(small, one);
  ASSERT_EQ(cached(), 1_MiB);
  for (int i = 0; i < 30; ++i) memory.deallocate(memory.allocate(1_KiB, one), one);
  memory.deallocate(last, one);
  // Three of six, one of three, and with that half of the cache is free.
  EXPECT_EQ(cached(), 3 * 128_KiB + 64_KiB + 64_KiB + 1_KiB);
  EXPECT_EQ(memory.allocate(64_KiB, one), middle[2]);
  const auto hits = memory.stats().hits;
  free(take(3, 128_KiB, one), one);
  EXPECT_EQ(memory.stats().hits, hits + 3);
  memory.deallocate(middle[2], one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, what_other_streams_left_goes_before_this_ones) {
  const auto theirs = take(8, 64_KiB, two);
  const auto ours = take(8, 64_KiB, one);
  void* const last = memory.allocate(64_KiB, one);
  free(theirs, two);
  free(ours, one);
  ASSERT_EQ(cached(), 1_MiB);
  for (int i = 0; i < 20; ++i) memory.deallocate(memory.allocate(64_KiB, one), one);
  memory.deallocate(last, one);
  EXPECT_EQ(cached(), 9 * 64_KiB) << "half of the cache was free with that";
  for (std::size_t i = 0; i < 9; ++i)
    EXPECT_EQ(memory.allocate(64_KiB, one), i == 0 ? last : ours[8 - i]);
  free(ours, one);
  memory.deallocate(last, one);
}

TEST_F(flush_test, a_block_as_large_as_the_cache_is_kept_alone) {
  memory = make({.thread_cache = 64_KiB});
  void* const whole = memory.allocate(64_KiB, one);
  void* const small = memory.allocate(512_B, one);
  void* const larger = memory.allocate(64_KiB + 512_B, one);
  memory.deallocate(whole, one);
  EXPECT_EQ(cached(), 64_KiB);
  memory.deallocate(small, one);
  EXPECT_EQ(cached(), 512_B) << "there was no room for both";
  memory.deallocate(larger, one);
  EXPECT_EQ(cached(), 512_B) << "it may not hold so much";
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, from_a_mebibyte_on_one_block_is_kept) {
  void* const binned = memory.allocate(1_MiB, one);
  void* const first = memory.allocate(1_MiB + 512_B, one);
  void* const second = memory.allocate(7_MiB, one);
  memory.deallocate(binned, one);
  memory.deallocate(first, one);
  EXPECT_EQ(own_cache().units * 512, (1_MiB).count());
  EXPECT_EQ(own_cache().large_units * 512, (1_MiB + 512_B).count());
  memory.deallocate(second, one);  // in its place
  EXPECT_EQ(own_cache().large_units * 512, (7_MiB).count());
  EXPECT_EQ(memory.stats().thread_cached, 8_MiB);
  EXPECT_EQ(memory.allocate(1_MiB + 512_B, one), first) << "from the heap, for which both went";
  EXPECT_EQ(own_cache().large, heap::no_block);
  EXPECT_EQ(own_cache().large_units, 0u);
  EXPECT_EQ(memory.stats().hits, 0u);
  memory.deallocate(first, one);
  EXPECT_EQ(memory.allocate(1_MiB + 512_B, one), first);
  EXPECT_EQ(memory.stats().hits, 1u);
  write(one, first, 1_MiB);
  memory.deallocate(first, one);
  void* const theirs = memory.allocate(1_MiB + 512_B, two);
  EXPECT_NE(theirs, first) << "it is another stream's";
  EXPECT_EQ(memory.stats().hits, 1u);
  memory.deallocate(theirs, two);
}

/// Of the ninth stream the lists of the one that was used longest ago make way.
TEST_F(flush_test, the_stream_that_was_used_longest_ago_makes_way) {
  std::vector<stream> streams;
  std::vector<void*> first;
  for (std::size_t i = 0; i < 9; ++i) streams.push_back(new_stream());
  for (std::size_t i = 0; i < 8; ++i) {
    first.push_back(memory.allocate(64_KiB, streams[i]));
    memory.deallocate(first[i], streams[i]);
  }
  EXPECT_EQ(own_cache().tables.size(), 8u);
  memory.deallocate(memory.allocate(64_KiB, streams[0]), streams[0]);
  EXPECT_EQ(cached(), 8 * 64_KiB);
  void* const ninth = memory.allocate(64_KiB, streams[8]);
  EXPECT_EQ(own_cache().tables.size(), 8u);
  EXPECT_EQ(cached(), 7 * 64_KiB) << "the second's went";
  const auto hits = memory.stats().hits;
  for (const std::size_t i : {0u, 2u, 3u, 4u, 5u, 6u, 7u}) {
    EXPECT_EQ(memory.allocate(64_KiB, streams[i]), first[i]);
    memory.deallocate(first[i], streams[i]);
  }
  EXPECT_EQ(memory.stats().hits, hits + 7);
  memory.deallocate(ninth, streams[8]);
  EXPECT_EQ(check(memory), "");
}

/// Streams that take turns get no table: what the eight have stays.
TEST_F(flush_test, many_streams_in_turns_do_not_flush_each_other) {
  std::vector<stream> streams;
  for (std::size_t i = 0; i < 108; ++i) streams.push_back(new_stream());
  std::vector<void*> live;
  for (const stream& each : streams) live.push_back(memory.allocate(4_KiB, each));
  // Tables made way at first; by now those of eight streams stay.
  std::vector<stream_id> owners;
  for (const auto& each : own_cache().tables) owners.push_back(each->id);
  const bytes held = cached();
  for (std::size_t i = 60; i < 108; ++i) memory.deallocate(live[i], streams[i]);
  for (std::size_t i = 60; i < 108; ++i) live[i] = memory.allocate(8_KiB, streams[i]);
  std::vector<stream_id> later;
  for (const auto& each : own_cache().tables) later.push_back(each->id);
  EXPECT_EQ(later, owners);
  EXPECT_EQ(cached(), held);
  EXPECT_EQ(memory.stats().frees, 48u);
  // Who asks twice in a row has one, and is served by it.
  memory.deallocate(live[100], streams[100]);
  memory.deallocate(memory.allocate(16_KiB, streams[100]), streams[100]);
  const auto hits = memory.stats().hits;
  void* const again = memory.allocate(16_KiB, streams[100]);
  EXPECT_EQ(memory.stats().hits, hits + 1);
  memory.deallocate(again, streams[100]);
  live.erase(live.begin() + 100);
  std::size_t at = 0;
  for (std::size_t i = 0; i < 108; ++i)
    if (i != 100) memory.deallocate(live[at++], streams[i]);
  EXPECT_EQ(check(memory), "");
}

// --- For other threads ---------------------------------------------------------------------------

TEST_F(flush_test, what_others_free_comes_home_when_it_is_asked_for) {
  const auto all = take(3, 64_KiB, one);
  std::thread{[&] {
    memory.deallocate(memory.allocate(4_KiB, one), one);
    free(all, one);
    EXPECT_EQ(cached(), 4_KiB);
  }}.join();
  EXPECT_TRUE(own_cache().has_remote());
  EXPECT_EQ(cached(), 0_B);
  EXPECT_EQ(memory.allocate(64_KiB, one), all[0]) << "freed first";
  EXPECT_FALSE(own_cache().has_remote());
  EXPECT_EQ(cached(), 2 * 64_KiB);
  memory.deallocate(all[0], one);
  EXPECT_EQ(memory.stats().hits, 1u);
  EXPECT_EQ(memory.stats().frees, 5u);
}

TEST_F(flush_test, what_finds_no_place_at_home_waits_with_who_freed_it) {
  memory.deallocate(memory.allocate(64_KiB, one), one);
  std::vector<void*> all;
  std::thread{[&] { all = take(33, 4_KiB, one); }}.join();  // whose cache is closed now
  for (std::size_t i = 0; i < 31; ++i) memory.deallocate(all[i], one);
  EXPECT_EQ(own_cache().unplaced_count, 16u) << "those that were sent and not taken";
  EXPECT_EQ(own_cache().unplaced_units, 16u * 8);
  EXPECT_EQ(own_cache().aside.count, 15u);
  memory.deallocate(all[31], one);
  EXPECT_EQ(own_cache().aside.count, 0u);
  EXPECT_EQ(own_cache().unplaced_count, 0u) << "worth the lock";
  EXPECT_EQ(own_cache().unplaced_units, 0u);
  EXPECT_EQ(own_cache().unplaced, heap::no_block);
  memory.deallocate(all[32], one);
  EXPECT_EQ(own_cache().aside.count, 1u);
  EXPECT_EQ(memory.stats().blocks.current, 0u) << "whoever asks counts it";
  EXPECT_EQ(own_cache().aside.count, 0u);
  EXPECT_EQ(own_cache().unplaced_count, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, what_is_freed_for_another_thread_goes_there_sixteen_at_a_time) {
  const auto all = take(17, 4_KiB, one);
  const heap::thread_cache& home = own_cache();
  std::thread{[&] {
    memory.deallocate(memory.allocate(4_KiB, one), one);
    for (std::size_t i = 0; i < 15; ++i) memory.deallocate(all[i], one);
    EXPECT_EQ(own_cache().aside.count, 15u);
    EXPECT_EQ(own_cache().aside.units, 15u * 8);
    EXPECT_FALSE(home.has_remote());
    memory.deallocate(all[15], one);
    EXPECT_EQ(own_cache().aside.count, 0u);
    EXPECT_EQ(own_cache().aside.units, 0u);
    EXPECT_TRUE(home.has_remote());
    memory.deallocate(all[16], one);
    EXPECT_EQ(own_cache().aside.count, 1u);
  }}.join();
  for (std::size_t i = 0; i < 17; ++i) EXPECT_EQ(memory.allocate(4_KiB, one), all[i]) << i;
  EXPECT_EQ(memory.stats().hits, 17u);
  free(all, one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, what_is_set_aside_for_another_thread_is_a_quarter_of_its_bound_at_most) {
  const auto all = take(5, 64_KiB, one);
  const heap::thread_cache& home = own_cache();
  std::thread{[&] {
    memory.deallocate(memory.allocate(4_KiB, one), one);
    for (std::size_t i = 0; i < 4; ++i) memory.deallocate(all[i], one);
    EXPECT_EQ(own_cache().aside.units * 4, own_cache().bound()) << "no more than that";
    EXPECT_FALSE(home.has_remote());
    memory.deallocate(all[4], one);
    EXPECT_EQ(own_cache().aside.count, 0u);
    EXPECT_TRUE(home.has_remote());
  }}.join();
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, what_is_set_aside_goes_before_that_of_another_thread) {
  void* const ours = memory.allocate(4_KiB, one);
  const heap::thread_cache& home = own_cache();
  std::thread{[&] {
    void* const theirs = memory.allocate(4_KiB, one);
    const heap::thread_cache& other_home = own_cache();
    std::thread{[&] {
      memory.deallocate(memory.allocate(8_KiB, one), one);
      memory.deallocate(ours, one);
      EXPECT_FALSE(home.has_remote());
      memory.deallocate(theirs, one);
      EXPECT_TRUE(home.has_remote());
      EXPECT_FALSE(other_home.has_remote());
      EXPECT_EQ(own_cache().aside.count, 1u);
    }}.join();
    EXPECT_TRUE(other_home.has_remote());
    EXPECT_EQ(memory.allocate(4_KiB, one), theirs);
    memory.deallocate(theirs, one);
  }}.join();
  EXPECT_EQ(memory.allocate(4_KiB, one), ours);
  memory.deallocate(ours, one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, what_is_set_aside_serves_whoever_needs_room) {
  memory = make({.limit = 2_MiB, .thread_cache = 1_MiB});
  const auto ours = take(31, 64_KiB, one);
  std::thread{[&] {
    void* const theirs = memory.allocate(64_KiB, one);
    memory.deallocate(ours[3], one);
    ASSERT_EQ(own_cache().aside.count, 1u);
    EXPECT_EQ(memory.allocate(64_KiB, one), ours[3]) << "who freed it";
    memory.deallocate(ours[5], one);
    ASSERT_EQ(own_cache().aside.count, 1u);
    std::thread{[&] { EXPECT_EQ(memory.allocate(64_KiB, one), ours[5]) << "anybody"; }}.join();
    EXPECT_EQ(own_cache().aside.count, 0u);
    memory.deallocate(theirs, one);
  }}.join();
  free(ours, one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, who_needs_room_takes_what_has_no_place) {
  memory = make({.limit = 4_MiB, .thread_cache = 1_MiB});
  void* const pin = memory.allocate(2_MiB, one);
  std::vector<void*> all;
  std::thread{[&] { all = take(2, 1_MiB, one); }}.join();
  memory.deallocate(all[0], one);
  EXPECT_EQ(own_cache().unplaced_count, 1u);
  memory.deallocate(all[1], one);
  EXPECT_EQ(own_cache().unplaced_count, 0u) << "more than a cache may hold is worth the lock";
  const auto misses = memory.stats().misses;
  void* const both = memory.allocate(2_MiB, one);
  EXPECT_EQ(both, all[0]);
  EXPECT_EQ(memory.stats().misses, misses);
  memory.deallocate(both, one);
  memory.deallocate(pin, one);
}

/// All that the thread that freed it has is what found no place.
TEST_F(flush_test, what_has_no_place_serves_whoever_needs_room) {
  void* const pin = memory.allocate(1_MiB, one);
  void* freed = nullptr;
  std::thread{[&] { freed = memory.allocate(1_MiB, one); }}.join();  // whose cache is closed now
  memory.deallocate(freed, one);
  ASSERT_EQ(own_cache().unplaced_count, 1u);
  ASSERT_EQ(cached(), 0_B);
  std::thread{[&] {
    void* const again = memory.allocate(1_MiB, one);
    EXPECT_EQ(again, freed);
    EXPECT_EQ(memory.stats().misses, 1u) << "the first request of all";
    EXPECT_EQ(memory.stats().reserved.current, 2_MiB);
    memory.deallocate(again, one);
  }}.join();
  memory.deallocate(pin, one);
  EXPECT_EQ(check(memory), "");
}

/// All that the owner's cache has is what others left there.
TEST_F(flush_test, what_others_freed_for_a_thread_serves_whoever_needs_room) {
  void* const ours = memory.allocate(1_MiB, one);
  std::thread{[&] {
    void* const theirs = memory.allocate(1_MiB, one);
    const memory_stats before = memory.stats();
    ASSERT_EQ(before.reserved.current, 2_MiB);
    memory.deallocate(ours, one);
    EXPECT_EQ(own_cache().unplaced_count, 0u) << "it went home";
    EXPECT_EQ(cached(), 0_B);
    void* const again = memory.allocate(1_MiB, one);
    EXPECT_EQ(again, ours);
    EXPECT_EQ(memory.stats().heap_hits, before.heap_hits + 1);
    EXPECT_EQ(memory.stats().misses, before.misses);
    EXPECT_EQ(memory.stats().reserved.current, 2_MiB);
    memory.deallocate(again, one);
    memory.deallocate(theirs, one);
  }}.join();
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

// --- Without a driver call -----------------------------------------------------------------------

TEST_F(flush_test, what_caches_hold_serves_others_before_the_driver_is_asked) {
  memory = make({.thread_cache = 64_MiB});
  const auto ours = take(8, 128_KiB, one);
  free(ours, one);
  EXPECT_EQ(cached(), 1_MiB);
  const auto reserved = memory.stats().reserved.current;
  const auto expect = [&](std::uint64_t heap_hits) {
    EXPECT_EQ(memory.stats().heap_hits, heap_hits);
    EXPECT_EQ(memory.stats().misses, 1u);
    EXPECT_EQ(memory.stats().reserved.current, reserved);
  };
  expect(7);
  void* const whole = memory.allocate(2_MiB, one);  // this thread's own
  expect(8);
  memory.deallocate(whole, one);
  std::thread{[&] {
    void* const theirs = memory.allocate(2_MiB, one);  // the other thread's large one
    expect(9);
    memory.deallocate(theirs, one);
  }}.join();
}

// --- Beside captures -----------------------------------------------------------------------------

TEST_F(flush_test, a_free_that_may_be_a_captures_is_not_kept) {
  const auto all = take(4, 64_KiB, one);
  auto own = memory.begin_capture(two).value();
  memory.deallocate(all[0], one);
  EXPECT_EQ(cached(), 64_KiB) << "the stream says that it is not captured";
  memory.deallocate(all[1]);
  EXPECT_EQ(cached(), 64_KiB) << "nobody says which stream it is";
  EXPECT_EQ(memory.allocate(64_KiB, one), all[0]);
  EXPECT_EQ(memory.stats().hits, 1u);
  own.end_capture();
  memory.deallocate(all[2]);
  EXPECT_EQ(cached(), 64_KiB);
  memory.deallocate(all[0], one);
  memory.deallocate(all[3], one);
}

TEST_F(flush_test, where_captures_are_looked_for_only_what_is_outside_is_kept) {
  memory = make({.thread_cache = 1_MiB, .detect_captures = true});
  const auto all = take(3, 64_KiB, one);
  memory.deallocate(all[0], one);
  EXPECT_EQ(cached(), 64_KiB);
  memory.deallocate(all[1]);
  EXPECT_EQ(cached(), 64_KiB);
  begin(one);
  memory.deallocate(all[2], one);
  EXPECT_EQ(cached(), 64_KiB);
  void* const inside = memory.allocate(64_KiB, one);
  EXPECT_NE(inside, all[0]);
  memory.deallocate(inside, one);
  destroy(end(one));
  EXPECT_EQ(memory.allocate(64_KiB, one), all[0]);
  memory.deallocate(all[0], one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, where_captures_are_looked_for_a_cache_takes_what_it_may_hold) {
  memory = make({.thread_cache = 1_MiB, .detect_captures = true});
  const auto all = take(3, 512_KiB, one);
  memory.deallocate(all[0], one);
  EXPECT_EQ(cached(), 512_KiB);
  memory.deallocate(all[1], one);
  EXPECT_EQ(cached(), 1_MiB) << "not a byte too much";
  memory.deallocate(all[2], one);
  EXPECT_EQ(cached(), 1_MiB);
  EXPECT_EQ(memory.stats().thread_cached, 1_MiB);
  EXPECT_EQ(memory.stats().frees, 3u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, a_cache_that_is_new_takes_a_block_that_fills_it) {
  void* const all_of_it = memory.allocate(1_MiB, one);
  std::thread{[&] {
    memory.deallocate(all_of_it, one);
    EXPECT_EQ(own_cache().bound() * 512, (1_MiB).count());
    EXPECT_EQ(cached(), 1_MiB);
    EXPECT_EQ(memory.stats().thread_cached, 1_MiB);
    EXPECT_EQ(memory.allocate(1_MiB, one), all_of_it);
    memory.deallocate(all_of_it, one);
  }}.join();
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, the_first_free_of_a_stream_may_fill_the_cache_to_the_last_byte) {
  const auto all = take(16, 64_KiB, one);
  free({all.begin(), all.begin() + 15}, one);
  ASSERT_EQ(cached(), 15 * 64_KiB);
  memory.deallocate(all[15], two);
  EXPECT_EQ(cached(), 1_MiB) << "nothing had to make way";
  EXPECT_EQ(memory.stats().thread_cached, 1_MiB);
  EXPECT_EQ(memory.stats().frees, 16u);
  EXPECT_EQ(memory.allocate(64_KiB, two), all[15]);
  for (std::size_t i = 15; i-- > 0;) EXPECT_EQ(memory.allocate(64_KiB, one), all[i]);
  EXPECT_EQ(memory.stats().hits, 16u);
  free(all, one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, a_cache_holds_no_more_than_it_may_whatever_the_size) {
  void* const small = memory.allocate(512_B, one);
  void* const all_of_it = memory.allocate(1_MiB, one);
  memory.deallocate(small, one);
  EXPECT_EQ(cached(), 512_B);
  memory.deallocate(all_of_it, one);
  EXPECT_EQ(cached(), 1_MiB) << "the newer one";
  EXPECT_EQ(memory.stats().thread_cached, 1_MiB);
  EXPECT_EQ(memory.stats().frees, 2u);
  EXPECT_EQ(memory.allocate(1_MiB, one), all_of_it);
  memory.deallocate(all_of_it, one);
  EXPECT_EQ(check(memory), "");
}

// --- With the lock alone -------------------------------------------------------------------------

TEST_F(flush_test, many_sizes_are_halved_one_after_the_other) {
  std::vector<void*> all;
  for (std::uint64_t units = 1; units <= 44; ++units)
    for (void* const each : take(2, units * 512_B, one)) all.push_back(each);
  all.push_back(memory.allocate(68 * 512_B, one));
  void* const last = memory.allocate(512_B, one);
  free(all, one);
  ASSERT_EQ(cached(), 1_MiB);
  for (int i = 0; i < 30; ++i) memory.deallocate(memory.allocate(512_B, one), one);
  memory.deallocate(last, one);
  // The largest goes, and one of each size down to 8 units.
  EXPECT_EQ(cached(), 1019 * 512_B);
  EXPECT_EQ(check(memory), "");
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(cached(), 0_B);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(flush_test, what_a_full_cache_hands_over_is_made_known_at_once) {
  void* const other = memory.allocate(4_KiB, two);  // who could use it
  const auto all = take(65, 16_KiB, one);
  free({all.begin(), all.begin() + 64}, one);
  const auto before = memory.stats().events;
  memory.deallocate(all[64], one);  // 32 go: 16 for each stream
  EXPECT_EQ(cached(), 33 * 16_KiB);
  EXPECT_GT(memory.stats().events, before);
  memory.deallocate(other, two);
}

TEST_F(flush_test, what_a_cache_may_not_hold_is_made_known_at_once) {
  memory = make({.thread_cache = 64_KiB});
  void* const other = memory.allocate(4_KiB, two);
  const auto all = take(15, 72_KiB, one);
  const auto before = memory.stats().events;
  free({all.begin(), all.begin() + 14}, one);
  EXPECT_EQ(memory.stats().events, before);
  memory.deallocate(all[14], one);  // a mebibyte together
  EXPECT_GT(memory.stats().events, before);
  memory.deallocate(other, two);
}

TEST_F(flush_test, what_makes_way_for_a_request_is_made_known_at_once) {
  void* const other = memory.allocate(4_KiB, two);
  void* const large = memory.allocate(24_MiB, one);
  memory.deallocate(large, one);
  ASSERT_EQ(cached(), 24_MiB);
  const auto before = memory.stats().events;
  void* const small = memory.allocate(64_KiB, one);
  EXPECT_EQ(cached(), 0_B);
  EXPECT_GT(memory.stats().events, before);
  memory.deallocate(small, one);
  memory.deallocate(other, two);
}

/// From 256 MiB on it is a 256th of what is reserved, 24 times.
TEST_F(flush_test, how_much_is_worth_making_known_grows_with_what_is_reserved) {
  for (const bytes less : {512_B, 0_B}) {
    memory = make({.thread_cache = 0_B});
    void* const other = memory.allocate(2_MiB, two);
    void* const pin = memory.allocate(512_MiB - 50_MiB, one);
    void* const freed = memory.allocate(48_MiB - less, one);
    const memory_stats before = memory.stats();
    ASSERT_EQ(before.reserved.current, 512_MiB);
    memory.deallocate(freed, one);
    EXPECT_EQ(memory.stats().events != before.events, less == 0_B) << less.count();
    memory.deallocate(pin, one);
    memory.deallocate(other, two);
  }
}

/// Where nobody else asked for long nothing is made known; a request that the lock alone serves
/// counts.
TEST_F(flush_test, who_asks_again_is_told_again) {
  memory = make({.thread_cache = 512_B});
  void* other = memory.allocate(64_KiB, two);
  const auto events_of_frees = [&] {
    const auto before = memory.stats().events;
    free(take(8, 1_MiB, one), one);
    return memory.stats().events - before;
  };
  EXPECT_GT(events_of_frees(), 0u);
  for (int i = 0; i < 200; ++i) static_cast<void>(events_of_frees());
  EXPECT_EQ(events_of_frees(), 0u);
  memory.deallocate(std::exchange(other, nullptr), two);
  other = memory.allocate(64_KiB, two);
  EXPECT_GT(events_of_frees(), 0u);
  memory.deallocate(other, two);
}

TEST_F(flush_test, a_free_behind_another_stream_is_that_streams_though_the_cache_is_full) {
  void* const other = memory.allocate(64_KiB, two);
  const auto all = take(17, 64_KiB, one);
  free({all.begin(), all.begin() + 16}, one);
  memory.deallocate(all[16], two);
  EXPECT_EQ(cached(), 64_KiB);
  EXPECT_EQ(memory.allocate(64_KiB, two), all[16]);
  EXPECT_EQ(memory.stats().hits, 1u);
  for (void* const each : {all[16], other}) memory.deallocate(each, two);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, a_large_block_is_of_the_stream_that_it_was_freed_behind) {
  void* const other = memory.allocate(64_KiB, two);
  void* const large = memory.allocate(2_MiB, one);
  memory.deallocate(large, two);
  EXPECT_EQ(cached(), 2_MiB);
  EXPECT_EQ(memory.allocate(2_MiB, two), large);
  EXPECT_EQ(memory.stats().hits, 1u);
  for (void* const each : {large, other}) memory.deallocate(each, two);
  EXPECT_EQ(check(memory), "");
}

TEST_F(flush_test, a_large_block_is_counted_for_who_has_it_now) {
  const tag other = tag::named("flush test: other").value();
  void* const large = memory.allocate(2_MiB, one);
  void* small = nullptr;
  {
    const tag_scope scope{other};
    small = memory.allocate(64_KiB, one);
    memory.deallocate(large, one);
    EXPECT_EQ(memory.allocate(2_MiB - 100_B, one), large);
  }
  EXPECT_EQ(memory.stats().hits, 1u);
  EXPECT_EQ(memory.size_of(large).value(), 2_MiB - 100_B);
  EXPECT_EQ(memory.stats(other).allocated.current, 2_MiB + 64_KiB);
  EXPECT_EQ(memory.stats(other).requested.current, 2_MiB + 64_KiB - 100_B);
  EXPECT_EQ(memory.stats(tag{}).allocated.current, 0_B);
  for (void* const each : {large, small}) memory.deallocate(each, one);
}

/// What was not there last time may be there now.
TEST_F(flush_test, what_was_freed_since_it_was_missed_is_found) {
  void* const theirs = memory.allocate(4_KiB, two);
  void* const first = memory.allocate(64_KiB, one);
  void* const missed = memory.allocate(64_KiB, one);
  memory.deallocate(missed, one);
  memory.deallocate(theirs, two);  // which is the stream that was used last
  EXPECT_EQ(memory.allocate(64_KiB, one), missed);
  EXPECT_EQ(memory.stats().hits, 1u);
  for (void* const each : {first, missed}) memory.deallocate(each, one);
}

TEST_F(flush_test, the_default_stream_of_another_device_is_no_stream_of_this) {
  const auto here = stream_ref::legacy(gpu());
  const auto there = stream_ref::legacy(gpu(1));
  void* const p = memory.allocate(64_KiB, here);
  void* const q = memory.allocate(64_KiB, here);
  memory.deallocate(q, here);
  EXPECT_EQ(code_of(memory.try_allocate(64_KiB, there)), errc::bad_stream) << "cached";
  EXPECT_EQ(code_of(memory.try_allocate(32_KiB, there)), errc::bad_stream) << "to be had";
  EXPECT_EQ(code_of(memory.try_deallocate(p, there)), errc::bad_stream);
  EXPECT_EQ(memory.stats().blocks.current, 1u);
  memory.deallocate(p, here);
}

TEST_F(flush_test, a_mebibyte_is_the_largest_block_that_goes_home) {
  const auto all = take(2, 1_MiB, one);  // the second needs the lock alone
  const heap::thread_cache& home = own_cache();
  std::thread{[&] {
    memory.deallocate(memory.allocate(4_KiB, one), one);
    memory.deallocate(all[1], one);
    EXPECT_EQ(cached(), 4_KiB);
    EXPECT_EQ(own_cache().unplaced_count, 0u);
    EXPECT_TRUE(home.has_remote());
  }}.join();
  EXPECT_EQ(memory.allocate(1_MiB, one), all[1]);
  EXPECT_EQ(memory.stats().hits, 1u);
  memory.deallocate(all[1], one);
  memory.deallocate(all[0], one);
}

TEST_F(flush_test, a_cache_may_hold_more_once_others_have_reserved_more) {
  memory = make({.thread_cache = 4_MiB});
  void* const first = memory.allocate(64_KiB, one);
  const std::uint64_t before = own_cache().bound();
  EXPECT_EQ(before * 512, (1_MiB).count() / 4 * 5);
  void* pin = nullptr;
  std::thread{[&] {
    pin = memory.allocate(1536_MiB, one);
    memory.deallocate(memory.allocate(2_MiB, one), one);
  }}.join();
  const bytes reserved = memory.stats().reserved.current;
  EXPECT_EQ(own_cache().bound(), before);
  void* const second = memory.allocate(64_KiB, one);
  EXPECT_EQ(own_cache().bound(), reserved.count() / 1024 / 512);
  EXPECT_EQ(memory.stats().reserved.current, reserved) << "there was room";
  for (void* const each : {first, second, pin}) memory.deallocate(each, one);
}

/// Not by the next request: what the other stream is given meanwhile would be waited for, too.
TEST_F(flush_test, a_recorded_use_ends_where_the_block_was_freed) {
  void* const p = memory.allocate(64_KiB, one);
  write(two, p, 64_KiB);
  ASSERT_TRUE(memory.record_stream(p, two));
  const auto before = memory.stats().events;
  memory.deallocate(p, one);
  EXPECT_EQ(memory.stats().pending, 64_KiB);
  EXPECT_GT(memory.stats().events, before);
  ASSERT_TRUE(two.synchronize());
  const auto held = hold(two);
  void* const other = memory.allocate(4_KiB, two);
  write(two, other, 4_KiB);
  EXPECT_EQ(memory.allocate(64_KiB, one), p) << "later work has nothing to do with it";
  EXPECT_EQ(memory.stats().pending, 0_B);
  memory.deallocate(p, one);
  memory.deallocate(other, two);
}

}  // namespace
}  // namespace weir::testing_support
