// SPDX-License-Identifier: Apache-2.0
// Looking at an arena: figures, snapshot, and the check of everything that must be true.
#pragma once

#include <cstdint>
#include <string>

#include "placement/arena_core.hpp"
#include "weir/allocator/snapshot.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Answers questions about the records of an arena, and changes nothing.
///
/// Owned by an arena, under the heap's lock. Walks over all blocks, except handles_under().
class arena_inspector {
 public:
  arena_inspector(const arena_core& core, const arena_host& host) noexcept
      : core_{core}, host_{host} {}

  /// Free bytes under handles that are not wholly free, of an arena that is not suspended.
  [[nodiscard]] std::uint64_t fragments() const noexcept;
  /// Blocks and handles by address.
  void describe(pool_snapshot& into, bool suspended) const;
  /// The handles under a block that was handed out. not_supported: they cannot be exported.
  [[nodiscard]] result<block_handles> handles_under(block_index index) const;
  /// What contradicts itself, a line for each; empty if nothing. For tests.
  [[nodiscard]] std::string check(bool suspended) const;

 private:
  const arena_core& core_;
  const arena_host& host_;
};

}}}  // namespace weir::v0::placement
