// What is reserved and live when a recording ends.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "weir/trace.hpp"

namespace weir::inline v0::formats {

/// A recording with places that do not overlap: where addresses only tell blocks apart, each block
/// gets one of its own. Follows the events one by one. One thread.
class memory_map {
 public:
  struct block {
    std::uint64_t size = 0;     ///< asked for
    std::uint64_t rounded = 0;  ///< what it takes
    std::uint32_t stream = 0;
    std::uint32_t stack = 0;  ///< plus one
    bool pending = false;     ///< freed, not yet reusable
  };

  explicit memory_map(const recording& of) noexcept;

  /// Takes the event in; returns it with its place.
  trace_event take(const trace_event& what);
  /// By address.
  [[nodiscard]] const std::map<std::uint64_t, block>& blocks() const noexcept { return blocks_; }
  /// Begin and end of what is reserved, merged where it touches; made of the blocks where the
  /// recording does not say.
  [[nodiscard]] std::map<std::uint64_t, std::uint64_t> reserved() const;
  /// Whether frees are told in two steps.
  [[nodiscard]] bool tells_reusable() const noexcept { return tells_reusable_; }

 private:
  void reserve(std::uint64_t address, std::uint64_t size);
  void release(std::uint64_t address, std::uint64_t size);

  bool real_;
  bool tells_reusable_ = false;
  std::uint64_t next_ = std::uint64_t{1} << 40;  // made-up places
  std::unordered_map<std::uint64_t, std::uint64_t> places_;
  std::map<std::uint64_t, block> blocks_;
  std::map<std::uint64_t, std::uint64_t> reserved_;
};

}  // namespace weir::inline v0::formats
