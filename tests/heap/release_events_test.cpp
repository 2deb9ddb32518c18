// SPDX-License-Identifier: Apache-2.0
// Who is told of memory that goes back to the driver can still reach it, as registrations elsewhere
// must be undone while the memory is there.
#include <vector>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

/// Whether the memory of each release was there when the event came.
class release_watch final : public event_sink {
 public:
  explicit release_watch(const driver::table& calls) : calls_{calls} {}
  void on_event(const memory_event& event) noexcept override {
    if (event.kind != memory_event_kind::release && event.kind != memory_event_kind::reserve)
      return;
    int type = 0;
    const auto answer = calls_.pointer_get_attribute(
        &type, driver::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, event.address);
    const bool there = answer == driver::CUDA_SUCCESS;
    if (event.kind == memory_event_kind::release) {
      ++releases;
      reachable += there ? 1U : 0U;
    } else {
      ++reserves;
    }
  }
  std::size_t releases = 0, reachable = 0, reserves = 0;

 private:
  const driver::table& calls_;
};

class release_events_test : public heap_test {};

TEST_F(release_events_test, memory_is_there_when_its_release_is_told) {
  const context_scope bound{gpu()};
  const auto on = new_stream();
  for (const auto policy : {placement_policy::balanced, placement_policy::classic,
                            placement_policy::classic_expandable}) {
    for (const bool at_close : {false, true}) {
      SCOPED_TRACE(to_string(policy) + (at_close ? " at close" : ""));
      release_watch watch{machine->driver()};
      auto memory = make({.policy = policy});
      const auto heard = memory.add_observer(watch).value();
      memory.deallocate(memory.allocate(64_MiB, on), on);
      ASSERT_TRUE(on.synchronize());
      if (at_close) {
        ASSERT_TRUE(memory.close());
      } else {
        ASSERT_TRUE(memory.empty_cache());
      }
      EXPECT_GT(watch.releases, 0U);
      EXPECT_EQ(watch.reachable, watch.releases);
    }
  }
}

TEST_F(release_events_test, memory_of_pools_in_segments_too) {
  const context_scope bound{gpu()};
  const auto on = new_stream();
  release_watch watch{machine->driver()};
  auto memory = make();
  const auto heard = memory.add_observer(watch).value();
  {
    auto pool = memory.create_pool("segments", {.for_graphs = true, .segments = true}).value();
    memory.deallocate(pool.allocate(64_MiB, on), on);
  }
  ASSERT_TRUE(on.synchronize());
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(watch.releases, 1U);
  EXPECT_EQ(watch.reachable, 1U);
}

TEST_F(release_events_test, a_release_that_the_driver_refuses_is_taken_back) {
  const context_scope bound{gpu()};
  const auto on = new_stream();
  for (const auto policy : {placement_policy::balanced, placement_policy::classic_expandable}) {
    SCOPED_TRACE(to_string(policy));
    release_watch watch{machine->driver()};
    auto memory = make({.policy = policy});
    const auto heard = memory.add_observer(watch).value();
    memory.deallocate(memory.allocate(2_MiB, on), on);
    ASSERT_TRUE(on.synchronize());
    const std::size_t before = watch.reserves;
    machine->fail(driver::call::mem_unmap, 1, driver::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    EXPECT_FALSE(memory.empty_cache());
    machine->clear_faults();
    EXPECT_EQ(watch.releases, 1U);
    EXPECT_EQ(watch.reserves, before + 1) << "it is still there";
    ASSERT_TRUE(memory.empty_cache());
    EXPECT_EQ(watch.reachable, watch.releases);
  }
}

}  // namespace
}  // namespace weir::testing_support
