// SPDX-License-Identifier: Apache-2.0
// Properties of managed memory: its placement, its attachment, and the advice given to the driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/device/device.hpp"

namespace weir { inline namespace v0 {

/// Where managed memory can be: on a device, on the host, or on one node of the host's memory.
class managed_place {
 public:
  /// On this device.
  managed_place(weir::device device) noexcept : managed_place{device.id()} {}
  /// On the device with this id.
  explicit constexpr managed_place(device_id device) noexcept
      : kind_{kind::device}, number_{device.number()} {}
  /// On the host, on any node.
  [[nodiscard]] static constexpr managed_place host() noexcept { return {kind::host, 0}; }
  /// On one NUMA node of the host. Calls that use it return not_supported before CUDA 12.2.
  [[nodiscard]] static constexpr managed_place host_node(int number) noexcept {
    return {kind::host_node, number};
  }

  /// Whether it is a device.
  [[nodiscard]] constexpr bool is_device() const noexcept { return kind_ == kind::device; }
  /// Whether it is the host as a whole.
  [[nodiscard]] constexpr bool is_host() const noexcept { return kind_ == kind::host; }
  /// Whether it is one node of the host.
  [[nodiscard]] constexpr bool is_host_node() const noexcept { return kind_ == kind::host_node; }
  /// The number of the device or node; 0 for the whole host.
  [[nodiscard]] constexpr int number() const noexcept { return number_; }
  friend constexpr bool operator==(managed_place, managed_place) noexcept = default;

 private:
  enum class kind : std::uint8_t { host, host_node, device };
  constexpr managed_place(kind place, int number) noexcept : kind_{place}, number_{number} {}

  kind kind_;
  int number_;
};

/// "device 0", "host", "host node 1".
[[nodiscard]] WEIR_API std::string to_string(managed_place place);

/// Who may use managed memory. It is a rule on devices without concurrent managed access; on others
/// it is a hint.
enum class attachment : std::uint8_t {
  global,  ///< every stream; the host only while the whole device is idle
  host,    ///< the host at any time, and no device
  single,  ///< one stream; the host while that stream is idle
};

/// "global", "host", "single".
[[nodiscard]] WEIR_API std::string to_string(attachment mode);

/// The driver's record of a range of managed memory; members are empty if its pages differ. The
/// driver does not report where pages are now, only the last prefetch.
struct managed_range_info {
  bool read_mostly = false;                    ///< advise_read_mostly() is in effect
  std::optional<managed_place> preferred;      ///< the place of advise_preferred()
  std::vector<managed_place> accessed_by;      ///< the places of advise_accessed_by()
  std::optional<managed_place> last_prefetch;  ///< the target of the last prefetch

  friend bool operator==(const managed_range_info&, const managed_range_info&) = default;
};

/// "read_mostly: no, preferred: device 0, accessed_by: host and device 1, last_prefetch: none".
[[nodiscard]] WEIR_API std::string to_string(const managed_range_info& info);

}}  // namespace weir::v0
