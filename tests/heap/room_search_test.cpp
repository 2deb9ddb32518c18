// SPDX-License-Identifier: Apache-2.0
// Every rung between a request and out of memory: each the only one that can help.
#include <thread>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// 1 GiB may be reserved.
class room_search_test : public heap_test {
 protected:
  room_search_test() {
    settings.limit = 1_GiB;
    memory.emplace(make(settings));
  }
  void TearDown() override {
    EXPECT_EQ(check(*memory), "");
    heap_test::TearDown();
  }
  allocator_options settings;
  std::optional<caching_allocator> memory;
};

TEST_F(room_search_test, the_threads_own_cache_is_flushed) {
  allocator_options full = settings;
  full.thread_cache = 1_GiB;
  memory.emplace(make(full));
  const auto stream = new_stream();
  std::vector<void*> all;
  for (int i = 0; i < 1024; ++i) all.push_back(memory->allocate(1_MiB, stream));
  EXPECT_EQ(code_of(memory->try_allocate(1_MiB, stream)), errc::out_of_memory);
  for (void* const p : all) memory->deallocate(p, stream);
  EXPECT_EQ(memory->stats().thread_cached, 1_MiB);
  void* const p = memory->allocate(1_GiB, stream);
  memory->deallocate(p, stream);
}

TEST_F(room_search_test, other_threads_caches_are_handed_back) {
  allocator_options full = settings;
  full.thread_cache = 1_GiB;
  memory.emplace(make(full));
  const auto stream = new_stream();
  std::atomic<int> stage{0};
  std::thread other{[&] {
    std::vector<void*> all;
    for (int i = 0; i < 1024; ++i) all.push_back(memory->allocate(1_MiB, stream));
    for (void* const p : all) memory->deallocate(p, stream);
    stage = 1;
    while (stage != 2) std::this_thread::yield();
  }};
  while (stage != 1) std::this_thread::yield();
  void* const p = memory->allocate(1_GiB, stream);
  memory->deallocate(p, stream);
  stage = 2;
  other.join();
}

TEST_F(room_search_test, what_other_threads_freed_for_this_one_is_taken_in) {
  const auto stream = new_stream();
  std::vector<void*> all;
  for (int i = 0; i < 1024; ++i) all.push_back(memory->allocate(1_MiB, stream));
  std::thread{[&] {
    for (void* const p : all) memory->deallocate(p, stream);
  }}.join();
  void* const p = memory->allocate(1_GiB, stream);
  memory->deallocate(p, stream);
}

/// An aligned request, which no cache serves, in 2 MiB that are otherwise taken: where it ended.
class leftovers_test : public heap_test {
 protected:
  /// How often the lock was taken.
  [[nodiscard]] std::uint64_t locks() const { return heap::central_heap::of(memory).trail().locks; }
  [[nodiscard]] heap::rung rung_of_request() {
    void* const p = memory.allocate(512_KiB, on, 1_KiB);
    const heap::rung last = heap::central_heap::of(memory).trail().last;
    memory.deallocate(p, on);
    for (void* const each : taken) memory.deallocate(each, on);
    EXPECT_EQ(check(memory), "");
    return last;
  }
  void take(bytes size) { taken.push_back(memory.allocate(size, on)); }
  void give_last() {
    memory.deallocate(taken.back(), on);
    taken.pop_back();
  }
  const stream on = new_stream();
  caching_allocator memory = make({.limit = 2_MiB});
  std::vector<void*> taken;
};

TEST_F(leftovers_test, the_large_block_of_the_threads_cache_is_free) {
  take(512_KiB);
  take(1536_KiB);
  give_last();
  ASSERT_EQ(memory.stats().thread_cached, 1536_KiB);
  EXPECT_EQ(rung_of_request(), heap::rung::free_range);
}

TEST_F(leftovers_test, what_found_no_place_in_its_own_cache_is_free) {
  take(4_KiB);
  give_last();
  void* p = nullptr;
  std::thread{[&] { p = memory.allocate(1_MiB, on); }}.join();
  take(1020_KiB);
  const auto before = locks();
  memory.deallocate(p, on);  // whose thread is gone
  ASSERT_EQ(locks(), before) << "it is in no store yet";
  EXPECT_EQ(rung_of_request(), heap::rung::free_range);
}

