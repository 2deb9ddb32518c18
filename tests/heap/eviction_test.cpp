// SPDX-License-Identifier: Apache-2.0
// Memory that may be evicted: by whom, in which order, and how it comes back.
#include "heap/suspend_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;

/// 64 MiB may be reserved.
class eviction_test : public suspend_test {
 protected:
  [[nodiscard]] caching_allocator make_small() const {
    allocator_options settings;
    settings.limit = 64_MiB;
    return make(settings);
  }
  const tag low = named("low");
  const tag high = named("high");
};

TEST_F(eviction_test, a_request_that_finds_no_memory_evicts_the_lowest_priority_first) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 5}));
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true, .priority = -1}));
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto never = make_filled(memory, weights, 8_MiB, 1);
  const auto last = make_filled(memory, high, 16_MiB, 2);
  const auto first = make_filled(memory, low, 16_MiB, 3);
  bool asked = false;
  const auto callback = memory.on_out_of_memory([&](bytes) { return !(asked = true); }).value();
  void* const one = memory.allocate(32_MiB, on);
  EXPECT_TRUE(memory.is_suspended(low));
  EXPECT_FALSE(memory.is_suspended(high));
  void* const two = memory.allocate(16_MiB, on);
  EXPECT_TRUE(memory.is_suspended(high));
  EXPECT_FALSE(memory.is_suspended(weights)) << "it is not evictable";
  EXPECT_FALSE(asked);
  EXPECT_EQ(code_of(memory.try_allocate(32_MiB, on)), errc::out_of_memory);
  EXPECT_TRUE(asked) << "after there was nothing left to evict";
  EXPECT_EQ(check(memory), "");
  expect_contents(never);

  memory.deallocate(one, on);
  memory.deallocate(two, on);
  ASSERT_TRUE(memory.resume());
  expect_contents({never, last, first});
  for (void* const each : {never.at, last.at, first.at}) memory.deallocate(each, on);
}

TEST_F(eviction_test, requests_bring_evicted_memory_back_at_the_cost_of_less_important_memory) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 2}));
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true, .priority = 1}));
  const auto first = make_filled(memory, high, 32_MiB, 1);
  ASSERT_TRUE(memory.suspend(high, {.requests = suspended_requests::resume}));
  const auto second = make_filled(memory, low, 48_MiB, 2);
  void* const more = allocate(memory, high, 2_MiB);
  EXPECT_FALSE(memory.is_suspended(high));
  EXPECT_TRUE(memory.is_suspended(low));
  expect_contents(first);
  // What is less important evicts nothing.
  const auto refused = memory.resume(low);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_THAT(refused.error().detail(), HasSubstr("tag \"high\""));
  {
    const tag_scope scope{low};
    EXPECT_EQ(code_of(memory.try_allocate(1_MiB, on)), errc::out_of_memory);
  }
  EXPECT_FALSE(memory.is_suspended(high));
  memory.deallocate(first.at, on);
  memory.deallocate(more, on);
  ASSERT_TRUE(memory.resume(low));
  expect_contents(second);
  memory.deallocate(second.at, on);
}

TEST_F(eviction_test, nothing_goes_for_a_request_that_all_of_it_would_not_serve) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  const auto kept = make_filled(memory, low, 32_MiB, 1);
  void* const live = memory.allocate(16_MiB, on);
  EXPECT_EQ(code_of(memory.try_allocate(65_MiB, on)), errc::out_of_memory) << "above the limit";
  EXPECT_EQ(code_of(memory.try_allocate(50_MiB, on)), errc::out_of_memory) << "beside what is live";
  EXPECT_FALSE(memory.is_suspended(low));
  EXPECT_EQ(memory.stats().backup.peak, 0_B);
  void* const fits = memory.allocate(48_MiB, on);
  EXPECT_TRUE(memory.is_suspended(low));
  memory.deallocate(fits, on);
  memory.deallocate(live, on);
  ASSERT_TRUE(memory.resume(low));
  expect_contents(kept);
  memory.deallocate(kept.at, on);
}

TEST_F(eviction_test, what_threads_cache_is_no_reason_to_evict_nothing) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  const auto kept = make_filled(memory, low, 32_MiB, 1);
  void* const cached = memory.allocate(24_MiB, on);
  memory.deallocate(cached, on);
  void* const fits = memory.allocate(60_MiB, on);
  EXPECT_TRUE(memory.is_suspended(low));
  memory.deallocate(fits, on);
  memory.deallocate(kept.at, on);
}

