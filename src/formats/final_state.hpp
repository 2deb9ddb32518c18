// What is reserved and live when a recording ends, and what is reserved on the way there.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "weir/trace/trace.hpp"

namespace weir::inline v0::formats {

/// Whether such an event is anywhere in the recording. Walks over it.
[[nodiscard]] bool tells_of(const recording& what, trace_kind kind);

/// A recording with places that do not overlap: where addresses only tell blocks apart, each block
/// gets one of its own. Follows the events one by one. One thread.
///
/// A block always lies in reserved memory. Where the recording tells of reservations but not of the
/// one under a block, which came before it began, that memory appears with the first block that
/// lies there. Where it tells of none, memory comes and goes with each block.
class memory_map {
 public:
  struct block {
    std::uint64_t size = 0;     ///< asked for
    std::uint64_t rounded = 0;  ///< what it takes
    std::uint32_t stream = 0;
    std::uint32_t stack = 0;  ///< plus one
    bool pending = false;     ///< freed, not yet reusable
  };
  /// Memory that was reserved or given back.
  struct change {
    bool reserved = false;
    std::uint64_t address = 0;
    std::uint64_t size = 0;
  };

  explicit memory_map(const recording& of) noexcept;

  /// Takes the event in; returns it with its place.
  trace_event take(const trace_event& what);
  /// What the event that was taken last changed; each piece was not, or was, reserved before. An
  /// allocation's changes come before it, all others after.
  [[nodiscard]] const std::vector<change>& changes() const noexcept { return changes_; }
  /// By address.
  [[nodiscard]] const std::map<std::uint64_t, block>& blocks() const noexcept { return blocks_; }
  /// Begin and end of what is reserved, merged where it touches.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& reserved() const noexcept {
    return reserved_;
  }
  /// Whether frees are told in two steps.
  [[nodiscard]] bool tells_reusable() const noexcept { return tells_reusable_; }

 private:
  void end(std::uint64_t address);
  void reserve(std::uint64_t address, std::uint64_t size);
  void release(std::uint64_t address, std::uint64_t size);

  bool real_;
  bool tells_reusable_ = false;
  bool tells_reserved_ = false;
  std::uint64_t next_ = std::uint64_t{1} << 40;  // made-up places
  std::unordered_map<std::uint64_t, std::uint64_t> places_;
  std::map<std::uint64_t, block> blocks_;
  std::map<std::uint64_t, std::uint64_t> reserved_;
  std::vector<change> changes_;
};

}  // namespace weir::inline v0::formats
