// SPDX-License-Identifier: Apache-2.0
// What arbitrary programs found once.
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using regressions_test = heap_test;

TEST_F(regressions_test, a_hit_may_carry_a_tag_that_no_request_carried_before) {
  const tag lower = tag::named("regressions test: lower").value();
  const tag higher = tag::named("regressions test: higher").value();
  ASSERT_LT(lower, higher);
  auto memory = make();
  const auto stream = new_stream();
  {
    const tag_scope scope{higher};
    memory.deallocate(memory.allocate(4_KiB, stream), stream);
  }
  const tag_scope scope{lower};
  void* const hit = memory.allocate(4_KiB, stream);
  EXPECT_EQ(memory.stats().hits, 1u);
  EXPECT_EQ(memory.stats(lower).requested.current, 4_KiB);
  EXPECT_EQ(memory.stats_by_tag().size(), 2u);
  memory.deallocate(hit, stream);
  EXPECT_EQ(check(memory), "");
}

/// Said to be used no more, a stream is named again: what it frees then is waited for again.
class found_policy_test : public heap_test,
                          public ::testing::WithParamInterface<placement_policy> {};

TEST_P(found_policy_test, a_released_stream_that_frees_again_is_waited_for) {
  allocator_options settings;
  settings.policy = GetParam();
  auto memory = make(settings);
  const auto stream = new_stream();
  const stream_ref legacy = stream_ref::legacy(gpu());
  memory.deallocate(memory.allocate(1_KiB, legacy), legacy);
  ASSERT_TRUE(memory.release_stream(legacy));
  void* const p = memory.allocate(8_MiB, legacy);
  write(legacy, p, 8_MiB);
  memory.deallocate(p, legacy);
  // Taken by another stream, or away: TearDown() finds it if that was too early.
  void* const q = memory.allocate(8_MiB, stream);
  write(stream, q, 8_MiB);
  memory.deallocate(q, stream);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

/// The same where a block that was freed without a name brought the stream back to the cache.
TEST_P(found_policy_test, a_released_stream_is_not_cached_for) {
  allocator_options settings;
  settings.policy = GetParam();
  auto memory = make(settings);
  const auto stream = new_stream();
  void* const p = memory.allocate(4_KiB, stream);
  ASSERT_TRUE(memory.release_stream(stream));
  memory.deallocate(p);
  void* const q = memory.allocate(4_KiB, stream);
  write(stream, q, 4_KiB);
  memory.deallocate(q, stream);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

INSTANTIATE_TEST_SUITE_P(Policies, found_policy_test,
                         ::testing::Values(placement_policy::balanced, placement_policy::classic,
                                           placement_policy::classic_expandable));

}  // namespace
}  // namespace weir::testing_support