TEST_F(leftovers_test, what_others_freed_beyond_the_bound_is_free) {
  take(504_KiB);
  void* const p = memory.allocate(1_MiB, on);
  take(512_KiB);
  give_last();  // half of what the cache may hold is there
  std::thread{[&] {
    memory.deallocate(memory.allocate(4_KiB, on), on);
    const auto before = locks();
    memory.deallocate(p, on);
    ASSERT_EQ(locks(), before) << "it is on its way to its cache";
  }}.join();
  EXPECT_EQ(rung_of_request(), heap::rung::free_range);
}

TEST_F(room_search_test, completed_epochs_are_retired) {
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory->allocate(1_GiB, one);
  write(one, p, 1_GiB);
  memory->deallocate(p, one);
  ASSERT_TRUE(memory->release_stream(one));
  machine->run_until_idle();
  const auto waits = memory->stats().waits;
  void* const q = memory->allocate(1_GiB, two);
  write(two, q, 1_GiB);
  EXPECT_EQ(memory->stats().waits, waits);
  memory->deallocate(q, two);
}

TEST_F(room_search_test, other_streams_memory_is_taken_behind_a_wait) {
  const auto one = new_stream();
  const auto two = new_stream();
  auto held = hold(one);
  void* const p = memory->allocate(1_GiB, one);
  write(one, p, 1_GiB);
  memory->deallocate(p, one);
  listener told;
  auto observation = memory->add_observer(told).value();
  void* const q = memory->allocate(1_GiB, two);  // nobody waits on the host
  observation.close();
  write(two, q, 1_GiB);
  EXPECT_GT(memory->stats().waits, 0u);
  EXPECT_EQ(told.count(memory_event_kind::wait), memory->stats().waits);
  held.release();
  memory->deallocate(q, two);
}

TEST_F(room_search_test, pending_blocks_are_taken_behind_waits) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto three = new_stream();
  void* const p = memory->allocate(1_GiB, one);
  auto first = hold(one);
  auto second = hold(two);
  write(two, p, 1_GiB);
  ASSERT_TRUE(memory->record_stream(p, two));
  memory->deallocate(p, one);
  EXPECT_EQ(memory->stats().pending, 1_GiB);
  void* const q = memory->allocate(1_GiB, three);
  write(three, q, 1_GiB);
  EXPECT_EQ(memory->stats().pending, 0_B);
  first.release();
  second.release();
  memory->deallocate(q, three);
}

TEST_F(room_search_test, a_pending_block_serves_what_fits_into_it_wherever_it_begins) {
  const auto pending_after = [&](bytes size, bytes alignment) {
    auto fresh = make({.thread_cache = {}});
    const auto one = new_stream();
    const auto two = new_stream();
    const auto three = new_stream();
    void* const p = fresh.allocate(2_MiB, one);
    auto held = hold(two);
    write(two, p, 2_MiB);
    EXPECT_TRUE(fresh.record_stream(p, two));
    fresh.deallocate(p, one);
    void* const q = fresh.allocate(size, three, alignment);
    const bytes pending = fresh.stats().pending;
    held.release();
    fresh.deallocate(q, three);
    return pending;
  };
  EXPECT_EQ(pending_after(2_MiB, 512_B), 0_B);
  EXPECT_EQ(pending_after(2_MiB + 1_B, 512_B), 2_MiB);
  EXPECT_EQ(pending_after(2_MiB - 3584_B, 4_KiB), 0_B);
  EXPECT_EQ(pending_after(2_MiB - 3072_B, 4_KiB), 2_MiB);
}

TEST_F(room_search_test, of_pending_blocks_the_smallest_that_suffices_is_taken) {
  auto fresh = make({.limit = 26_MiB, .thread_cache = {}});
  const auto one = new_stream();
  const auto two = new_stream();
  const auto three = new_stream();
  const auto pool = fresh.create_pool("apart").value();
  std::vector<void*> all;
  for (const bytes size : {8_MiB, 2_MiB, 4_MiB, 6_MiB, 4_MiB})
    all.push_back(fresh.allocate(size, one));
  all.push_back(pool.allocate(2_MiB, one));
  auto held = hold(two);
  write(two, all[0], 8_MiB);
  for (void* const each : all) {
    ASSERT_TRUE(fresh.record_stream(each, two));
    fresh.deallocate(each, one);
  }
  ASSERT_EQ(fresh.stats().pending, 26_MiB);
  auto* const taken = static_cast<std::byte*>(fresh.allocate(3_MiB, three));
  EXPECT_EQ(fresh.stats().pending, 22_MiB);
  EXPECT_GE(taken, all[2]) << "of equals the one that was freed first";
  EXPECT_LT(taken, static_cast<std::byte*>(all[2]) + (4_MiB).count());
  void* const smaller = fresh.allocate(1_MiB + 512_KiB, three);
  EXPECT_EQ(fresh.stats().pending, 20_MiB);
  EXPECT_EQ(pool.stats().pending, 2_MiB) << "another pool's is no room";
  held.release();
  fresh.deallocate(taken, three);
  fresh.deallocate(smaller, three);
}

