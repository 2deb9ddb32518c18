// SPDX-License-Identifier: Apache-2.0
// A simulated machine for the pools that cache freed blocks, and how to read its counters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "heap/heap_fixture.hpp"
#include "weir/pool/bin_pool.hpp"

namespace weir::testing_support {

using driver::call;

/// Two simulated devices of 2 GiB where nothing happens unless somebody waits for it.
class block_pool_test : public heap_test {
 protected:
  using heap_test::heap_test;

  [[nodiscard]] bin_pool make_bins(bytes threshold = bytes::max()) const {
    return bin_pool::create(gpu(), {.threshold = threshold}).value();
  }
  [[nodiscard]] bytes used(int index = 0) const { return machine->used(device_id{index}); }
  void read(const stream_ref& stream, const void* memory, bytes size) {
    const context_scope scope{stream.device()};
    ASSERT_TRUE(
        machine->launch(stream.handle(), "kernel read",
                        {sim::reads(reinterpret_cast<driver::CUdeviceptr>(memory), size.count())}));
  }
  /// Every peak of a new pool is above what it holds, and once it was reset just that.
  template <class Pool>
  void expect_peaks_to_be_reset(const Pool& pool) {
    const auto stream = new_stream();
    void* const kept = pool.allocate(1000_B, stream);
    pool.deallocate(pool.allocate(5000_B, stream), stream);
    machine->run_until_idle();
    ASSERT_EQ(pool.trim().value(), 5_KiB);
    block_pool_stats expected = pool.stats();
    EXPECT_EQ(expected.requested, (byte_gauge{1000_B, 6000_B}));
    EXPECT_EQ(expected.allocated, (byte_gauge{1_KiB, 6_KiB}));
    EXPECT_EQ(expected.reserved, (byte_gauge{1_KiB, 6_KiB}));
    EXPECT_EQ(expected.blocks, (gauge{1, 2}));
    expected.requested.peak = 1000_B;
    expected.allocated.peak = expected.reserved.peak = 1_KiB;
    expected.blocks.peak = 1;
    pool.reset_peaks();
    EXPECT_EQ(pool.stats(), expected) << "and nothing else is";
    pool.deallocate(kept, stream);
  }
};

/// What contradicts itself in the counters of a pool that nobody is just using and whose counters
/// were not reset; empty if nothing.
[[nodiscard]] inline std::string contradiction(const block_pool_stats& now) {
  if (now.requested.current > now.allocated.current) return "requested > allocated";
  if (now.allocated.current + now.cached != now.reserved.current) return "not all is accounted for";
  if (now.pending > now.cached) return "pending > cached";
  if (now.allocations != now.hits + now.misses) return "allocations != hits + misses";
  if (now.allocations - now.frees != now.blocks.current) return "blocks are miscounted";
  for (const byte_gauge& each : {now.requested, now.allocated, now.reserved})
    if (each.current > each.peak) return "a peak is too low";
  if (now.blocks.current > now.blocks.peak) return "a peak is too low";
  return {};
}

}  // namespace weir::testing_support
