// SPDX-License-Identifier: Apache-2.0
// Requests while the driver refuses parts of what a plan needs: nothing is lost, and what can still
// serve them does.
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;

/// Sixteen blocks of 8 MiB that fill what may be reserved; every second one goes, so that 64 MiB
/// are free and no request of more than 8 MiB fits without a move.
class driver_trouble_test : public heap_test {
 protected:
  static constexpr int blocks = 16;

  caching_allocator make_full(bytes limit) {
    allocator_options settings;
    settings.policy = placement_policy::compact;
    settings.thread_cache = {};
    settings.limit = limit;
    auto memory = make(settings);
    for (int i = 0; i < blocks; ++i) live.push_back(memory.allocate(8_MiB, home));
    for (std::size_t i = 0; i < live.size(); i += 2) {
      memory.deallocate(live[i], home);
      live[i] = nullptr;
    }
    return memory;
  }
  void free_all(caching_allocator& memory) {
    for (void* const each : live) memory.deallocate(each, home);
  }

  const stream home = new_stream();
  std::vector<void*> live;
};

TEST_F(driver_trouble_test, a_move_without_memory_for_page_tables_is_no_end) {
  auto memory = make_full(1_GiB);
  machine->fail(call::mem_map, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  void* const served = memory.allocate(32_MiB, home);  // by a later rung, which moves as well
  write(home, served, 32_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 8_MiB * blocks);
  EXPECT_EQ(check(memory), "");
  memory.deallocate(served, home);
  free_all(memory);
}

TEST_F(driver_trouble_test, a_request_fails_only_when_every_rung_did) {
  auto memory = make_full(8_MiB * blocks);
  const auto refused = [&] {
    for (std::uint64_t nth = 1; nth <= 64; ++nth)
      machine->fail(call::mem_map, nth, driver::CUDA_ERROR_OUT_OF_MEMORY);
    return code_of(memory.try_allocate(32_MiB, home));
  };
  EXPECT_EQ(refused(), errc::out_of_memory);
  EXPECT_EQ(check(memory), "");
  machine->clear_faults();
  void* const served = memory.allocate(32_MiB, home);
  write(home, served, 32_MiB);
  memory.deallocate(served, home);
  free_all(memory);
}

/// A mapping that cannot be undone keeps its addresses from later plans, until it can.
TEST_F(driver_trouble_test, a_mapping_that_cannot_be_undone_blocks_nobody) {
  auto memory = make_full(8_MiB * blocks);
  machine->fail(call::mem_map, 2, driver::CUDA_ERROR_OUT_OF_MEMORY);
  machine->fail(call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto first = memory.try_allocate(32_MiB, home);
  EXPECT_EQ(check(memory), "");
  if (first) memory.deallocate(*first, home);
  machine->clear_faults();
  for (const bytes size : {32_MiB, 48_MiB, 64_MiB}) {
    void* const served = memory.allocate(size, home);
    write(home, served, size);
    EXPECT_EQ(check(memory), "");
    memory.deallocate(served, home);
  }
  free_all(memory);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(machine->used(device_id{0}), 64_MiB);  // what the context takes
}

/// The handle of a request that fails is released a second time if the driver refuses once.
TEST_F(driver_trouble_test, a_release_that_is_refused_once_loses_no_memory) {
  for (const auto checks :
       {debug_checks::off, debug_checks::red_zones, debug_checks::guard_pages}) {
    for (const auto policy : {placement_policy::balanced, placement_policy::compact,
                              placement_policy::classic_expandable}) {
      SCOPED_TRACE(to_string(policy) + " " + to_string(checks));
      auto memory = make({.policy = policy, .debug = checks});
      machine->fail(call::mem_map, 1, driver::CUDA_ERROR_UNKNOWN);
      machine->fail(call::mem_release, 1, driver::CUDA_ERROR_UNKNOWN);
      EXPECT_EQ(code_of(memory.try_allocate(8_MiB, home)), errc::driver_error);
      EXPECT_EQ(machine->used(device_id{0}), 64_MiB) << "what the context takes";
      machine->clear_faults();
      EXPECT_EQ(check(memory), "");
      ASSERT_TRUE(memory.close());
    }
  }
}

TEST_F(driver_trouble_test, a_mapping_that_can_never_be_undone_costs_its_addresses_only) {
  auto memory = make_full(8_MiB * blocks);
  machine->fail(call::mem_set_access, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  for (std::uint64_t nth = 1; nth <= 3; ++nth)
    machine->fail(call::mem_unmap, nth, driver::CUDA_ERROR_UNKNOWN);
  void* const served = memory.allocate(32_MiB, home);
  write(home, served, 32_MiB);
  EXPECT_EQ(check(memory), "");
  memory.deallocate(served, home);
  machine->clear_faults();
  void* const again = memory.allocate(64_MiB, home);
  write(home, again, 64_MiB);
  EXPECT_EQ(check(memory), "");
  memory.deallocate(again, home);
  free_all(memory);
}

}  // namespace
}  // namespace weir::testing_support
