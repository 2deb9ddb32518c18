// SPDX-License-Identifier: Apache-2.0
// The device of a replay: simulated or real, with the script's streams and a meter on its driver.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "replay/replay.hpp"
#include "weir/device/device.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// What driver calls have cost so far.
struct driver_cost {
  std::uint64_t calls = 0;
  std::chrono::nanoseconds time{};

  friend driver_cost operator-(driver_cost a, driver_cost b) {
    return {a.calls - b.calls, a.time - b.time};
  }
  friend driver_cost operator+(driver_cost a, driver_cost b) {
    return {a.calls + b.calls, a.time + b.time};
  }
};

/// Owns the machine and the streams. One thread at a time; cost() is that of all threads.
class replay_device {
 public:
  [[nodiscard]] static result<std::unique_ptr<replay_device>> open(const settings& settings,
                                                                   std::size_t streams);

  [[nodiscard]] device gpu() const { return gpu_.front(); }
  [[nodiscard]] const std::vector<stream_ref>& streams() const noexcept { return references_; }
  [[nodiscard]] driver_cost cost() const;
  /// The same by kind of call.
  [[nodiscard]] std::array<call_tally, driver::call_count> tallies() const;
  /// The driver without the meter, for calls that are not the policy's.
  [[nodiscard]] const driver::table& unmetered() const noexcept { return *unmetered_; }
  /// The time in the recording, in nanoseconds. Costs nothing until the driver is called.
  void set_time(std::uint64_t nanoseconds) noexcept {
    time_ = std::chrono::nanoseconds{nanoseconds};
  }

 private:
  replay_device() = default;
  result<void> open_simulated(const settings& settings);
  result<void> open_real(const settings& settings);

  std::shared_ptr<sim::machine> machine_;  // null on a real device
  std::shared_ptr<runtime> runtime_;
  const driver::table* unmetered_ = nullptr;
  std::chrono::nanoseconds time_{};
  std::vector<device> gpu_;  // one; a device has no empty state
  std::vector<stream> streams_;
  std::vector<stream_ref> references_;
};

}}}  // namespace weir::v0::replay