TEST_F(room_search_test, what_other_pools_cache_is_released) {
  const auto stream = new_stream();
  const auto other = memory->create_pool("other").value();
  void* const p = other.allocate(1_GiB, stream);
  write(stream, p, 1_GiB);
  memory->deallocate(p, stream);
  machine->run_until_idle();
  void* const q = memory->allocate(1_GiB, stream);
  write(stream, q, 1_GiB);
  memory->deallocate(q, stream);
  machine->run_until_idle();
  void* const r = other.allocate(1_GiB, stream);
  write(stream, r, 1_GiB);
  memory->deallocate(r, stream);
}

TEST_F(room_search_test, callbacks_are_asked_without_the_lock_and_not_recursively) {
  const auto stream = new_stream();
  std::vector<void*> held;
  for (int i = 0; i < 4; ++i) held.push_back(memory->allocate(256_MiB, stream));
  int asked = 0;
  const auto registration =
      memory
          ->on_out_of_memory([&](bytes needed) {
            ++asked;
            EXPECT_EQ(needed, 512_MiB);
            // May use the allocator; a request from inside does not ask again.
            EXPECT_EQ(code_of(memory->try_allocate(1_GiB, stream)), errc::out_of_memory);
            if (held.empty()) return false;
            memory->deallocate(held.back(), stream);
            held.pop_back();
            return true;
          })
          .value();
  void* const p = memory->allocate(512_MiB, stream);
  EXPECT_EQ(asked, 2) << "one block is not enough";
  EXPECT_EQ(held.size(), 2u);
  memory->deallocate(p, stream);
  for (void* const each : held) memory->deallocate(each, stream);
}

TEST_F(room_search_test, what_a_callback_frees_before_growth_is_used_instead_of_new_memory) {
  const auto stream = new_stream();
  void* held = memory->allocate(256_MiB, stream);
  std::vector<bytes> asked;
  auto registration = memory
                          ->before_growth([&](bytes needed) {
                            asked.push_back(needed);
                            // A request from inside does not ask again.
                            memory->deallocate(memory->allocate(8_MiB, stream), stream);
                            if (held != nullptr)
                              memory->deallocate(std::exchange(held, nullptr), stream);
                            return false;
                          })
                          .value();
  void* const p = memory->allocate(128_MiB, stream);
  EXPECT_THAT(asked, ElementsAre(128_MiB));
  EXPECT_LE(memory->stats().reserved.peak, 256_MiB + 8_MiB);
  void* const q = memory->allocate(64_MiB, stream);
  EXPECT_EQ(asked.size(), 1u) << "there was room";
  void* const r = memory->allocate(512_MiB, stream);
  EXPECT_THAT(asked, ElementsAre(128_MiB, 512_MiB)) << "once a request";
  registration = {};
  void* const s = memory->allocate(128_MiB, stream);
  EXPECT_EQ(asked.size(), 2u) << "the registration is gone";
  for (void* const each : {p, q, r, s}) memory->deallocate(each, stream);
}

TEST_F(room_search_test, a_callback_before_growth_that_throws_ends_its_request) {
  const auto stream = new_stream();
  {
    const auto registration =
        memory->before_growth([](bytes) -> bool { throw std::runtime_error{"no"}; }).value();
    EXPECT_THROW(static_cast<void>(memory->allocate(64_MiB, stream)), std::runtime_error);
  }
  EXPECT_EQ(memory->stats().failures, 1u);
  memory->deallocate(memory->allocate(64_MiB, stream), stream);
}

