// SPDX-License-Identifier: Apache-2.0
// What is told of pointers that were not to be freed, and of memory that was: one place for the
// words of allocators, pools and resources.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/base/ids.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace observe {

/// What is known of a block when something is wrong with it. What is not known is 0.
struct accused_block {
  std::uint64_t address = 0;
  bytes size{};
  weir::tag tag{};
  stream_id stream{};
  /// Further lines, each begun by a line's end: how the block came to be.
  std::string life{};
};

/// "0x7f0000000000, 2 MiB, tag "weights", stream 7".
[[nodiscard]] std::string words_of(const accused_block& block);

/// "5 bytes behind", "1 byte before" or "16 bytes into": where the address lies with regard to a
/// block. The first byte that is no block's any more is 1 byte behind it.
[[nodiscard]] std::string position_of(std::uint64_t address, const accused_block& block);

/// Bytes around a block, or of a freed one, that somebody wrote.
struct damaged_block {
  accused_block block{};
  std::uint64_t first = 0;  // addresses
  std::uint64_t last = 0;
  std::uint64_t count = 0;  // of such bytes between the two
  std::uint8_t expected = 0;
  std::span<const std::uint8_t> seen{};  // what stands there now, from the first on
  bool after_free = false;
};

// Without host memory these leave the details out.

/// memory_damaged.
[[nodiscard]] error damaged(const damaged_block& about) noexcept;

[[nodiscard]] error double_free(const accused_block& block) noexcept;
/// The address lies in memory that is free, which `freed` describes.
[[nodiscard]] error double_free(std::uint64_t address, const accused_block& freed) noexcept;
/// `owner` is "allocator", "pool", "resource".
[[nodiscard]] error foreign_pointer(std::uint64_t address, std::string_view owner) noexcept;
/// The address lies in a live block, but is not its start; or beside a block.
[[nodiscard]] error foreign_pointer(std::uint64_t address, const accused_block& block) noexcept;
/// still_live, with the eight largest of `blocks`. `what` says who ended: "an allocator was
/// closed".
[[nodiscard]] error leak(std::string_view what, std::uint64_t count, bytes size,
                         std::vector<accused_block> blocks) noexcept;

}}}  // namespace weir::v0::observe
