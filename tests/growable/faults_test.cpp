// SPDX-License-Identifier: Apache-2.0
// Every driver call of growable memory fails once.
#include "growable/growable_fixture.hpp"

namespace weir::testing_support { namespace {

class growing_faults : public growable_test {
 protected:
  growing_faults() : growable_test{sim::progress::manual, 512_MiB} {}
};

TEST_F(growing_faults, each_call_of_a_life_may_fail) {
  fail_each_call({}, 64_MiB, [&](caching_allocator& memory, const stream& one, const stream& two) {
    auto reserved = growable_memory::reserve(memory, 64_MiB, {.page = 4_MiB});
    if (!reserved) return;
    const growable_memory& cache = *reserved;
    const std::vector<byte_range> batch{{0_B, 8_MiB}, {16_MiB, 8_MiB}};
    const auto commit = [&](const stream& on) {
      const bytes before = cache.stats().committed;
      const auto done = cache.commit(batch, on);
      EXPECT_EQ(cache.stats().committed, done ? 16_MiB : before);
      if (done) {
        const context_scope bound{gpu()};
        for (const byte_range& each : batch)
          static_cast<void>(machine->launch(
              on.handle(), "kernel",
              {sim::writes(reinterpret_cast<driver::CUdeviceptr>(at(cache, each.offset)),
                           each.size.count())}));
      }
    };
    commit(one);
    const auto gone = cache.decommit(0_B, 64_MiB, one);
    EXPECT_TRUE(!gone || cache.stats().committed == 0_B);
    auto other = memory.try_allocate(12_MiB, one);  // takes some of the pages
    commit(one);
    static_cast<void>(cache.decommit(0_B, 64_MiB, one));
    commit(two);
    static_cast<void>(cache.commit_ahead(8_MiB, two));
    static_cast<void>(cache.trim());
    auto plan = cache.prepare({{{32_MiB, 4_MiB}}}, {{{0_B, 4_MiB}}}, two);
    if (plan) plan->commit();
    static_cast<void>(cache.resize(20_MiB, two));
    if (other) static_cast<void>(memory.try_deallocate(*other, one));
    for (int attempt = 0; attempt < 3 && !cache.close(); ++attempt) {
    }
  });
}

TEST_F(growing_faults, a_batch_ends_where_a_call_fails_and_leaves_nothing) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  using driver::call;
  for (const call failing : {call::mem_create, call::mem_map, call::mem_set_access}) {
    for (std::uint64_t nth = 1; nth <= 4; ++nth) {
      SCOPED_TRACE(std::string{"call "} + std::to_string(nth));
      ASSERT_TRUE(memory.empty_cache());
      machine->fail(failing, nth, driver::CUDA_ERROR_UNKNOWN);
      const auto done = cache.commit(0_B, 16_MiB, on);
      machine->clear_faults();
      if (done) {
        ASSERT_TRUE(cache.decommit(0_B, 16_MiB, on));
        continue;
      }
      EXPECT_EQ(code_of(done), errc::driver_error);
      EXPECT_EQ(cache.stats().committed, 0_B);
      EXPECT_EQ(memory.stats().blocks.current, 0u);
      ASSERT_TRUE(cache.commit(0_B, 16_MiB, on));
      use(on, cache, 0_B, 16_MiB);
      machine->run_until_idle();
      ASSERT_TRUE(cache.decommit(0_B, 16_MiB, on));
    }
  }
}

}}  // namespace weir::testing_support
