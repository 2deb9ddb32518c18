// SPDX-License-Identifier: Apache-2.0
// What simulated device work takes, at the rates of an H200.
#pragma once

#include <cstdint>

#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim { namespace costs {

/// Anything that only has to be noticed by the device. An estimate.
inline constexpr duration small_operation{2'000};

/// Bytes a nanosecond. Measured: 55 GB/s over the bus, 2.15 TB/s copied on the device. Filling
/// writes without reading; its rate is an estimate.
inline constexpr double bus_rate = 55;
inline constexpr double copy_rate = 2'150;
inline constexpr double fill_rate = 4'000;

[[nodiscard]] inline duration moving(std::uint64_t size, double rate) {
  return small_operation + duration{static_cast<std::int64_t>(static_cast<double>(size) / rate)};
}

}}}}  // namespace weir::v0::sim::costs
