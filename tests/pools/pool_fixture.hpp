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
