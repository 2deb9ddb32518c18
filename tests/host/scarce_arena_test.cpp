// SPDX-License-Identifier: Apache-2.0
// A host arena whose process runs out of memory for its records.
#include "host/arena_fixture.hpp"
#include "support/scarce_memory.hpp"

namespace weir::testing_support { namespace {

using scarce_arena_test = arena_test;

/// Every allocation of host memory in a round of requests fails in turn. Whatever fails, the arena
/// is consistent, and the next round succeeds.
TEST_F(scarce_arena_test, records_that_cannot_be_made_cost_no_memory) {
  const auto stream = new_stream();
  for (long nth = 0;; ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    const auto arena = make();
    bool failed = false;
    std::vector<void*> live;
    live.reserve(64);
    {
      const scarce_memory scarce{nth};
      for (int i = 0; i < 40; ++i) {
        const auto taken = arena->allocate(bytes{100'000}, stream, 64_B);
        if (taken) live.push_back(*taken);
      }
      if (!live.empty()) {
        static_cast<void>(arena->record_stream(live.front(), stream));
        if (arena->deallocate(live.back(), nullptr)) live.pop_back();
      }
      static_cast<void>(arena->reserve(5_MiB, host_wait::yes));
      static_cast<void>(arena->trim({}));
      failed = scarce_memory::take_failure();
    }
    ASSERT_EQ(arena->check(), "");
    for (void* const each : live) ASSERT_TRUE(arena->deallocate(each, nullptr));
    ASSERT_TRUE(arena->empty_cache());
    ASSERT_EQ(arena->stats().pinned.current, 0_B);
    static_cast<void>(heard.take());
    if (!failed) break;
    ASSERT_LT(nth, 2000);
  }
  EXPECT_EQ(machine->pinned(), 0_B);
}

}  // namespace
}  // namespace weir::testing_support
