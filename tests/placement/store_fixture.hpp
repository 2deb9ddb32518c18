// SPDX-License-Identifier: Apache-2.0
// What the tests of single stores share: a small machine, and what a store tells.
#pragma once

#include <memory>
#include <vector>

#include "support/sizes.hpp"
#include "weir/observe/events.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace placement {

class kept_events final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override { all.push_back(event); }
  std::vector<memory_event> all;
};

/// A gigabyte of simulated device on which nothing happens by itself.
inline std::shared_ptr<sim::machine> make_small_machine() {
  using testing_support::mib;
  sim::machine_options chosen;
  chosen.devices = {
      sim::device_spec{.capacity = bytes{1024 * mib}, .context_overhead = bytes{64 * mib}}};
  chosen.mode = sim::progress::manual;
  return sim::machine::create(chosen).value();
}

}}}  // namespace weir::v0::placement
