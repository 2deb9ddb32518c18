// SPDX-License-Identifier: Apache-2.0
// The smallest programs that show the bugs which the random ones have found.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "support/sizes.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::order_test { namespace {

using testing_support::mib;

/// A machine on which nothing happens unless somebody waits, and an allocator that moves memory.
class OrderRegression : public ::testing::Test {
 protected:
  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options machine_settings;
    machine_settings.mode = sim::progress::manual;
    machine_settings.devices.front().capacity = bytes{512 * mib};
    machine_settings.devices.front().context_overhead = bytes{32 * mib};
    return sim::machine::create(machine_settings).value();
  }
  static allocator_options settings(std::uint64_t cache) {
    allocator_options chosen;
    chosen.policy = placement_policy::compact;
    chosen.thread_cache = bytes{cache};
    return chosen;
  }
  stream make_stream() { return stream::create(gpu).value(); }
  caching_allocator make_allocator(std::uint64_t cache = 0) {
    return caching_allocator::create(gpu, settings(cache)).value();
  }
  void write(const stream& on, void* pointer, std::uint64_t size) {
    ASSERT_TRUE(machine->launch(on.handle(), "write",
                                {sim::writes(reinterpret_cast<device_address>(pointer), size)}));
  }

  std::shared_ptr<sim::machine> machine = make_machine();
  std::shared_ptr<runtime> sim_runtime = runtime::open_simulated(machine).value();
  device gpu = sim_runtime->device(device_id{0}).value();
};

// A block that waited for a recorded stream came back with the epoch of its free, and the run it
// became part of took that epoch, though the other part was freed later.
TEST_F(OrderRegression, a_late_block_does_not_make_its_neighbour_old) {
  caching_allocator memory = make_allocator();
  const stream a = make_stream();
  const stream b = make_stream();
  const stream c = make_stream();
  void* const late = memory.allocate(bytes{2 * mib}, a);
  void* const neighbour = memory.allocate(bytes{2 * mib}, a);
  write(a, late, 2 * mib);
  ASSERT_TRUE(memory.record_stream(late, b));
  memory.deallocate(late, a);              // in an epoch of a; waits for b ...
  ASSERT_TRUE(memory.trim(bytes::max()));  // ... which ends here
  event first = event::create(gpu).value();
  ASSERT_TRUE(first.record(a));
  write(a, neighbour, 2 * mib);
  memory.deallocate(neighbour, a);  // in the next epoch
  ASSERT_TRUE(b.synchronize());
  ASSERT_TRUE(memory.trim(bytes::max()));  // b is completed: the late block comes back
  ASSERT_TRUE(first.synchronize());        // a has completed the first epoch, not the second
  ASSERT_TRUE(memory.trim(bytes::max()));
  void* const next = memory.allocate(bytes{4 * mib}, c);
  write(c, next, 4 * mib);
  for (const sim::hazard& hazard : machine->hazards()) ADD_FAILURE() << hazard.message();
  memory.deallocate(next, c);
}

// A window that was rounded down to its alignment began below the row of blocks it was in.
TEST_F(OrderRegression, an_aligned_window_stays_in_its_row) {
  caching_allocator memory = make_allocator();
  const stream a = make_stream();
  // Small blocks that no slot boundary agrees with, of which every other one goes.
  std::vector<void*> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(memory.allocate(bytes{3 * mib + 512 * (1 + i)}, a));
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(blocks[i], a);
  for (const std::uint64_t size : {5 * mib, 7 * mib, 9 * mib, 11 * mib, 13 * mib}) {
    void* const aligned = memory.allocate(bytes{size}, a, bytes{2 * mib});
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(aligned) % (2 * mib), 0U);
    write(a, aligned, size);
    memory.deallocate(aligned, a);
  }
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(blocks[i], a);
  EXPECT_TRUE(machine->hazards().empty());
}

// A stream that was destroyed cannot be asked whether it is captured.
TEST_F(OrderRegression, a_destroyed_stream_is_no_error) {
  caching_allocator memory = make_allocator();
  {
    stream destroyed = make_stream();
    memory.deallocate(memory.allocate(bytes{mib}, destroyed), destroyed);
  }
  EXPECT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, bytes{});
}

// A cache counts every tag up to the highest it has met; the ledger had a place for those only that
// had come to it.
TEST_F(OrderRegression, a_tag_that_only_a_cache_has_seen_is_counted) {
  caching_allocator memory = make_allocator(4 * mib);
  const stream a = make_stream();
  const tag lower = tag::named("order lower").value();
  const tag higher = tag::named("order higher").value();
  {
    const tag_scope tagged{higher};
    memory.deallocate(memory.allocate(bytes{512}, a), a);
  }
  const tag_scope tagged{lower};
  void* const hit = memory.allocate(bytes{512}, a);
  EXPECT_EQ(memory.stats(lower).requested.current, bytes{512});
  memory.deallocate(hit, a);
}

// What a cache allocated and the lock freed was taken from a sum that did not have it yet.
TEST_F(OrderRegression, a_peak_is_no_number_below_zero) {
  caching_allocator memory = make_allocator(4 * mib);
  const stream a = make_stream();
  const stream b = make_stream();
  memory.deallocate(memory.allocate(bytes{512}, a), a);
  EXPECT_EQ(memory.stats().requested.current, bytes{});
  void* const hit = memory.allocate(bytes{512}, a);
  ASSERT_TRUE(memory.record_stream(hit, b));
  memory.deallocate(hit, a);
  void* const other = memory.allocate(bytes{256}, b);
  EXPECT_LE(memory.stats().requested.peak, bytes{1024});
  memory.deallocate(other, b);
}

}  // namespace
}  // namespace weir::order_test