TEST_F(room_search_test, a_callback_that_lies_is_not_asked_for_ever) {
  const auto stream = new_stream();
  void* const p = memory->allocate(1_GiB, stream);
  int asked = 0;
  {
    const auto registration = memory->on_out_of_memory([&](bytes) { return ++asked > 0; }).value();
    EXPECT_EQ(code_of(memory->try_allocate(1_KiB, stream)), errc::out_of_memory);
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(code_of(memory->try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(asked, 1) << "the registration is gone";
  memory->deallocate(p, stream);
}

TEST_F(room_search_test, a_callback_that_takes_memory_and_gives_it_back_is_not_asked_for_ever) {
  const auto stream = new_stream();
  void* const p = memory->allocate(1_GiB - 4_MiB, stream);
  int asked = 0;
  const auto registration = memory->on_out_of_memory([&](bytes) {
    EXPECT_LT(++asked, 100);
    if (asked < 100) memory->deallocate(memory->allocate(1_KiB, stream), stream);
    return false;
  });
  EXPECT_EQ(code_of(memory->try_allocate(64_MiB, stream)), errc::out_of_memory);
  EXPECT_GE(asked, 1);
  memory->deallocate(p, stream);
}

TEST_F(room_search_test, a_callback_is_asked_for_as_long_as_less_is_live) {
  const auto stream = new_stream();
  std::vector<void*> held;
  for (int i = 0; i < 32; ++i) held.push_back(memory->allocate(32_MiB, stream));
  int asked = 0;
  const auto registration = memory->on_out_of_memory([&](bytes) {
    ++asked;
    if (held.empty()) return false;
    memory->deallocate(held.back(), stream);  // a little at a time
    held.pop_back();
    memory->deallocate(memory->allocate(1_KiB, stream), stream);
    return false;
  });
  void* const p = memory->allocate(20 * 32_MiB, stream);
  EXPECT_EQ(asked, 20);
  memory->deallocate(p, stream);
  for (void* const each : held) memory->deallocate(each, stream);
}

TEST_F(room_search_test, the_oldest_epoch_is_waited_for) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto other = memory->create_pool("other").value();
  void* const p = other.allocate(1_GiB, one);
  write(one, p, 1_GiB);
  memory->deallocate(p, one);
  // The memory must go through the driver, and that only once the stream has passed it.
  void* const q = memory->allocate(1_GiB, two);
  write(two, q, 1_GiB);
  memory->deallocate(q, two);
}

TEST_F(room_search_test, the_device_is_waited_for_where_a_stream_is_gone) {
  auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory->allocate(1_GiB, one);
  write(one, p, 1_GiB);
  memory->deallocate(p, one);
  ASSERT_TRUE(one.close());
  void* const q = memory->allocate(1_GiB, two);
  write(two, q, 1_GiB);
  memory->deallocate(q, two);
}

TEST_F(room_search_test, the_drivers_refusal_is_the_same_as_a_limit) {
  memory.emplace(make());
  const auto one = new_stream();
  machine->set_capacity(device_id{0}, 1_GiB);
  EXPECT_EQ(code_of(memory->try_allocate(1500_MiB, one)), errc::out_of_memory);
  EXPECT_EQ(memory->stats().failures, 1u);
  void* const p = memory->allocate(900_MiB, one);
  EXPECT_EQ(code_of(memory->try_allocate(900_MiB, one)), errc::out_of_memory);
  machine->set_capacity(device_id{0}, 2_GiB);
  void* const q = memory->allocate(900_MiB, one);
  memory->deallocate(p, one);
  memory->deallocate(q, one);
}

/// Fails the n-th driver call of a scenario, for every n.
TEST_F(room_search_test, any_driver_call_may_fail) {
  const auto scenario = [&](caching_allocator& of, const stream& one, const stream& two) {
    std::vector<std::pair<void*, bool>> live;
    const auto request = [&](bytes size, bool first) {
      const auto made = of.try_allocate(size, first ? one : two);
      if (made) live.push_back({*made, first});
    };
    const auto free = [&](std::size_t at) {
      if (at >= live.size()) return;
      static_cast<void>(of.try_deallocate(live[at].first, live[at].second ? one : two));
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    };
    request(12_MiB, true);
    request(37_MiB, true);
    request(10_KiB, false);
    free(0);
    request(62_MiB, false);
    if (!live.empty()) static_cast<void>(of.record_stream(live[0].first, two));
    free(0);
    request(75_MiB, true);
    static_cast<void>(of.trim());
    request(87_MiB, false);
    static_cast<void>(of.release_stream(two));
    static_cast<void>(of.empty_cache());
    for (const auto& [p, first] : live) EXPECT_TRUE(of.try_deallocate(p, first ? one : two));
  };
  allocator_options small = settings;  // so that there are few calls, and each can be tried
  small.limit = 128_MiB;
  fail_each_call(small, 125_MiB, scenario);
}

}  // namespace
}  // namespace weir::testing_support
