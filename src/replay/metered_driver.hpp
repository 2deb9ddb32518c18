// SPDX-License-Identifier: Apache-2.0
// A table of driver calls that counts them and the host's time in them.
#pragma once

#include "replay/replay_device.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// Forwards to `real`. There is one meter in a process: the latest `real` is the one it forwards
/// to, and must outlive its use. Calls that `real` lacks are lacking here. Costs two reads of the
/// clock a call.
[[nodiscard]] const driver::table& meter_driver(const driver::table& real);

/// All calls that went through the meter in this process, and the same by kind.
[[nodiscard]] driver_cost metered_cost();
[[nodiscard]] std::array<call_tally, driver::call_count> metered_tallies();

/// How many nanoseconds a metered call takes beyond those that the meter sees. Measured anew: some
/// microseconds.
[[nodiscard]] double metering_cost();

}}}  // namespace weir::v0::replay
