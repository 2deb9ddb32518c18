// SPDX-License-Identifier: Apache-2.0
// Requests for memory that is suspended: refused, kept waiting, or what brings it back.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "heap/suspend_fixture.hpp"
#include "support/this_process.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(suspend_test, requests_fail_or_bring_it_back) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  const tag_scope scope{weights};
  const auto refused = memory.try_allocate(1_MiB, on);
  ASSERT_EQ(code_of(refused), errc::suspended);
  EXPECT_THAT(refused.error().detail(), HasSubstr("weights"));
  EXPECT_EQ(code_of(memory.handles_under(block.at)), errc::not_supported);
  ASSERT_TRUE(memory.resume(weights));
  ASSERT_TRUE(memory.suspend(weights, {.requests = suspended_requests::resume}));
  void* const more = memory.allocate(1_MiB, on);
  EXPECT_FALSE(memory.is_suspended(weights));
  expect_contents(block);
  for (void* const each : {block.at, more}) memory.deallocate(each, on);
}

TEST_F(suspend_test, a_request_that_cannot_bring_it_back_is_a_failure_like_any_other) {
  auto memory = make({.limit = 64_MiB});
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 32_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights, {.requests = suspended_requests::resume}));
  void* other = memory.allocate(48_MiB, on);
  listener events;
  const auto listening = memory.add_observer(events).value();
  std::vector<bytes> asked;
  bool frees = false;
  const auto callback = memory
                            .on_out_of_memory([&](bytes needed) {
                              asked.push_back(needed);
                              if (!frees || other == nullptr) return false;
                              memory.deallocate(std::exchange(other, nullptr), on);
                              return true;
                            })
                            .value();
  const tag_scope scope{weights};
  EXPECT_EQ(code_of(memory.try_allocate(1_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(asked, (std::vector<bytes>{32_MiB})) << "what has to come back";
  EXPECT_EQ(memory.stats().failures, 1u);
  EXPECT_EQ(memory.stats(weights).failures, 1u);
  EXPECT_EQ(events.count(memory_event_kind::out_of_memory), 1u);
  EXPECT_TRUE(memory.is_suspended(weights));

  frees = true;
  void* const more = memory.allocate(1_MiB, on);
  EXPECT_EQ(asked, (std::vector<bytes>{32_MiB, 32_MiB}));
  EXPECT_EQ(memory.stats().failures, 1u);
  EXPECT_EQ(events.count(memory_event_kind::out_of_memory), 1u);
  expect_contents(block);
  for (void* const each : {block.at, more}) memory.deallocate(each, on);
}

TEST_F(suspend_test, memory_that_cannot_be_suspended_is_refused_before_there_is_any) {
  const std::vector<allocator_options> unable{{.policy = placement_policy::classic},
                                              {.policy = placement_policy::classic_expandable},
                                              {.debug = debug_checks::red_zones},
                                              {.debug = debug_checks::guard_pages}};
  for (const allocator_options& options : unable) {
    auto memory = make(options);
    EXPECT_EQ(code_of(memory.suspend()), errc::not_supported);
    EXPECT_EQ(code_of(memory.suspend_async()), errc::not_supported);
    memory.deallocate(memory.allocate(1_MiB, on), on);
    EXPECT_EQ(code_of(memory.suspend()), errc::not_supported) << "as with memory";
    memory.deallocate(memory.allocate(1_MiB, on), on);
  }
  auto memory = make();
  const auto pool = memory.create_pool("segments", {.segments = true}).value();
  EXPECT_EQ(code_of(pool.suspend()), errc::not_supported);
  memory.deallocate(pool.allocate(1_MiB, on), on);
  EXPECT_EQ(code_of(pool.suspend()), errc::not_supported);
}

TEST_F(suspend_test, requests_can_wait_until_somebody_brings_it_back) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights, {.requests = suspended_requests::wait}));
  std::atomic<void*> got{nullptr};
  std::thread waiter{[&] { got = allocate(memory, weights, 1_MiB); }};
  std::this_thread::sleep_for(std::chrono::milliseconds{30});
  EXPECT_EQ(got.load(), nullptr);
  ASSERT_TRUE(memory.resume(weights));
  waiter.join();
  EXPECT_NE(got.load(), nullptr);
  expect_contents(block);
  for (void* const each : {block.at, got.load()}) memory.deallocate(each, on);
}

