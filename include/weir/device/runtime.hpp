// SPDX-License-Identifier: Apache-2.0
// The machine that weir works on: a real driver or a simulated one, behind the same table.
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

/// What a runtime says about itself, for people to read. Code must not decide by it.
struct runtime_description {
  /// The library that was opened, or "simulated".
  std::string driver;
  int driver_version = 0;  ///< 13000 is CUDA 13.0
  /// Optional calls this driver does not have.
  std::vector<std::string_view> missing_calls;
  /// Why no real driver is used, where the best available one was asked for and is simulated.
  std::optional<error> no_real_driver;
};

/// "simulated, CUDA 13.0", what the driver lacks, and why no real driver is used.
[[nodiscard]] WEIR_API std::string to_string(const runtime_description& description);

/// A driver with its devices.
///
/// Devices and what they can do are asked once, when the runtime is opened, and do not change. The
/// driver is initialised; contexts are created when first needed (device.hpp). Shared: every object
/// that owns something of the driver (stream, event, address range, physical handle, mapping, event
/// pool) keeps its runtime alive, so no order of destruction is wrong. Any thread may use it. The
/// primary contexts it retained are released with it.
///
/// At the end of the process, and in a forked child, nothing needs to be done: calls return
/// errc::driver_gone, destructors touch no driver and report nothing.
class WEIR_API runtime : public std::enable_shared_from_this<runtime> {
 public:
  /// What the environment asks for, and the initial options for the rest. A variable that cannot be
  /// read is reported once and counts as unset.
  [[nodiscard]] static result<std::shared_ptr<runtime>> open();
  /// What `settings` ask for. Automatic is the best available: the real driver if this machine has
  /// one with a device, else a simulated machine. Only the lack of a usable driver or of a device
  /// leads to simulation; a driver that is there but fails is an error.
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

  [[nodiscard]] int device_count() const noexcept;
  /// no_device: the id is outside 0 … device_count() - 1.
  [[nodiscard]] result<weir::device> device(device_id id) const;

  [[nodiscard]] const driver::table& driver() const noexcept;
  [[nodiscard]] int driver_version() const noexcept;
  [[nodiscard]] const runtime_description& describe() const noexcept;

 private:
  runtime();

  driver::table calls_;
  runtime_description description_;
  std::vector<std::unique_ptr<detail::device_state>> devices_;
  std::shared_ptr<const void> keep_alive_;
};

}}  // namespace weir::v0
