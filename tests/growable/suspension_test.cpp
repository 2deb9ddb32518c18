// SPDX-License-Identifier: Apache-2.0
// Growable memory whose pages leave and come back.
#include "growable/growable_fixture.hpp"

namespace weir::testing_support { namespace {

class growing_and_away : public growable_test {
 protected:
  void fill(const growable_memory& memory, bytes offset, bytes size, unsigned char value,
            const stream& on) {
    const context_scope bound{gpu()};
    const auto begin = reinterpret_cast<driver::CUdeviceptr>(at(memory, offset));
    ASSERT_EQ(cuda().memset_d8_async(begin, value, size.count(), on.handle()),
              driver::CUDA_SUCCESS);
  }
  [[nodiscard]] unsigned char byte_at(const growable_memory& memory, bytes offset,
                                      const stream& on) {
    const context_scope bound{gpu()};
    unsigned char found = 0;
    const auto from = reinterpret_cast<driver::CUdeviceptr>(at(memory, offset));
    EXPECT_EQ(cuda().memcpy_dtoh_async(&found, from, 1, on.handle()), driver::CUDA_SUCCESS);
    EXPECT_TRUE(on.synchronize());
    return found;
  }
};

TEST_F(growing_and_away, comes_back_to_its_addresses_with_its_contents) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  ASSERT_TRUE(cache.commit(32_MiB, 4_MiB, on));
  fill(cache, 0_B, 4_MiB, 1, on);
  fill(cache, 4_MiB, 4_MiB, 2, on);
  fill(cache, 32_MiB, 4_MiB, 3, on);
  EXPECT_EQ(cache.suspend().value(), 12_MiB);
  EXPECT_EQ(cache.suspend().value(), 0_B);
  EXPECT_EQ(cache.stats().suspended, 12_MiB);
  EXPECT_EQ(cache.stats().committed, 0_B);
  EXPECT_EQ(memory.stats().allocated.current, 0_B);
  EXPECT_EQ(code_of(cache.commit(0_B, 1_B, on)), errc::suspended);
  EXPECT_EQ(code_of(cache.decommit(0_B, 8_MiB, on)), errc::suspended);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(machine->used(device_id{0}), 64_MiB);
  void* const other = memory.allocate(16_MiB, on);
  write(on, other, 16_MiB);
  ASSERT_TRUE(cache.resume(on));
  ASSERT_TRUE(cache.resume(on));
  EXPECT_EQ(cache.stats().committed, 12_MiB);
  EXPECT_EQ(byte_at(cache, 4_MiB - 1_B, on), 1);
  EXPECT_EQ(byte_at(cache, 4_MiB, on), 2);
  EXPECT_EQ(byte_at(cache, 36_MiB - 1_B, on), 3);
  memory.deallocate(other, on);
}

TEST_F(growing_and_away, stays_away_where_there_is_no_memory_to_come_back_to) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
  fill(cache, 0_B, 16_MiB, 9, on);
  ASSERT_TRUE(cache.suspend());
  ASSERT_TRUE(memory.set_limit(24_MiB));
  void* const other = memory.allocate(16_MiB, on);
  EXPECT_EQ(code_of(cache.resume(on)), errc::out_of_memory);
  EXPECT_EQ(cache.stats().suspended, 16_MiB);
  memory.deallocate(other, on);
  ASSERT_TRUE(cache.resume(on));
  EXPECT_EQ(byte_at(cache, 15_MiB, on), 9);
}

TEST_F(growing_and_away, is_replayed_again_by_graphs_when_it_is_back) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, on));
  begin(on);
  use(on, cache, 0_B, 4_MiB);
  EXPECT_EQ(code_of(cache.suspend()), errc::capture_forbidden);
  EXPECT_TRUE(cache.is_committed(0_B, 4_MiB));
  const driver::CUgraph graph = end(on);
  const auto kept = cache.hold().value();
  const driver::CUgraphExec replays = instantiate(graph);
  ASSERT_TRUE(cache.decommit(0_B, 4_MiB, on));
  ASSERT_TRUE(cache.suspend(suspended_contents::discard));
  ASSERT_TRUE(cache.resume(on));
  EXPECT_EQ(cache.stats().held, 4_MiB);
  launch(replays, on);
  machine->run_until_idle();
  destroy(replays);
  destroy(graph);
}

TEST_F(growing_and_away, may_end_while_it_is_away) {
  const auto memory = make();
  const auto on = new_stream();
  {
    const auto cache = reserve_from(memory, 64_MiB);
    ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
    ASSERT_TRUE(cache.suspend());
    EXPECT_EQ(memory.stats().backup.current, 32_MiB);
  }
  EXPECT_EQ(memory.trim_backup().value(), 32_MiB);  // nothing is kept in it any more
}

}}  // namespace weir::testing_support
