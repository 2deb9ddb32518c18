// SPDX-License-Identifier: Apache-2.0
// Requests that cannot be met: they fail without creating memory, and cost nobody a cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;

constexpr std::array compared_policies{
    placement_policy::balanced, placement_policy::throughput,
    placement_policy::compact,  placement_policy::never_move,
    placement_policy::classic,  placement_policy::classic_expandable};

class oversized_requests : public heap_test {
 protected:
  /// Handles that were created, whatever became of them: each that is not needed is released.
  [[nodiscard]] std::uint64_t released() const { return machine->calls(call::mem_release); }
  [[nodiscard]] std::uint64_t tried() const {
    return machine->calls(call::mem_create) + machine->calls(call::mem_alloc);
  }
};

TEST_F(oversized_requests, more_than_the_device_has_fails_without_a_driver_call_for_memory) {
  for (const placement_policy policy : compared_policies) {
    SCOPED_TRACE(to_string(policy));
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    memory.deallocate(memory.allocate(64_MiB, stream), stream);
    const bytes reserved = memory.stats().reserved.current;
    const auto before = tried();
    EXPECT_EQ(code_of(memory.try_allocate(3_GiB, stream)), errc::out_of_memory);
    EXPECT_EQ(tried(), before);
    EXPECT_EQ(memory.stats().reserved.current, reserved) << "nobody loses a cache for it";
    EXPECT_EQ(memory.stats().failures, 1u);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(oversized_requests, more_than_is_free_is_refused_before_the_first_handle) {
  for (const placement_policy policy : compared_policies) {
    SCOPED_TRACE(to_string(policy));
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    void* const held = memory.allocate(1_GiB, stream);
    memory.deallocate(memory.allocate(100_MiB, stream), stream);
    const bytes reserved = memory.stats().reserved.current;
    const auto before = tried();
    const auto handles = released();
    EXPECT_EQ(code_of(memory.try_allocate(1500_MiB, stream)), errc::out_of_memory);
    EXPECT_EQ(released(), handles) << "a handle was created in vain";
    EXPECT_EQ(tried(), before) << "the device has no such memory beside what is held";
    EXPECT_EQ(memory.stats().reserved.current, reserved);
    EXPECT_EQ(memory.stats().failures, 1u);
    memory.deallocate(held, stream);
    void* const all =
        memory.allocate(1500_MiB, stream);  // the same request, now that it can be met
    memory.deallocate(all, stream);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(oversized_requests, what_fits_once_caches_are_given_back_is_served) {
  for (const placement_policy policy : compared_policies) {
    SCOPED_TRACE(to_string(policy));
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    const auto pool = memory.create_pool("other").value();
    void* const held = memory.allocate(500_MiB, stream);
    memory.deallocate(pool.allocate(1_GiB, stream), stream);
    void* const served = memory.allocate(1200_MiB, stream);
    EXPECT_EQ(pool.stats().reserved.current, 0_B);
    for (void* const each : {held, served}) memory.deallocate(each, stream);
    EXPECT_EQ(memory.stats().failures, 0u);
  }
}

TEST_F(oversized_requests, what_caches_make_room_for_is_served_beside_suspended_memory) {
  auto memory = make();
  const auto stream = new_stream();
  const tag weights = tag::named("weights").value();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* held = nullptr;
  {
    const tag_scope of{weights};
    held = memory.allocate(1_GiB, stream);
  }
  ASSERT_TRUE(memory.suspend(weights, {.contents = suspended_contents::discard}));
  const auto pool = memory.create_pool("other").value();
  std::array<void*, 3> cached{};
  for (void*& each : cached) each = pool.allocate(500_MiB, stream);
  for (void* const each : cached) memory.deallocate(each, stream);
  EXPECT_EQ(memory.explain(1500_MiB, stream).other_pools, 1500_MiB);
  void* const served = memory.try_allocate(1500_MiB, stream).value_or(nullptr);
  EXPECT_NE(served, nullptr);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
  for (void* const each : {held, served}) memory.deallocate(each, stream);
}

TEST_F(oversized_requests, what_no_stream_can_bring_is_refused_without_a_wait) {
  for (const placement_policy policy : compared_policies) {
    for (const bytes limit : {0_B, 1_GiB}) {
      SCOPED_TRACE(to_string(policy) + ", limit " + to_string(limit));
      auto memory = make({.policy = policy, .limit = limit});
      const auto stream = new_stream();
      const auto busy = new_stream();
      const bytes most = limit == bytes{} ? 1900_MiB : 1_GiB;
      void* const held = memory.allocate(most - 200_MiB, stream);
      memory.deallocate(memory.allocate(100_MiB, busy), busy);
      write(busy, held, 1_MiB);
      {
        const auto waits_for_ever = hold(busy);
        for (const bytes size : {1500_MiB, 300_MiB})
          EXPECT_EQ(code_of(memory.try_allocate(size, stream)), errc::out_of_memory);
      }
      EXPECT_TRUE(busy.synchronize());
      memory.deallocate(held, stream);
      EXPECT_EQ(check(memory), "");
    }
  }
}

TEST_F(oversized_requests, what_a_held_pool_of_graphs_keeps_is_not_waited_for) {
  for (const placement_policy policy : compared_policies) {
    SCOPED_TRACE(to_string(policy));
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    const auto busy = new_stream();
    const auto graphs = memory.create_pool("graphs", {.for_graphs = true}).value();
    memory.deallocate(graphs.allocate(1200_MiB, stream), stream);
    void* const used = memory.allocate(100_MiB, busy);
    write(busy, used, 1_MiB);
    memory.deallocate(used, busy);
    {
      const auto waits_for_ever = hold(busy);
      EXPECT_EQ(code_of(memory.try_allocate(1_GiB, stream)), errc::out_of_memory);
    }
    EXPECT_EQ(graphs.stats().reserved.current, 1200_MiB);
    EXPECT_EQ(check(memory), "");
  }
}

/// A driver that another process asks for 100 MiB whenever weir has asked for memory.
struct other_process {
  static inline driver::table real;
  static inline int refused = 0;
  static driver::CUresult create(driver::CUmemGenericAllocationHandle* handle, std::size_t size,
                                 const driver::CUmemAllocationProp* about,
                                 unsigned long long flags) {
    const auto answer = real.mem_create(handle, size, about, flags);
    driver::CUmemGenericAllocationHandle piece{};
    const auto theirs = real.mem_create(&piece, std::size_t{100} << 20, about, 0);
    if (theirs != driver::CUDA_SUCCESS) ++refused;
    if (theirs == driver::CUDA_SUCCESS) static_cast<void>(real.mem_release(piece));
    return answer;
  }
};

TEST_F(oversized_requests, another_process_finds_the_memory_that_was_free) {
  auto memory = make();
  const auto stream = new_stream();
  void* const held = memory.allocate(1_GiB, stream);
  other_process::real = machine->driver();
  driver::table shared = machine->driver();
  shared.mem_create = &other_process::create;
  const auto watched = runtime::open_table(shared, "watched", machine).value();
  const auto there = watched->device(device_id{0}).value();
  auto asking = caching_allocator::create(there).value();
  const auto on = stream::create(there).value();
  EXPECT_EQ(code_of(asking.try_allocate(1500_MiB, on)), errc::out_of_memory);
  EXPECT_EQ(other_process::refused, 0);
  memory.deallocate(held, stream);
}

/// A size and an alignment whose sum does not fit in 32 bits of units.
TEST_F(oversized_requests, nearly_two_tebibytes_with_an_alignment_are_refused) {
  for (const placement_policy policy : compared_policies) {
    SCOPED_TRACE(to_string(policy));
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    void* const low = memory.allocate(4_MiB, stream);
    void* const gap = memory.allocate(64_MiB, stream);
    void* const high = memory.allocate(4_MiB, stream);
    memory.deallocate(gap, stream);
    for (const std::uint64_t less : {1024u, 4096u, 1u << 20, 2u << 20}) {
      const bytes huge{(std::uint64_t{1} << 41) - less};
      for (const bytes alignment : {512_B, 4_KiB, 2_MiB}) {
        EXPECT_EQ(code_of(memory.try_allocate(huge, stream, alignment)), errc::out_of_memory)
            << to_string(huge) << " aligned to " << to_string(alignment);
        EXPECT_EQ(check(memory), "");
      }
    }
    for (void* const each : {low, high}) memory.deallocate(each, stream);
  }
}

TEST_F(oversized_requests, a_resume_that_cannot_be_met_creates_nothing) {
  auto memory = make();
  const tag weights = tag::named("weights").value();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  const auto stream = new_stream();
  void* held = nullptr;
  {
    const tag_scope of{weights};
    held = memory.allocate(1_GiB, stream);
  }
  ASSERT_TRUE(memory.suspend(weights, {.contents = suspended_contents::discard}));
  void* const other = memory.allocate(1500_MiB, stream);
  const auto handles = released();
  EXPECT_EQ(code_of(memory.resume(weights)), errc::out_of_memory);
  EXPECT_EQ(released(), handles);
  memory.deallocate(other, stream);
  ASSERT_TRUE(memory.resume(weights));
  memory.deallocate(held, stream);
}

}  // namespace
}  // namespace weir::testing_support
