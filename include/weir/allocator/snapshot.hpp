// SPDX-License-Identifier: Apache-2.0
// What an allocator holds, of one moment: every block with its state, and the report of a request
// that could not be met. Plain values; nothing here points into the allocator.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/print.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 {

enum class block_state : std::uint8_t {
  live,           ///< allocated and not freed
  thread_cached,  ///< freed, kept by a thread for its next request of this size and stream
  pending,        ///< freed, but a recorded stream may still use it
  stream_bound,   ///< free for the stream that used it last; for others once it is quiescent
  free,           ///< quiescent: free for every stream
  hole,           ///< addresses without memory of their own
};

[[nodiscard]] WEIR_API std::string_view name(block_state state) noexcept;
[[nodiscard]] inline std::string to_string(block_state state) { return std::string{name(state)}; }

/// A piece of the address space, as it was when the snapshot was taken.
struct block_info {
  device_address address = 0;
  bytes size{};       ///< rounded
  bytes requested{};  ///< only of live blocks
  block_state state{};
  stream_id stream{};  ///< of the allocation, or the one that a free block is bound to
  weir::tag tag{};     ///< only of live blocks
  pool_id pool{};      ///< 0: the allocator's own
  /// Only of pending blocks: the recorded streams whose work it still waits for.
  std::vector<stream_id> waits_for{};
  /// Only of live blocks: the further streams that record_stream() named, of this device.
  std::vector<stream_id> recorded{};
  bool suspended = false;  ///< its pool is: there is no memory at the address until it is resumed
};

/// "0x7f0000000000: 2 MiB live on stream 7", with ", suspended" where it is.
[[nodiscard]] WEIR_API std::string to_string(const block_info& block);

/// A handle or segment of physical memory and where it is mapped now.
struct physical_info {
  device_address address = 0;
  bytes size{};
  /// Of a segment of the classic policies: from 1, in the order in which its pool took them. 0 of a
  /// handle, which can move.
  std::uint32_t number = 0;
};

/// The physical memory under a block.
struct block_handles {
  std::vector<vmm::physical> handles;  ///< one behind the other
  bytes offset{};                      ///< of the block in the first
};

struct pool_snapshot {
  pool_id id{};
  std::string name;
  memory_stats stats;
  std::vector<block_info> blocks;       ///< by address, without gaps inside a segment or arena
  std::vector<physical_info> physical;  ///< by address
  /// Of a suspended pool: the places of the memory that it gave back, by address.
  std::vector<physical_info> suspended;
  /// Each entry of `physical` is a segment: no block spans two, though they may lie side by side.
  bool in_segments = false;
};

/// Everything an allocator holds, of one moment.
struct allocator_snapshot {
  device_id device{};
  memory_stats stats;
  std::vector<pool_snapshot> pools;  ///< the allocator's own first
};

struct tag_stats {
  weir::tag tag{};
  memory_stats stats;
};

/// Why a request could not be met: where the memory is and what would help.
struct memory_report {
  bytes requested{};
  stream_id stream{};
  weir::tag tag{};      ///< what the request would be counted as
  bytes tag_limit{};    ///< the most that the tag may have; bytes::max() without a limit
  bytes limit{};        ///< bytes::max() without one
  bytes device_free{};  ///< what the driver says is free, 0 if it did not answer
  bytes device_total{};
  memory_stats stats;
  std::vector<tag_stats> tags;  ///< what is live, most first
  struct size_group {
    bytes size{};  ///< rounded
    std::uint64_t blocks = 0;
  };
  std::vector<size_group> largest;  ///< live blocks by size, most bytes first, at most 8
  struct stream_share {
    stream_id stream{};
    bytes size{};
  };
  std::vector<stream_share> bound;    ///< free memory bound to streams, most first
  std::vector<stream_share> awaited;  ///< pending memory by the stream it waits for, most first
  bytes largest_free{};               ///< the longest contiguous piece free for this stream
  bytes fragments{};                  ///< free, but in pieces that no whole handle can leave
  bytes other_pools{};  ///< cached by pools of this allocator that keep it to themselves
  bytes elsewhere{};    ///< taken on the device, but not by this allocator
  std::string advice;   ///< what is in the way, and what would make the request fit

  /// The same in plain words, a few lines.
  [[nodiscard]] WEIR_API std::string text() const;
};

[[nodiscard]] inline std::string to_string(const memory_report& report) { return report.text(); }

}}  // namespace weir::v0