TEST_F(eviction_test, a_request_that_cannot_be_met_does_not_bring_memory_back) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto away = make_filled(memory, weights, 32_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights, {.requests = suspended_requests::resume}));
  void* const live = memory.allocate(16_MiB, on);
  const bytes before = used();
  {
    const tag_scope scope{weights};
    EXPECT_EQ(code_of(memory.try_allocate(20_MiB, on)), errc::out_of_memory);
  }
  EXPECT_TRUE(memory.is_suspended(weights));
  EXPECT_EQ(used(), before);
  EXPECT_EQ(memory.stats().failures, 1u);
  memory.deallocate(live, on);
  void* const fits = allocate(memory, weights, 20_MiB);
  EXPECT_FALSE(memory.is_suspended(weights));
  expect_contents(away);
  memory.deallocate(fits, on);
  memory.deallocate(away.at, on);
}

TEST_F(eviction_test, everything_does_not_come_back_at_the_cost_of_a_part_of_it) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  const auto first = make_filled(memory, weights, 40_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  const auto second = make_filled(memory, low, 40_MiB, 2);
  EXPECT_EQ(code_of(memory.resume()), errc::out_of_memory);
  EXPECT_EQ(code_of(memory.resume_async(on)), errc::out_of_memory);
  EXPECT_TRUE(memory.is_suspended(weights));
  EXPECT_FALSE(memory.is_suspended(low));
  expect_contents(second);
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_TRUE(memory.is_suspended(low)) << "for a part of it the rest may go";
  expect_contents(first);
  memory.deallocate(first.at, on);
  ASSERT_TRUE(memory.resume());
  expect_contents(second);
  memory.deallocate(second.at, on);
}

TEST_F(eviction_test, memory_of_equal_priority_stays) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 1}));
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true, .priority = 1}));
  const auto first = make_filled(memory, high, 32_MiB, 1);
  ASSERT_TRUE(memory.suspend(high));
  const auto second = make_filled(memory, low, 48_MiB, 2);
  EXPECT_EQ(code_of(memory.resume(high)), errc::out_of_memory);
  EXPECT_FALSE(memory.is_suspended(low));
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 2}));
  ASSERT_TRUE(memory.resume(high)) << "what was said last counts";
  EXPECT_TRUE(memory.is_suspended(low));
  expect_contents(first);
  memory.deallocate(first.at, on);
  ASSERT_TRUE(memory.resume(low));
  expect_contents(second);
  memory.deallocate(second.at, on);
}

TEST_F(eviction_test, of_equals_the_one_that_was_declared_first_goes) {
  auto memory = make_small();
  for (const tag each : {high, low})
    ASSERT_TRUE(memory.declare_suspendable(each, {.evictable = true}));
  const auto first = make_filled(memory, high, 16_MiB, 1);
  const auto second = make_filled(memory, low, 16_MiB, 2);
  void* const large = memory.allocate(48_MiB, on);
  EXPECT_TRUE(memory.is_suspended(high));
  EXPECT_FALSE(memory.is_suspended(low));
  memory.deallocate(large, on);
  ASSERT_TRUE(memory.resume());
  expect_contents({first, second});
  for (void* const each : {first.at, second.at}) memory.deallocate(each, on);
}

TEST_F(eviction_test, what_has_no_memory_is_left_alone) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true, .priority = -1}));
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 5}));
  const auto block = make_filled(memory, high, 16_MiB, 1);
  void* const large = memory.allocate(56_MiB, on);
  EXPECT_TRUE(memory.is_suspended(high));
  EXPECT_FALSE(memory.is_suspended(low));
  memory.deallocate(large, on);
  ASSERT_TRUE(memory.resume(high));
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(eviction_test, memory_whose_handles_others_may_hold_stays) {
  auto memory = make_small();
  const auto pool =
      memory
          .create_pool("lent",
                       {.exportable = true, .suspendable = suspendable_options{.evictable = true}})
          .value();
  void* const block = pool.allocate(32_MiB, on);
  ASSERT_TRUE(pool.handles_under(block));
  EXPECT_EQ(code_of(memory.try_allocate(50_MiB, on)), errc::out_of_memory);
  EXPECT_FALSE(pool.is_suspended());
  memory.deallocate(block, on);
}

TEST_F(eviction_test, what_is_not_evictable_takes_from_every_priority) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 5}));
  const auto block = make_filled(memory, weights, 32_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  const auto other = make_filled(memory, high, 48_MiB, 2);
  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{32_MiB, 32_MiB}));
  EXPECT_TRUE(memory.is_suspended(high));
  expect_contents(block);
  memory.deallocate(block.at, on);
  ASSERT_TRUE(memory.resume(high));
  expect_contents(other);
  memory.deallocate(other.at, on);
}

