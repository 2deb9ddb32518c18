// What is said about managed memory: where it should be, who may use it, what was advised.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weir/base/ids.hpp"
#include "weir/device/device.hpp"

namespace weir::inline v0 {

/// Where managed memory can be: on a device, on the host, or on one node of the host's memory.
class managed_place {
 public:
  managed_place(weir::device where) noexcept : managed_place{where.id()} {}
  explicit constexpr managed_place(device_id where) noexcept
      : kind_{kind::device}, number_{where.number()} {}
  [[nodiscard]] static constexpr managed_place host() noexcept { return {kind::host, 0}; }
  /// not_supported, where it is used: the driver is older than CUDA 12.2.
  [[nodiscard]] static constexpr managed_place host_node(int number) noexcept {
    return {kind::host_node, number};
  }

  [[nodiscard]] constexpr bool is_device() const noexcept { return kind_ == kind::device; }
  [[nodiscard]] constexpr bool is_host() const noexcept { return kind_ == kind::host; }
  [[nodiscard]] constexpr bool is_host_node() const noexcept { return kind_ == kind::host_node; }
  /// Of the device or the node.
  [[nodiscard]] constexpr int number() const noexcept { return number_; }
  friend constexpr bool operator==(managed_place, managed_place) noexcept = default;

 private:
  enum class kind : std::uint8_t { host, host_node, device };
  constexpr managed_place(kind which, int number) noexcept : kind_{which}, number_{number} {}

  kind kind_;
  int number_;
};

/// Who may use managed memory. It decides on devices without concurrent managed access only; others
/// take it for a hint.
enum class attachment : std::uint8_t {
  global,  ///< every stream; the host only while the whole device rests
  host,    ///< the host at any time, and no device
  single,  ///< one stream; the host while that stream rests
};

/// What the driver knows of a range of managed memory. Where its pages differ, nothing is said. It
/// does not tell where pages are now: only where they were sent last.
struct managed_range_info {
  bool read_mostly = false;
  std::optional<managed_place> preferred;
  std::vector<managed_place> accessed_by;
  std::optional<managed_place> last_prefetch;

  friend bool operator==(const managed_range_info&, const managed_range_info&) = default;
};

}  // namespace weir::inline v0
