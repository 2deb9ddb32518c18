// SPDX-License-Identifier: Apache-2.0
// What the allocator says of itself and serves on request only: cached memory, recorded streams,
// texts, segment sizes.
#include <gmock/gmock.h>

#include <string>

#include "heap/heap_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class interface_test : public heap_test {};

TEST_F(interface_test, only_cached_memory_is_served_where_nothing_else_is_wanted) {
  auto memory = make();
  const auto stream = new_stream();
  const auto other = new_stream();
  EXPECT_EQ(code_of(memory.try_allocate_cached(1_MiB, stream)), errc::not_found);
  EXPECT_EQ(memory.stats().reserved.current, 0_B) << "nothing was taken from the driver";
  EXPECT_EQ(memory.stats().failures, 0u);
  void* const p = memory.allocate(1_MiB, stream);
  memory.deallocate(p, stream);
  const auto again = memory.try_allocate_cached(1_MiB, stream);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(*again, p);
  memory.deallocate(*again, stream);
  EXPECT_EQ(memory.try_allocate_cached(0_B, stream).value(), nullptr);
  EXPECT_EQ(code_of(memory.try_allocate_cached(bytes::max(), stream)), errc::size_overflow);
  EXPECT_EQ(code_of(memory.try_allocate_cached(1_MiB, stream::create(gpu(1)).value())),
            errc::bad_stream);
}

TEST_F(interface_test, recorded_streams_of_live_blocks_stand_in_snapshots) {
  auto memory = make();
  const auto stream = new_stream();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(64_KiB, stream);
  const auto block_of = [&] {
    const allocator_snapshot taken = memory.snapshot();
    for (const block_info& each : taken.pools.front().blocks)
      if (each.address == reinterpret_cast<std::uintptr_t>(p)) return each;
    return block_info{};
  };
  EXPECT_THAT(block_of().recorded, IsEmpty());
  ASSERT_TRUE(memory.record_stream(p, one));
  ASSERT_TRUE(memory.record_stream(p, two));
  EXPECT_THAT(block_of().recorded, ElementsAre(one.id(), two.id()));
  EXPECT_THAT(to_string(block_of()),
              ::testing::EndsWith(", recorded for stream " + std::to_string(one.id().number()) +
                                  " and " + std::to_string(two.id().number())));
  memory.deallocate(p, stream);
}

TEST_F(interface_test, allocators_and_pools_have_texts) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  void* const p = memory.allocate(1_MiB, stream);
  const std::string text = to_string(memory);
  EXPECT_THAT(text, ::testing::StartsWith(
                        "caching_allocator of device 0: requested 1 MiB (peak 1 MiB), reserved "));
  EXPECT_THAT(to_string(pool),
              ::testing::StartsWith("memory_pool \"apart\": requested 0 B (peak 0 B)"));
  EXPECT_EQ(to_string(memory_pool{}), "memory_pool, empty");
  EXPECT_THROW(static_cast<void>(memory_pool{}.id()), failure);
  EXPECT_THROW(static_cast<void>(memory_pool{}.name()), failure);
  EXPECT_THROW(static_cast<void>(memory_pool{}.stats()), failure);
  EXPECT_THROW(static_cast<void>(memory_pool{}.snapshot()), failure);
  EXPECT_THROW(static_cast<void>(memory_pool{}.is_suspended()), failure);
  memory.deallocate(p, stream);
}

TEST_F(interface_test, an_unused_allocator_can_be_emptied) {
  auto memory = make();
  EXPECT_EQ(memory.empty_cache().value(), 0_B);
  EXPECT_EQ(memory.trim().value(), 0_B);
  EXPECT_EQ(memory.stats().reserved, byte_gauge{});
  EXPECT_EQ(memory.stats().handles_released, 0u);
}

TEST_F(interface_test, segments_have_the_sizes_of_pytorchs) {
  EXPECT_EQ(segment_size(0_B).value(), 0_B);
  EXPECT_EQ(segment_size(1_B).value(), segment_rules::small_segment);
  EXPECT_EQ(segment_size(1_MiB).value(), 2_MiB);
  EXPECT_EQ(segment_size(1_MiB + 1_B).value(), 20_MiB);
  EXPECT_EQ(segment_size(10_MiB - 512_B).value(), 20_MiB);
  EXPECT_EQ(segment_size(10_MiB).value(), 10_MiB);
  EXPECT_EQ(segment_size(11_MiB).value(), 12_MiB);
  EXPECT_EQ(code_of(segment_size(bytes::max())), errc::size_overflow);
  auto memory = make({.policy = placement_policy::classic});
  const auto stream = new_stream();
  for (const bytes size : {1_MiB, 3_MiB, 11_MiB}) {
    const bytes before = memory.stats().reserved.current;
    void* const p = memory.allocate(size, stream);
    EXPECT_EQ(memory.stats().reserved.current - before, segment_size(size).value());
    memory.deallocate(p, stream);
    EXPECT_TRUE(memory.empty_cache());
  }
}

}  // namespace
}  // namespace weir::testing_support
