// SPDX-License-Identifier: Apache-2.0
// What driver calls charge to the simulated clock.
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

cost_table cost_table::free() { return {}; }

cost_table cost_table::h200() {
  using enum driver::call;
  cost_table table;
  const auto set = [&](driver::call call, double nanoseconds, double per_mib = 0) {
    table.of[static_cast<std::size_t>(call)] = {nanoseconds, per_mib};
  };
  // Measured on an H200 under driver 580.159, unless said otherwise.
  // Plain memory: 70 us a pair and 0.47 us a MiB, shared by its two calls.
  set(mem_alloc, 35'000, 235);
  set(mem_free, 35'000, 235);
  // Virtual memory: a price for each handle, hardly for its size.
  set(mem_create, 12'000);
  set(mem_map, 1'000);
  set(mem_set_access, 28'000);
  set(mem_unmap, 18'000);
  set(mem_release, 14'000, 270);
  // Stream-ordered pools: 660 to 960 ns a pair on a hit.
  set(mem_alloc_async, 400);
  set(mem_alloc_from_pool_async, 400);
  set(mem_free_async, 400);
  // Pinned memory: 2.6 s for 4 GiB; the part that does not grow with the size is an estimate.
  set(mem_host_alloc, 20'000, 635'000);
  // Events and streams.
  set(event_create, 127);
  set(event_destroy, 127);
  set(event_record, 200);
  set(event_record_with_flags, 200);
  set(ctx_record_event, 250);
  set(event_query, 175);
  set(stream_wait_event, 166);
  set(stream_query, 230);
  set(stream_get_id, 27);
  set(stream_is_capturing, 22);
  set(stream_write_value32, 1'500);
  set(ctx_get_current, 10);
  set(pointer_get_attribute, 52);
  // Submitting work.
  set(launch_kernel, 4'100);
  set(memset_d8_async, 1'108, 2'760);
  return table;
}

}}}  // namespace weir::v0::sim
