// SPDX-License-Identifier: Apache-2.0
// What of an arena goes when it is suspended, and what has to come back.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/arena_core.hpp"
#include "placement/suspension.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Plans suspending and resuming, and enters what was carried out into the records
/// (suspension.hpp).
///
/// While an arena is suspended its blocks and handles keep their places; the handles lack their
/// memory. Handles that became wholly free meanwhile do not come back, unless the rules say so
/// (growth_rules::resumes_free): their places become holes when the arena is resumed.
///
/// Owned by an arena, under the heap's lock. Walks over all blocks; planning may throw
/// std::bad_alloc.
class arena_suspender {
 public:
  arena_suspender(arena_core& core, arena_host& host) noexcept : core_{core}, host_{host} {}

  /// All handles at their places, old mappings, and the bytes of live blocks. Live bytes with
  /// little between them are saved together.
  [[nodiscard]] suspension plan_suspend() const;
  /// The handles that come back, at their places. The others are dropped from the records.
  /// no_host_memory: nothing has changed.
  [[nodiscard]] result<suspension> plan_resume();
  /// What a plan says was carried out.
  void apply(const suspension& plan) noexcept;
  /// The memory that plan_resume() would lack.
  [[nodiscard]] std::uint64_t missing_bytes() const noexcept;

 private:
  [[nodiscard]] std::vector<block_index> free_places() const;
  void add_places(suspension& plan) const;

  arena_core& core_;
  arena_host& host_;
};

}}}  // namespace weir::v0::placement
