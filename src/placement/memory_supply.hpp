// SPDX-License-Identifier: Apache-2.0
// What the driver can still give, found out before any memory is created.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// So much may be planned and created without asking first whether the driver has it: a plan of
/// this size costs less than the question.
constexpr std::uint64_t planned_without_question = std::uint64_t{64} << 20;

/// Tells a request that cannot be met from one that can, without creating memory piece by piece
/// until the driver refuses: that would take all memory of the device from other processes for as
/// long as it lasts.
///
/// More than the device has beside what is held cannot be had, whoever else holds memory. Within
/// that the driver reports how much is free. Where that is less than needed, one handle of the
/// whole size is tried: for it the driver also gives up what its own pools cache. What was refused
/// is not tried again by the same request. Owned by the placement_context; needs the heap's lock.
class memory_supply {
 public:
  explicit memory_supply(weir::device device) noexcept
      : memory_supply{device, device.total_memory().count()} {}
  /// For tests: a device of another size.
  memory_supply(weir::device device, std::uint64_t total) noexcept
      : device_{device}, total_{total} {}

  /// A request begins to look for memory, or memory went back to the driver: what was known before
  /// may be wrong by now.
  void forget() noexcept { free_ = refused_ = {}; }
  /// Whether the driver can give that much, in handles of any size. At most two driver calls (7 us
  /// on an H200, and a few ms where the driver refuses).
  [[nodiscard]] result<bool> can_give(std::uint64_t needed, const physical_properties& properties,
                                      const context_scope& bound);
  /// The same without a driver call, for memory that is taken by one: whether it is known that the
  /// driver cannot give that much, and that it refused.
  [[nodiscard]] bool cannot_give(std::uint64_t size) const noexcept {
    return size > total_ - std::min(total_, held_) || (refused_ && size >= *refused_);
  }
  void refused(std::uint64_t size) noexcept { refused_ = size; }
  /// Memory of the device was created or released; the next question takes that into account.
  void created(std::uint64_t size) noexcept;
  void released(std::uint64_t size) noexcept;
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

 private:
  weir::device device_;
  std::uint64_t total_;
  std::uint64_t held_ = 0;  // of the device's memory, by the stores of one heap
  // Known of the request under way:
  std::optional<std::uint64_t> free_;     // what the driver has
  std::optional<std::uint64_t> refused_;  // the least that it refused
};

}}}  // namespace weir::v0::placement
