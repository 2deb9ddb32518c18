// SPDX-License-Identifier: Apache-2.0
// Growable memory and requests on several threads.
#include <random>

#include "growable/growable_fixture.hpp"

namespace weir::testing_support { namespace {

class growing_threads : public growable_test {
 protected:
  growing_threads() : growable_test{sim::progress::seeded, 512_MiB} {}
};

TEST_F(growing_threads, commit_and_decommit_beside_requests) {
  const auto memory = make();
  ASSERT_TRUE(memory.set_limit(96_MiB));
  const auto cache = reserve_from(memory, 64_MiB);
  constexpr int rounds_of_each = is_sanitized ? 40 : 200;
  std::vector<std::thread> workers;
  for (unsigned number = 0; number < 3; ++number) {
    workers.emplace_back([&, number] {
      const auto on = new_stream();
      std::mt19937 random{number};
      for (int i = 0; i < rounds_of_each; ++i) {
        if (number == 2) {  // requests
          const bytes size{(1 + random() % 6) << 20};
          if (const auto p = memory.try_allocate(size, on)) {
            write(on, *p, size);
            memory.deallocate(*p, on);
          }
          continue;
        }
        // Each thread has half of the pages.
        const bytes offset = 4_MiB * (8 * number + random() % 8);
        if (cache.commit(offset, 4_MiB, on)) {
          use(on, cache, offset, 4_MiB);
          EXPECT_TRUE(cache.decommit(offset, 4_MiB, on));
        }
      }
    });
  }
  for (auto& each : workers) each.join();
  machine->run_until_idle();
  EXPECT_EQ(cache.stats().committed, 0_B);
  EXPECT_EQ(memory.stats().allocated.current, 0_B);
  EXPECT_LE(memory.stats().reserved.current, 96_MiB);
  EXPECT_EQ(heap::central_heap::of(memory).inspection().check(), "");
}

}}  // namespace weir::testing_support