/// Until the work of before is done there is nothing that a request could bring back.
TEST_F(suspend_test, a_request_waits_until_it_has_gone_and_brings_it_back) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  auto held = hold(on);
  fill(block, on);
  suspend_outcome gone;
  other_caller going{
      [&] { gone = memory.suspend(weights, {.requests = suspended_requests::resume}).value(); }};
  EXPECT_TRUE(going.waits());
  void* more = nullptr;
  other_caller asking{[&] { more = allocate(memory, weights, 1_MiB); }};
  EXPECT_TRUE(asking.waits());
  held.release();
  going.join();
  asking.join();
  EXPECT_EQ(gone, (suspend_outcome{4_MiB, 4_MiB, 0_B}));
  EXPECT_FALSE(memory.is_suspended(weights));
  EXPECT_EQ(check(memory), "");
  expect_contents(block);
  for (void* const each : {block.at, more}) memory.deallocate(each, on);
}

TEST_F(suspend_test, a_pool_that_requests_bring_back_lives_as_long_as_its_handle) {
  auto memory = make();
  auto pool = memory.create_pool("own").value();
  void* const block = pool.allocate(4_MiB, on);
  ASSERT_TRUE(pool.suspend({.requests = suspended_requests::resume}));
  void* const more = pool.allocate(1_MiB, on);
  for (void* const each : {block, more}) memory.deallocate(each, on);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(pool.allocate(1_MiB, on), on);
  pool = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

/// The thread that copies still reads it: the request waits for that, but is not turned away.
TEST_F(suspend_test, a_request_waits_for_memory_that_was_called_back_while_it_is_copied) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  std::atomic<pid_t> number{0};
  std::atomic<bool> answered{false};
  result<void*> answer = errc::closed;
  std::thread asking;
  std::promise<void> was_called_back;
  const auto call_back = [&](bytes, bytes) {
    EXPECT_EQ(memory.resume(weights).value(), resume_outcome{});
    asking = std::thread{[&] {
      const tag_scope scope{weights};
      number = ::gettid();
      answer = memory.try_allocate(1_MiB, on);
      answered = true;
    }};
    while (!answered && (number == 0 || !testing_support::is_asleep(number)))
      std::this_thread::yield();
    EXPECT_FALSE(answered);
    was_called_back.set_value();
  };
  ASSERT_TRUE(memory.suspend_async(weights, {.progress = call_back}));
  was_called_back.get_future().wait();
  asking.join();
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_FALSE(memory.is_suspended(weights));
  expect_contents(block);
  for (void* const each : {block.at, *answer}) memory.deallocate(each, on);
}

/// Does something while the allocator tells that memory is back.
class when_resumed final : public event_sink {
 public:
  explicit when_resumed(std::function<void()> action) : action_{std::move(action)} {}
  void on_event(const memory_event& event) noexcept override {
    if (event.kind == memory_event_kind::resumed) action_();
  }

 private:
  std::function<void()> action_;
};

