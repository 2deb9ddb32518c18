// Replaying a trace: time from the trace, costs from the simulated machine.
#include "support/replay.hpp"

#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

replay_outcome replay(const trace& what, const replay_settings& settings) {
  sim::machine_options description;
  description.mode = sim::progress::timed;
  description.lag = settings.lag;
  description.check_hazards = false;
  const auto machine = sim::machine::create(description).value();
  const auto opened = runtime::open_simulated(machine).value();
  const device gpu = opened->device(device_id{0}).value();
  auto memory = caching_allocator::create(gpu, settings.heap).value();
  std::vector<stream> streams;
  for (std::size_t i = 0; i < what.streams; ++i) streams.push_back(stream::create(gpu).value());

  replay_outcome outcome;
  std::vector<void*> blocks(what.blocks);
  std::uint64_t requested = 0;
  const std::size_t warm = what.events.size() / 5;
  const sim::duration start = machine->driver_time();
  for (std::size_t i = 0; i < what.events.size(); ++i) {
    if (i == warm) outcome.warm_up = machine->driver_time() - start;
    const trace::event& now = what.events[i];
    if (now.what == trace::action::give_up) continue;
    machine->set_time(std::chrono::microseconds{now.time});
    const stream& on = streams[now.stream];
    if (now.what == trace::action::allocate) {
      blocks[now.block] = memory.allocate(bytes{now.size}, on);
      requested += now.size;
      outcome.requested_peak = std::max(outcome.requested_peak, requested);
    } else {
      memory.deallocate(blocks[now.block], on);
      requested -= now.size;
    }
  }
  outcome.steady = machine->driver_time() - start - outcome.warm_up;
  outcome.steady_wall = std::chrono::microseconds{what.events.back().time - what.events[warm].time};
  outcome.stats = memory.stats();
  outcome.reserved_peak = outcome.stats.reserved.peak;
  for (const trace::event& each : what.events)
    if (each.what == trace::action::reusable) blocks[each.block] = nullptr;
  for (void* left : blocks) memory.deallocate(left);
  return outcome;
}

}  // namespace weir::testing_support