/// 24 MiB stay, 32 MiB are on their way out.
TEST_F(eviction_test, what_is_going_anyway_is_waited_for_before_anything_is_evicted) {
  for (const bool comes_back : {true, false}) {
    SCOPED_TRACE(comes_back ? "a return" : "a request");
    auto memory = make_small();
    for (const tag each : {weights, cache}) ASSERT_TRUE(memory.declare_suspendable(each));
    ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
    const auto back = make_filled(memory, weights, 32_MiB, 1);
    ASSERT_TRUE(memory.suspend(weights));
    const auto stays = make_filled(memory, low, 24_MiB, 2);
    const auto goes = make_filled(memory, cache, 32_MiB, 3);
    ASSERT_TRUE(on.synchronize());
    const auto other = new_stream();
    auto held = hold(on);
    fill(goes, on);
    ASSERT_TRUE(memory.suspend_async(cache));
    void* plain = nullptr;
    other_caller asking{[&] {
      if (comes_back) {
        EXPECT_TRUE(memory.resume(weights));
      } else {
        plain = memory.allocate(32_MiB, other);
      }
    }};
    EXPECT_TRUE(asking.waits());
    held.release();
    asking.join();
    EXPECT_TRUE(memory.is_suspended(cache));
    EXPECT_FALSE(memory.is_suspended(low));
    if (plain != nullptr) memory.deallocate(plain, other);
    expect_contents(stays);
    for (void* const each : {back.at, stays.at, goes.at}) memory.deallocate(each, on);
  }
}

TEST_F(eviction_test, what_streams_are_done_with_goes_before_anything_is_evicted) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  const auto block = make_filled(memory, weights, 32_MiB, 1);
  ASSERT_TRUE(memory.suspend(weights));
  const auto stays = make_filled(memory, low, 24_MiB, 2);
  const auto other = new_stream();
  void* const passing = memory.allocate(32_MiB, on);
  auto held = hold(other);
  write(other, passing, 32_MiB);
  ASSERT_TRUE(memory.record_stream(passing, other));
  memory.deallocate(passing, on);
  held.release();
  ASSERT_TRUE(other.synchronize());
  ASSERT_TRUE(on.synchronize());
  const auto before = memory.stats();
  ASSERT_EQ(before.active.current - before.allocated.current, 32_MiB) << "nobody looked yet";
  EXPECT_EQ(memory.resume(weights).value(), (resume_outcome{32_MiB, 32_MiB}));
  EXPECT_FALSE(memory.is_suspended(low));
  expect_contents({block, stays});
  for (void* const each : {block.at, stays.at}) memory.deallocate(each, on);
}

TEST_F(eviction_test, contents_are_treated_as_the_tag_wants) {
  auto memory = make_small();
  ASSERT_TRUE(
      memory.declare_suspendable(cache, {.evictable = true,
                                         .eviction = {.contents = suspended_contents::discard,
                                                      .requests = suspended_requests::fail}}));
  void* const block = allocate(memory, cache, 32_MiB);
  void* const large = memory.allocate(50_MiB, on);
  EXPECT_TRUE(memory.is_suspended(cache));
  EXPECT_EQ(memory.stats().backup.current, 0_B);
  const tag_scope scope{cache};
  EXPECT_EQ(code_of(memory.try_allocate(1_MiB, on)), errc::suspended);
  memory.deallocate(block, on);
  memory.deallocate(large, on);
}

TEST_F(eviction_test, the_device_being_full_evicts_as_a_limit_does) {
  auto memory = make();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  const auto block = make_filled(memory, low, 32_MiB, 1);
  void* const large = memory.allocate(1960_MiB, on);
  EXPECT_TRUE(memory.is_suspended(low));
  memory.deallocate(large, on);
  ASSERT_TRUE(memory.resume(low)) << "what is cached goes first";
  expect_contents(block);
  memory.deallocate(block.at, on);
}

TEST_F(eviction_test, what_cannot_be_saved_stays_and_the_next_one_goes) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true, .priority = 1}));
  ASSERT_TRUE(memory.declare_suspendable(
      high,
      {.evictable = true, .priority = 2, .eviction = {.contents = suspended_contents::discard}}));
  const auto kept = make_filled(memory, low, 16_MiB, 1);
  void* const gone = allocate(memory, high, 32_MiB);
  machine->fail(driver::call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  void* const large = memory.allocate(32_MiB, on);
  EXPECT_FALSE(memory.is_suspended(low));
  EXPECT_TRUE(memory.is_suspended(high));
  expect_contents(kept);
  for (void* const each : {kept.at, gone, large}) memory.deallocate(each, on);
}