TEST_F(suspend_test, whose_memory_goes_and_comes_and_how_much_is_told) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(cache));
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto pool = memory.create_pool("own").value();
  const auto of_tag = make_filled(memory, weights, 3_MiB, 1);
  const filled of_pool{pool.allocate(6_MiB, on), 6_MiB, 2};
  fill(of_pool, on);
  const pool_id apart = memory.block_at(of_tag.at).value().pool;
  listener ear;
  const auto observation = memory.add_observer(ear).value();
  const auto expect_told = [&](memory_event_kind kind, pool_id whose, std::uint16_t number,
                               bytes size, bytes contents) {
    auto told = ear.take();
    std::erase_if(told, [&](const memory_event& each) { return each.kind != kind; });
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].pool, whose);
    EXPECT_EQ(told[0].tag, number);
    EXPECT_EQ(bytes{told[0].size}, size);
    EXPECT_EQ(bytes{told[0].rounded}, contents);
  };
  ASSERT_TRUE(memory.suspend(weights));
  expect_told(memory_event_kind::suspended, apart, weights.number(), 4_MiB, 3_MiB);
  ASSERT_TRUE(memory.resume(weights));
  expect_told(memory_event_kind::resumed, apart, weights.number(), 4_MiB, 3_MiB);
  ASSERT_TRUE(pool.suspend());
  expect_told(memory_event_kind::suspended, pool.id(), 0, 6_MiB, 6_MiB);
  ASSERT_TRUE(pool.resume());
  expect_told(memory_event_kind::resumed, pool.id(), 0, 6_MiB, 6_MiB);
  expect_contents({of_tag, of_pool});
  for (void* const each : {of_tag.at, of_pool.at}) memory.deallocate(each, on);
}

TEST_F(suspend_test, the_allocators_own_memory_is_no_tags) {
  auto memory = make();
  ASSERT_LT(weights.number(), cache.number());
  ASSERT_TRUE(memory.declare_suspendable(cache));  // weights, before it, has no pool
  const auto own = make_filled(memory, tag{}, 4_MiB, 1);
  listener ear;
  const auto observation = memory.add_observer(ear).value();
  ASSERT_TRUE(memory.suspend());
  ASSERT_TRUE(memory.resume());
  auto told = ear.take();
  std::erase_if(told, [](const memory_event& each) {
    return each.pool != pool_id{} ||
           (each.kind != memory_event_kind::suspended && each.kind != memory_event_kind::resumed);
  });
  ASSERT_EQ(told.size(), 2u);
  for (const memory_event& each : told) EXPECT_EQ(each.tag, 0u);
  expect_contents(own);
  memory.deallocate(own.at, on);
}

TEST_F(suspend_test, nobody_sees_it_half_way_back) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto block = make_filled(memory, weights, 4_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_EQ(memory.stats(weights).backup.current, 4_MiB);
  std::atomic<pid_t> number{0};
  std::atomic<bool> has_seen{false};
  memory_stats seen;
  std::thread other;
  when_resumed meanwhile{[&] {
    other = std::thread{[&] {
      number = ::gettid();
      seen = memory.stats(weights);
      has_seen = true;
    }};
    while (!has_seen && (number == 0 || !testing_support::is_asleep(number)))
      std::this_thread::yield();
    EXPECT_FALSE(has_seen) << "who looks meanwhile waits";
  }};
  const auto observation = memory.add_observer(meanwhile).value();
  ASSERT_TRUE(memory.resume(weights));
  ASSERT_TRUE(other.joinable());
  other.join();
  EXPECT_EQ(seen.suspended, 0_B);
  EXPECT_EQ(seen.backup.current, 0_B) << "what came back is no longer kept on the host";
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, a_block_that_is_freed_meanwhile_is_gone) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  std::vector<filled> blocks;
  for (unsigned char i = 1; i <= 4; ++i) blocks.push_back(make_filled(memory, weights, 8_MiB, i));
  ASSERT_EQ(memory.suspend(weights).value().saved, 32_MiB);
  memory.deallocate(blocks[1].at, on);
  memory.deallocate(blocks[2].at, on);
  EXPECT_EQ(code_of(memory.try_deallocate(blocks[2].at, on)), errc::double_free);
  EXPECT_EQ(memory.stats(weights).backup.current, 16_MiB);
  EXPECT_EQ(memory.stats(weights).suspended, 16_MiB);
  EXPECT_EQ(check(memory), "");
  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{16_MiB, 16_MiB}));
  EXPECT_EQ(used(), 16_MiB);
  expect_contents({blocks[0], blocks[3]});
  void* const fresh = allocate(memory, weights, 16_MiB);
  EXPECT_EQ(fresh, blocks[1].at) << "the hole is filled";
  write(on, fresh, 16_MiB);
  for (void* const each : {blocks[0].at, blocks[3].at, fresh}) memory.deallocate(each, on);
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_EQ(used(), 0_B);
}

