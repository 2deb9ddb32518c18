// SPDX-License-Identifier: Apache-2.0
// Whether network cards can reach what an allocator maps (GPUDirect RDMA).
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

class rdma_memory : public heap_test {
 protected:
  [[nodiscard]] bool is_reachable(void* block) const {
    int capable = -1;
    const context_scope bound{gpu()};
    EXPECT_EQ(bound.driver().pointer_get_attribute(
                  &capable, driver::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                  reinterpret_cast<driver::CUdeviceptr>(block)),
              driver::CUDA_SUCCESS);
    EXPECT_THAT(capable, ::testing::AnyOf(0, 1));
    return capable == 1;
  }
  /// Of the default pool, a pool, one in segments and a graph's.
  [[nodiscard]] std::vector<bool> reachable_blocks(const allocator_options& settings) {
    auto memory = make(settings);
    const auto on = new_stream();
    std::vector<bool> answers;
    const auto note = [&](auto& of, bytes size) {
      void* const block = of.allocate(size, on);
      answers.push_back(is_reachable(block));
      memory.deallocate(block, on);
    };
    note(memory, 3_MiB);
    const auto pool = memory.create_pool("apart").value();
    note(pool, 30_MiB);
    const auto segments = memory.create_pool("segments", {.segments = true}).value();
    note(segments, 3_MiB);
    EXPECT_TRUE(memory.close());
    return answers;
  }
};

constexpr placement_policy mapped_policies[] = {
    placement_policy::balanced, placement_policy::throughput, placement_policy::compact,
    placement_policy::never_move, placement_policy::classic_expandable};

TEST_F(rdma_memory, is_what_every_policy_maps_unless_it_is_switched_off) {
  for (const auto policy : mapped_policies) {
    SCOPED_TRACE(to_string(policy));
    EXPECT_THAT(reachable_blocks({.policy = policy}), ::testing::Each(true));
    EXPECT_THAT(reachable_blocks({.policy = policy, .rdma = rdma_use::on}), ::testing::Each(true));
    EXPECT_THAT(reachable_blocks({.policy = policy, .rdma = rdma_use::off}),
                ::testing::Each(false));
  }
  for (const auto checks : {debug_checks::red_zones, debug_checks::guard_pages}) {
    auto memory = make({.debug = checks});
    const auto on = new_stream();
    void* const block = memory.allocate(1_KiB, on);
    EXPECT_TRUE(is_reachable(block));
    memory.deallocate(block, on);
    EXPECT_TRUE(memory.close());
  }
}

TEST_F(rdma_memory, of_exported_blocks_goes_with_the_descriptors) {
  auto memory = make({.exportable = true});
  const auto on = new_stream();
  void* const block = memory.allocate(3_MiB, on);
  EXPECT_TRUE(is_reachable(block));
  EXPECT_EQ(memory.handles_under(block).value().handles.empty(), false);
  memory.deallocate(block, on);
}

TEST_F(rdma_memory, is_done_without_where_the_driver_does_not_map_it) {
  // WSL 2 reports the attribute, creates the handle, and fails in cuMemSetAccess.
  machine->fail(driver::call::mem_set_access, 1, driver::CUDA_ERROR_UNKNOWN);
  for (const auto policy : mapped_policies) {
    SCOPED_TRACE(to_string(policy));
    EXPECT_THAT(reachable_blocks({.policy = policy}), ::testing::Each(false));
  }
}

TEST_F(rdma_memory, that_was_suspended_comes_back_with_the_property) {
  auto memory = make();
  const auto on = new_stream();
  const tag weights = tag::named("weights").value();
  ASSERT_TRUE(memory.declare_suspendable(weights));
  void* block = nullptr;
  {
    const tag_scope as{weights};
    block = memory.allocate(3_MiB, on);
  }
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.resume(weights));
  EXPECT_TRUE(is_reachable(block));
  memory.deallocate(block, on);
}

}}  // namespace weir::testing_support
