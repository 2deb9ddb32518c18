// SPDX-License-Identifier: Apache-2.0
// weir::runtime: a real or a simulated driver with its devices, behind the same table of calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/error.hpp"
#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/options.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 {

namespace sim {
class machine;
}  // namespace sim

#ifndef NDEBUG
namespace detail {
[[maybe_unused]] static const bool is_marked_as_debug_program = (mark_debug_program(), true);
}  // namespace detail
#endif

/// A description of a runtime for people. Programs must not base decisions on it.
struct runtime_description {
  /// The library that was opened, or "simulated".
  std::string driver;
  int driver_version = 0;  ///< 13000 is CUDA 13.0
  /// Optional calls that this driver lacks.
  std::vector<std::string_view> missing_calls;
  /// Why no real driver is used, if the automatic choice ended in a simulated one.
  std::optional<error> no_real_driver;
};

/// "simulated, CUDA 13.0", what the driver lacks, and why no real driver is used.
[[nodiscard]] WEIR_API std::string to_string(const runtime_description& description);

/// An initialised driver with its devices.
///
/// Devices and their capabilities are queried once, when the runtime is opened, and do not change.
/// Contexts are created when first needed (device.hpp). Shared: every object that owns something of
/// the driver (stream, event, address range, physical handle, mapping, event pool) keeps its
/// runtime alive, so objects can be destroyed in any order. Thread-safe. The retained primary
/// contexts are released with it.
///
/// At the end of the process, and in a forked child, calls return errc::driver_gone; destructors
/// make no driver call and report nothing.
class WEIR_API runtime : public std::enable_shared_from_this<runtime> {
 public:
  /// What the environment asks for, and the initial options for the rest. A variable that cannot be
  /// read is reported once and counts as unset.
  [[nodiscard]] static result<std::shared_ptr<runtime>> open();
  /// The runtime that `settings` choose. Automatic means the real driver if this machine has one
  /// with a device, otherwise a simulated machine. Simulation is chosen only if no usable driver or
  /// no device exists; a driver that fails is an error.
  [[nodiscard]] static result<std::shared_ptr<runtime>> open(const options& settings);
  /// The real driver. no_device: there is a driver but no device.
  [[nodiscard]] static result<std::shared_ptr<runtime>> open_cuda(
      const std::string& path = "libcuda.so.1");
  /// A simulated machine, kept alive by the runtime.
  [[nodiscard]] static result<std::shared_ptr<runtime>> open_simulated(
      std::shared_ptr<sim::machine> machine);
  /// Any other implementation of the table. `name` describes it; `keep_alive` is held as long as
  /// the runtime lives. symbol_missing: a required call is null.
  [[nodiscard]] static result<std::shared_ptr<runtime>> open_table(
      const driver::table& calls, std::string name,
      std::shared_ptr<const void> keep_alive = nullptr);

  ~runtime();
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  /// The number of devices.
  [[nodiscard]] int device_count() const noexcept;
  /// The device with this id. no_device: the id is outside 0 … device_count() - 1.
  [[nodiscard]] result<weir::device> device(device_id id) const;

  /// The table of driver calls.
  [[nodiscard]] const driver::table& driver() const noexcept;
  /// The CUDA version that the driver supports; 13000 is CUDA 13.0.
  [[nodiscard]] int driver_version() const noexcept;
  /// What was opened, for people to read.
  [[nodiscard]] const runtime_description& describe() const noexcept;

 private:
  runtime();

  driver::table calls_;
  runtime_description description_;
  std::vector<std::unique_ptr<detail::device_state>> devices_;
  std::shared_ptr<const void> keep_alive_;
};

}}  // namespace weir::v0
