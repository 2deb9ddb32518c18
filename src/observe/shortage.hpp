// SPDX-License-Identifier: Apache-2.0
// Why a request cannot be met, put into words for exceptions, reports and pages alike.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir { inline namespace v0 { namespace observe {

/// What stands between a request and memory.
enum class obstacle : std::uint8_t {
  none,       ///< it fits
  tag_limit,  ///< the most that its tag may have
  too_large,  ///< no device of that size can hold it
  limit,      ///< the most that the allocator may reserve
  device,     ///< the allocator's own live memory fills the device
  elsewhere,  ///< what others hold on the device
  fragments,  ///< enough is free, but not in one piece, or kept for other streams
  driver,     ///< the driver refused, though it has enough
  unknown,    ///< the figures do not tell
};

/// Another process on the card, as the card's budget knows it. Bytes.
struct neighbour {
  std::string name;
  int process = 0;
  int priority = 0;
  std::uint64_t floor = 0;
  std::uint64_t held = 0;
};

/// A request and the memory of its moment, as a live allocator or a recording knows it. Bytes.
struct shortage {
  static constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t requested = 0;
  std::uint64_t stream = 0;
  std::string_view tag{};  ///< empty: none
  std::uint64_t tag_live = 0;
  std::uint64_t tag_limit = no_limit;
  std::uint64_t live = 0;      ///< in live blocks
  std::uint64_t reserved = 0;  ///< 0: not known
  std::uint64_t free = 0;      ///< of reserved: in no block, and nobody keeps it to himself
  std::uint64_t checks = 0;    ///< of reserved: what heap_debug keeps around blocks
  std::uint64_t longest = 0;   ///< the longest piece of it
  std::uint64_t limit = no_limit;
  bool limit_is_ceiling = false;   ///< it is that of the allocator's share of the card's budget
  std::uint64_t device_total = 0;  ///< 0: not known
  std::optional<std::uint64_t> device_free{};  ///< nothing: not known
  bool failed = false;                         ///< it was tried, and could not be met
  std::vector<neighbour> neighbours{};         ///< empty: not known
};

[[nodiscard]] obstacle obstacle_of(const shortage& about) noexcept;

/// "stream 7, tag "weights"".
[[nodiscard]] std::string place_of(const shortage& about);
/// "trainer (process 7, floor 2 GiB, priority 1) holds 5 GiB, …", who holds the most first.
[[nodiscard]] std::string holders_of(std::vector<neighbour> neighbours);
/// What is in the way, by its name and figures, and what of that can be done would help.
[[nodiscard]] std::string verdict_of(const shortage& about);

}}}  // namespace weir::v0::observe
