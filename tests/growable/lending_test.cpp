// SPDX-License-Identifier: Apache-2.0
// Requests of the allocator that get pages of growable memory, and the other way round.
#include "growable/growable_fixture.hpp"

namespace weir::testing_support { namespace {

class growing_under_a_limit : public growable_test {};

TEST_F(growing_under_a_limit, gives_pages_to_requests_that_find_no_memory) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(memory.set_limit(32_MiB));
  ASSERT_TRUE(cache.commit(0_B, 32_MiB, on));
  use(on, cache, 0_B, 32_MiB);
  EXPECT_EQ(code_of(memory.try_allocate(8_MiB, on)), errc::out_of_memory);
  std::vector<bytes> asked;
  const auto registered = memory
                              .on_out_of_memory([&](bytes needed) {
                                asked.push_back(needed);
                                return cache.decommit(16_MiB, 16_MiB, on).has_value();
                              })
                              .value();
  void* const p = memory.try_allocate(8_MiB, on).value();
  EXPECT_THAT(asked, ::testing::ElementsAre(8_MiB));
  EXPECT_EQ(cache.stats().committed, 16_MiB);
  EXPECT_LE(memory.stats().reserved.current, 32_MiB);
  write(on, p, 8_MiB);
  memory.deallocate(p, on);
  machine->run_until_idle();
}

TEST_F(growing_under_a_limit, gets_memory_that_others_free_on_request) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(memory.set_limit(32_MiB));
  std::vector<void*> cached;
  for (int i = 0; i < 4; ++i) cached.push_back(memory.allocate(8_MiB, on));
  const auto registered = memory
                              .on_out_of_memory([&](bytes) {
                                if (cached.empty()) return false;
                                memory.deallocate(cached.back(), on);
                                cached.pop_back();
                                return true;
                              })
                              .value();
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  EXPECT_EQ(cached.size(), 2u);
  use(on, cache, 0_B, 16_MiB);
  EXPECT_LE(memory.stats().reserved.current, 32_MiB);
  for (void* const p : cached) memory.deallocate(p, on);
  machine->run_until_idle();
}

TEST_F(growing_under_a_limit, may_decommit_its_own_pages_to_commit_others) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(memory.set_limit(16_MiB));
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  const auto registered =
      memory.on_out_of_memory([&](bytes) { return cache.decommit(0_B, 8_MiB, on).has_value(); })
          .value();
  ASSERT_TRUE(cache.commit(32_MiB, 8_MiB, on));
  EXPECT_TRUE(cache.is_committed(32_MiB, 8_MiB));
  EXPECT_FALSE(cache.is_committed(0_B, 1_B));
  use(on, cache, 32_MiB, 8_MiB);
  machine->run_until_idle();
}

TEST_F(growing_under_a_limit, asks_callbacks_a_bounded_number_of_times) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(memory.set_limit(16_MiB));
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  int asked = 0;
  const auto registered = memory
                              .on_out_of_memory([&](bytes) {
                                ++asked;
                                return true;  // which is not so
                              })
                              .value();
  EXPECT_EQ(code_of(cache.commit(32_MiB, 4_MiB, on)), errc::out_of_memory);
  EXPECT_LE(asked, 8);
  EXPECT_GE(asked, 1);
  EXPECT_EQ(cache.stats().committed, 16_MiB);
}

TEST_F(growing_under_a_limit, passes_on_what_a_callback_throws) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(memory.set_limit(16_MiB));
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  const auto registered =
      memory.on_out_of_memory([](bytes) -> bool { throw std::runtime_error{"enough"}; }).value();
  EXPECT_THROW(static_cast<void>(cache.commit(32_MiB, 16_MiB, on)), std::runtime_error);
  EXPECT_EQ(cache.stats().committed, 8_MiB);
  EXPECT_EQ(memory.stats().allocated.current, 8_MiB);
  ASSERT_TRUE(cache.commit(8_MiB, 8_MiB, on));
  use(on, cache, 0_B, 16_MiB);
  machine->run_until_idle();
}

}}  // namespace weir::testing_support
