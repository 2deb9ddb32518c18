// SPDX-License-Identifier: Apache-2.0
// Replaying a trace: time from the trace, costs from the simulated machine.
#include "support/replay.hpp"

#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

replay_outcome replay(const trace& recorded, const replay_settings& settings) {
  sim::machine_options description;
  description.mode = sim::progress::timed;
  description.lag = settings.lag;
  description.check_hazards = false;
  const auto machine = sim::machine::create(description).value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  auto memory = caching_allocator::create(gpu, settings.heap).value();
  std::vector<stream> streams;
  for (std::size_t i = 0; i < recorded.streams; ++i) streams.push_back(stream::create(gpu).value());

  replay_outcome outcome;
  std::vector<void*> blocks(recorded.blocks);
  std::uint64_t requested = 0;
  const std::size_t warm = recorded.events.size() / 5;
  const sim::duration start = machine->driver_time();
  for (std::size_t i = 0; i < recorded.events.size(); ++i) {
    if (i == warm) outcome.warm_up = machine->driver_time() - start;
    const trace::event& now = recorded.events[i];
    if (now.kind == trace::event_kind::free) continue;
    machine->set_time(std::chrono::microseconds{now.time});
    const stream& on = streams[now.stream];
    if (now.kind == trace::event_kind::allocate) {
      blocks[now.block] = memory.allocate(bytes{now.size}, on);
      requested += now.size;
      outcome.requested_peak = std::max(outcome.requested_peak, requested);
    } else {
      memory.deallocate(blocks[now.block], on);
      requested -= now.size;
    }
  }
  outcome.steady = machine->driver_time() - start - outcome.warm_up;
  outcome.steady_wall =
      std::chrono::microseconds{recorded.events.back().time - recorded.events[warm].time};
  outcome.stats = memory.stats();
  outcome.reserved_peak = outcome.stats.reserved.peak.count();
  for (const trace::event& each : recorded.events)
    if (each.kind == trace::event_kind::reusable) blocks[each.block] = nullptr;
  for (void* block : blocks) memory.deallocate(block);
  return outcome;
}

}  // namespace weir::testing_support
