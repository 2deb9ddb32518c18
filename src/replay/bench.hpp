// Where a replay happens: a device of its own with the script's streams, and a meter on its driver.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "replay/replay.hpp"
#include "weir/device/device.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir::inline v0::replay {

/// What driver calls have cost so far.
struct driver_use {
  std::uint64_t calls = 0;
  std::chrono::nanoseconds time{};

  friend driver_use operator-(driver_use a, driver_use b) {
    return {a.calls - b.calls, a.time - b.time};
  }
  friend driver_use operator+(driver_use a, driver_use b) {
    return {a.calls + b.calls, a.time + b.time};
  }
};

/// Owns the machine and the streams. One thread plays; used() is for that thread.
class bench {
 public:
  [[nodiscard]] static result<std::unique_ptr<bench>> open(const settings& how,
                                                           std::size_t streams);

  [[nodiscard]] device gpu() const { return gpu_.front(); }
  [[nodiscard]] const std::vector<stream_ref>& streams() const noexcept { return references_; }
  [[nodiscard]] driver_use used() const;
  /// The driver without the meter, for calls that are not the policy's.
  [[nodiscard]] const driver::table& unmetered() const noexcept { return *unmetered_; }
  /// What time it is in the recording. Costs nothing until the driver is called.
  void now(std::uint64_t nanoseconds) noexcept { now_ = std::chrono::nanoseconds{nanoseconds}; }

 private:
  bench() = default;
  result<void> open_simulated(const settings& how);
  result<void> open_real(const settings& how);

  std::shared_ptr<sim::machine> machine_;  // null on a real device
  std::shared_ptr<runtime> runtime_;
  const driver::table* unmetered_ = nullptr;
  std::chrono::nanoseconds now_{};
  std::vector<device> gpu_;  // one; a device has no empty state
  std::vector<stream> streams_;
  std::vector<stream_ref> references_;
};

}  // namespace weir::inline v0::replay
