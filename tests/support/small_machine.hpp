// SPDX-License-Identifier: Apache-2.0
// A simulated machine with little memory: ThreadSanitizer leaves a program few addresses.
#pragma once

#include <memory>

#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

[[nodiscard]] inline std::shared_ptr<runtime> open_small_machine() {
  sim::machine_options little;
  little.devices.assign(1, sim::device_spec{.capacity = bytes{std::uint64_t{2} << 30},
                                            .context_overhead = bytes{64 << 20}});
  little.watch_blocks = false;  // whose lock would order threads
  return runtime::open_simulated(sim::machine::create(little).value()).value();
}

}  // namespace weir::testing_support
