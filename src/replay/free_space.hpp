// SPDX-License-Identifier: Apache-2.0
// Where the free bytes of an allocator are, and what pins the handles that they lie in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "replay/script.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/base/ids.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// What keeps a handle in its place. A handle with several of them has the first: the one that
/// probably stays longest.
enum class pin : std::uint8_t {
  long_lived,      ///< a live block that lives for at least half of the recording's steps
  small,           ///< any other live block of up to 1 MiB
  large,           ///< any other live block
  thread_cache,    ///< a freed block that a thread keeps
  unfinished_use,  ///< a freed block that a recorded stream may still use
};
inline constexpr std::size_t pin_count = 5;

/// "long_lived", "small", …
[[nodiscard]] std::string_view name(pin pin) noexcept;

/// Lengths of slivers: up to 4 KiB, 64 KiB, 256 KiB, 1 MiB, 2 MiB, and longer.
inline constexpr std::array<std::uint64_t, 5> sliver_limits{
    std::uint64_t{4} << 10, std::uint64_t{64} << 10, std::uint64_t{256} << 10,
    std::uint64_t{1} << 20, std::uint64_t{2} << 20};
inline constexpr std::size_t sliver_count = sliver_limits.size() + 1;

/// "to_4_kib", …, "longer".
[[nodiscard]] std::string_view sliver_name(std::size_t index) noexcept;

/// Bytes of one kind, and in how many blocks, pieces or handles they are.
struct space_tally {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;

  void add(std::uint64_t more) noexcept {
    bytes += more;
    ++count;
  }
  friend bool operator==(const space_tally&, const space_tally&) = default;
};

/// What the reserved bytes of an allocator are, at one moment. Every byte is counted once:
///
///   reserved = requested + rounding + thread_caches + unfinished_uses + private_pools
///            + headroom + all of `pinned`
///
/// `slivers` are the bytes of `pinned` once more.
struct free_space {
  std::size_t steps = 0;        ///< how many steps of the script came before
  std::uint64_t time = 0;       ///< nanoseconds of the recording
  space_tally reserved;         ///< count: handles, or segments of the classic policies
  space_tally requested;        ///< by live blocks; count: blocks
  space_tally rounding;         ///< of their sizes; count: blocks that were rounded
  space_tally thread_caches;    ///< freed blocks that threads keep
  space_tally unfinished_uses;  ///< freed blocks that recorded streams may still use
  space_tally private_pools;    ///< free in pools, those of captured graphs among them; pieces
  space_tally headroom;         ///< wholly free handles, which can move; count: handles
  /// Free in handles that blocks pin, by what pins them; count: handles.
  std::array<space_tally, pin_count> pinned{};
  /// The same by the length of the pieces that are left when all of the headroom has moved away.
  std::array<space_tally, sliver_count> slivers{};
  /// Of private_pools, headroom and pinned: free for one stream only until work has completed.
  space_tally stream_bound;

  [[nodiscard]] const space_tally& of(pin pin) const noexcept {
    return pinned[static_cast<std::size_t>(pin)];
  }
  friend bool operator==(const free_space&, const free_space&) = default;
};

/// The addresses of the blocks that live for at least half of the script's steps; a block that is
/// never freed lives until the end. `blocks` has the addresses of those that live now, by their
/// numbers in the script; null: not live.
[[nodiscard]] std::unordered_set<device_address> long_lived_blocks(
    const script& script, const std::vector<void*>& blocks);

/// Counts the bytes of a snapshot, all but `steps` and `time`. Walks over all blocks and handles.
[[nodiscard]] free_space survey(const allocator_snapshot& snapshot,
                                const std::unordered_set<device_address>& long_lived);

}}}  // namespace weir::v0::replay
