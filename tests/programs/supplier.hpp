// SPDX-License-Identifier: Apache-2.0
// What a mixed program allocates blocks from: an allocator or a pool of weir.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "lanes.hpp"
#include "weir/base/result.hpp"

namespace weir::programs_test {

/// Memory that is suspended and resumed as a whole has a number of its own in its supplier.
inline constexpr std::size_t no_group = ~std::size_t{0};

struct supplied_block {
  void* memory = nullptr;
  std::size_t group = no_group;
};

/// One allocator or pool. Blocks must be freed before it is destroyed. One thread at a time.
class supplier {
 public:
  supplier(std::string name, std::size_t device) : name_{std::move(name)}, device_{device} {}
  virtual ~supplier() = default;
  supplier(const supplier&) = delete;
  supplier& operator=(const supplier&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::size_t device() const { return device_; }

  [[nodiscard]] virtual result<supplied_block> allocate(bytes size, const stream_ref& stream) = 0;
  /// On the stream of the allocation if none is given.
  virtual result<void> free(void* memory, const std::optional<stream_ref>& stream) = 0;
  /// Whether the block is allocated still, after a free that failed.
  [[nodiscard]] virtual bool holds(void* memory) const = 0;

  [[nodiscard]] virtual bool frees_without_stream() const { return true; }
  /// Whether memory from outside a capture can be freed on a captured stream of that kind.
  [[nodiscard]] virtual bool frees_in_capture(lane_kind) const { return true; }
  [[nodiscard]] virtual bool records_streams() const { return false; }
  virtual result<void> record_stream(void*, const stream_ref&) { return errc::not_supported; }
  /// Whether kernels of the other device reach the memory.
  [[nodiscard]] virtual bool has_peer() const { return false; }
  /// Whether each mapping of the memory has rights for the other device.
  [[nodiscard]] virtual bool maps_for_peers() const { return false; }
  /// Whether the group's memory can be used by what is queued next; brings it back if it can.
  [[nodiscard]] virtual bool make_resident(std::size_t group) {
    static_cast<void>(group);
    return true;
  }
  /// Errors that a request may return here, besides out_of_memory.
  [[nodiscard]] virtual bool may_refuse(errc code) const {
    static_cast<void>(code);
    return false;
  }

 private:
  std::string name_;
  std::size_t device_;
};

}  // namespace weir::programs_test