TEST_F(eviction_test, a_tags_limit_holds_throughout) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  ASSERT_TRUE(memory.set_limit(low, 8_MiB));
  void* const block = allocate(memory, low, 7_MiB);
  void* const large = memory.allocate(60_MiB, on);
  ASSERT_TRUE(memory.is_suspended(low));
  const tag_scope scope{low};
  EXPECT_EQ(code_of(memory.try_allocate(2_MiB, on)), errc::out_of_memory)
      << "what is suspended counts";
  EXPECT_TRUE(memory.is_suspended(low)) << "and is not brought back in vain";
  memory.deallocate(large, on);
  void* const little = memory.allocate(1_MiB, on);
  EXPECT_FALSE(memory.is_suspended(low));
  EXPECT_EQ(memory.stats(low).allocated.current, 8_MiB);
  for (void* const each : {block, little}) memory.deallocate(each, on);
}

TEST_F(eviction_test, nothing_is_evicted_for_a_stream_that_is_being_captured) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  void* const block = allocate(memory, low, 32_MiB);
  auto claim = memory.begin_capture(on).value();
  begin(on);
  EXPECT_EQ(code_of(memory.try_allocate(50_MiB, on)), errc::out_of_memory);
  destroy(end(on));
  claim.end_capture();
  EXPECT_FALSE(memory.is_suspended(low));
  memory.deallocate(block, on);
}

TEST_F(eviction_test, shrink_releases_what_is_cached_and_then_evicts_the_lowest_priority_first) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(high, {.evictable = true, .priority = 5}));
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true, .priority = -1}));
  const auto last = make_filled(memory, high, 16_MiB, 2);
  const auto first = make_filled(memory, low, 16_MiB, 3);
  void* const live = memory.allocate(8_MiB, on);
  const stream busy = new_stream();
  void* const used = memory.allocate(16_MiB, busy);
  write(busy, used, 16_MiB);
  memory.deallocate(used, busy);
  ASSERT_EQ(memory.stats().reserved.current, 56_MiB);
  EXPECT_EQ(memory.shrink(56_MiB).value(), 0_B);
  EXPECT_EQ(memory.trim(40_MiB).value(), 0_B) << "the work that uses it has not happened";
  EXPECT_EQ(memory.shrink(40_MiB).value(), 16_MiB) << "it was waited for";
  EXPECT_FALSE(memory.is_suspended(low));
  EXPECT_EQ(memory.shrink(39_MiB).value(), 16_MiB);
  EXPECT_TRUE(memory.is_suspended(low));
  EXPECT_FALSE(memory.is_suspended(high));
  EXPECT_EQ(memory.shrink(0_B).value(), 16_MiB);
  EXPECT_TRUE(memory.is_suspended(high));
  EXPECT_EQ(memory.stats().reserved.current, 8_MiB) << "what is live and not evictable stays";
  EXPECT_EQ(memory.shrink(0_B).value(), 0_B);
  EXPECT_EQ(check(memory), "");
  ASSERT_TRUE(memory.resume());
  expect_contents({last, first});
  for (void* const each : {last.at, first.at, live}) memory.deallocate(each, on);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(memory.shrink(0_B)), errc::closed);
  const caching_allocator taken = std::move(memory);
  EXPECT_EQ(code_of(memory.shrink(0_B)), errc::moved_from);
}

TEST_F(eviction_test, shrink_evicts_nothing_while_a_stream_is_being_captured) {
  auto memory = make_small();
  ASSERT_TRUE(memory.declare_suspendable(low, {.evictable = true}));
  const auto kept = make_filled(memory, low, 16_MiB, 1);
  memory.deallocate(memory.allocate(8_MiB, on), on);
  ASSERT_TRUE(on.synchronize());
  const stream captured = new_stream();
  auto claim = memory.begin_capture(captured).value();
  begin(captured);
  EXPECT_EQ(memory.shrink(0_B).value(), 8_MiB) << "what was cached";
  EXPECT_FALSE(memory.is_suspended(low));
  destroy(end(captured));
  claim.end_capture();
  EXPECT_EQ(memory.shrink(0_B).value(), 16_MiB);
  ASSERT_TRUE(memory.resume());
  expect_contents(kept);
  memory.deallocate(kept.at, on);
}

TEST_F(eviction_test, a_pool_may_be_evictable_too) {
  auto memory = make_small();
  const auto pool =
      memory.create_pool("spare", {.suspendable = suspendable_options{.evictable = true}}).value();
  const filled block{pool.allocate(32_MiB, on), 32_MiB, 3};
  fill(block, on);
  void* const large = memory.allocate(50_MiB, on);
  EXPECT_TRUE(pool.is_suspended());
  memory.deallocate(large, on);
  void* const more = pool.allocate(1_MiB, on);
  EXPECT_FALSE(pool.is_suspended());
  expect_contents(block);
  for (void* const each : {block.at, more}) memory.deallocate(each, on);
}

}  // namespace
}  // namespace weir::testing_support
