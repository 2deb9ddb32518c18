// SPDX-License-Identifier: Apache-2.0
// The reserved memory and the live blocks of a recording, after each of its events.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/two_step_frees.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// Whether an event of that kind is anywhere in the recording. Reads all its events.
[[nodiscard]] bool has_events(const recording& recording, trace_kind kind);

/// Follows the events of a recording one by one, from the first on. Its addresses do not overlap:
/// where those of the recording only tell blocks apart, each block gets one of its own. One thread.
///
/// A block always lies in reserved memory. Where the recording has reservations but not the one
/// under a block, which came before it began, that memory appears with the first block that lies
/// there. Where it has none, memory comes and goes with each block. A block that a later one
/// overlaps has ended: its free was not recorded. A block that was suspended before the recording
/// began has no memory until it is resumed: the recording begins with the block, and says of its
/// pool that it is suspended, without a reservation of it and without a release.
class memory_map {
 public:
  struct block {
    std::uint64_t size = 0;     ///< asked for
    std::uint64_t rounded = 0;  ///< the block's own size
    std::uint32_t stream = 0;
    std::uint32_t stack = 0;  ///< plus one
    bool pending = false;     ///< freed, not yet reusable
  };
  /// Memory that was reserved or released.
  struct change {
    bool reserved = false;
    std::uint64_t address = 0;
    std::uint64_t size = 0;
  };

  explicit memory_map(const recording& recording);

  /// Updates the map; returns the event with its address in the map.
  trace_event apply(const trace_event& event);
  /// The changes of the last event; each piece was not, or was, reserved before. An
  /// allocation's changes come before it, all others after.
  [[nodiscard]] const std::vector<change>& changes() const noexcept { return changes_; }
  /// By address.
  [[nodiscard]] const std::map<std::uint64_t, block>& blocks() const noexcept { return blocks_; }
  /// Begin and end of what is reserved, merged where it touches.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& reserved() const noexcept {
    return reserved_;
  }
  /// Whether the address is reserved. That of a live block is not while the block is suspended.
  [[nodiscard]] bool has_memory(std::uint64_t address) const;
  /// Of the last event, a deallocate: whether a `reusable` follows.
  [[nodiscard]] bool is_pending_free() const noexcept { return frees_.contains(applied_ - 1); }

 private:
  void find_suspended_blocks(const recording& recording);
  void end(std::uint64_t address);
  void end_overlapped(std::uint64_t address, std::uint64_t size);
  void reserve(std::uint64_t address, std::uint64_t size);
  void release(std::uint64_t address, std::uint64_t size);

  bool has_addresses_;
  two_step_frees frees_;
  std::size_t applied_ = 0;  // events
  bool has_reserved_ = false;
  std::unordered_set<std::size_t> without_memory_;       // allocations, by event
  std::uint64_t next_address_ = std::uint64_t{1} << 40;  // made-up ones
  std::unordered_map<std::uint64_t, std::uint64_t> addresses_;
  std::map<std::uint64_t, block> blocks_;
  std::map<std::uint64_t, std::uint64_t> reserved_;
  std::vector<change> changes_;
};

}}}  // namespace weir::v0::formats
