// Every rung between a request and out of memory: each the only one that can help.
#include <thread>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support {
namespace {

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
  auto observation = memory->add_observer(told);
  void* const q = memory->allocate(1_GiB, two);  // nobody waits on the host
  observation.end();
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
  const auto registration = memory->on_out_of_memory([&](bytes needed) {
    ++asked;
    EXPECT_EQ(needed, 512_MiB);
    // May use the allocator; a request from inside does not ask again.
    EXPECT_EQ(code_of(memory->try_allocate(1_GiB, stream)), errc::out_of_memory);
    if (held.empty()) return false;
    memory->deallocate(held.back(), stream);
    held.pop_back();
    return true;
  });
  void* const p = memory->allocate(512_MiB, stream);
  EXPECT_EQ(asked, 2) << "one block is not enough";
  EXPECT_EQ(held.size(), 2u);
  memory->deallocate(p, stream);
  for (void* const each : held) memory->deallocate(each, stream);
}

TEST_F(room_search_test, a_callback_that_lies_is_not_asked_for_ever) {
  const auto stream = new_stream();
  void* const p = memory->allocate(1_GiB, stream);
  int asked = 0;
  {
    const auto registration = memory->on_out_of_memory([&](bytes) { return ++asked > 0; });
    EXPECT_EQ(code_of(memory->try_allocate(1_KiB, stream)), errc::out_of_memory);
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(code_of(memory->try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(asked, 1) << "the registration is gone";
  memory->deallocate(p, stream);
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