TEST_F(suspend_test, the_allocators_own_memory_goes_with_all) {
  auto memory = make();
  const auto kept = make_filled(memory, tag{}, 1_MiB, 1);
  std::vector<void*> small;
  for (int i = 0; i < 8; ++i) small.push_back(memory.allocate(4_KiB, on));
  for (void* const each : small) memory.deallocate(each, on);  // in the thread's cache
  EXPECT_EQ(memory.stats().thread_cached, 32_KiB);
  ASSERT_EQ(memory.suspend().value().saved, 1_MiB);
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(memory.stats().cached, 0_B);
  EXPECT_EQ(used(), 0_B);
  EXPECT_EQ(code_of(memory.try_allocate(4_KiB, on)), errc::suspended);
  EXPECT_EQ(check(memory), "");
  ASSERT_TRUE(memory.resume());
  expect_contents(kept);
  void* const p = memory.allocate(4_KiB, on);
  memory.deallocate(p, on);
  EXPECT_EQ(memory.allocate(4_KiB, on), p) << "caches work as before";
  memory.deallocate(p, on);
  ASSERT_TRUE(memory.suspend());
  memory.deallocate(kept.at, on);  // into the store, not into a cache
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  ASSERT_TRUE(memory.resume());
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(suspend_test, a_pool_is_suspended_like_a_tag) {
  auto memory = make();
  const auto pool = memory.create_pool("optimizer", {.suspendable = suspendable_options{}}).value();
  const filled block{pool.allocate(64_MiB, on), 64_MiB, 8};
  fill(block, on);
  EXPECT_EQ(pool.snapshot().physical.size(), 1u);
  EXPECT_FALSE(pool.is_suspended());
  EXPECT_EQ(pool.suspend().value(), (suspend_outcome{64_MiB, 64_MiB, 0_B}));
  EXPECT_TRUE(pool.is_suspended());
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, on)), errc::suspended);
  const auto seen = pool.snapshot();
  EXPECT_THAT(seen.physical, IsEmpty());
  ASSERT_EQ(seen.suspended.size(), 1u);
  EXPECT_EQ(seen.suspended[0].address, address(block.at));
  EXPECT_EQ(seen.suspended[0].size, 64_MiB);
  ASSERT_EQ(seen.blocks.size(), 1u);
  EXPECT_TRUE(seen.blocks[0].suspended);
  EXPECT_EQ(seen.blocks[0].state, block_state::live);
  EXPECT_EQ(pool.resume().value(), (resume_outcome{64_MiB, 64_MiB}));
  EXPECT_FALSE(pool.snapshot().blocks[0].suspended);
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(suspend_test, a_pool_without_a_holder_goes_with_its_last_block) {
  auto memory = make();
  auto pool = memory.create_pool("brief").value();
  void* const block = pool.allocate(4_MiB, on);
  ASSERT_TRUE(pool.suspend());
  pool = {};
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(block, on);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(memory.trim_backup().value(), 32_MiB) << "nothing of it is in use";
}

TEST_F(suspend_test, memory_without_blocks_is_just_released) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  EXPECT_EQ(memory.suspend(weights).value(), suspend_outcome{}) << "it never had any";
  EXPECT_TRUE(memory.is_suspended(weights));
  ASSERT_TRUE(memory.resume(weights));
  memory.deallocate(allocate(memory, weights, 8_MiB), on);
  EXPECT_EQ(memory.suspend(weights).value(), (suspend_outcome{8_MiB, 0_B, 0_B}));
  EXPECT_EQ(memory.stats().suspended, 0_B);
  EXPECT_EQ(memory.resume(weights).value(), resume_outcome{});
  EXPECT_FALSE(memory.is_suspended(weights));
}

}  // namespace
}  // namespace weir::testing_support
