// SPDX-License-Identifier: Apache-2.0
// Snapshots of an allocator: every block with its state, and the report of a failed request. Plain
// values that do not refer to the allocator.
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

/// What a piece of the address space is used for.
enum class block_state : std::uint8_t {
  live,           ///< allocated and not freed
  thread_cached,  ///< freed, kept by a thread for its next request of this size and stream
  pending,        ///< freed, but a recorded stream may still use it
  stream_bound,   ///< free for the stream that used it last; for others when it is quiescent
  free,           ///< quiescent: free for every stream
  hole,           ///< addresses without memory of their own
};

/// "live", "thread_cached", …
[[nodiscard]] WEIR_API std::string_view name(block_state state) noexcept;
/// The same as name().
[[nodiscard]] inline std::string to_string(block_state state) { return std::string{name(state)}; }

/// A piece of the address space, as it was when the snapshot was taken.
struct block_info {
  device_address address = 0;  ///< the first byte
  bytes size{};                ///< rounded
  bytes requested{};           ///< only of live blocks
  block_state state{};         ///< whether it is live, free or without memory
  stream_id stream{};          ///< of the allocation, or the one that a free block is bound to
  weir::tag tag{};             ///< only of live blocks
  pool_id pool{};              ///< 0: the allocator's own
  /// Only of pending blocks: the recorded streams with incomplete work on it.
  std::vector<stream_id> waits_for{};
  /// Only of live blocks: the further streams that record_stream() named, of this device.
  std::vector<stream_id> recorded{};
  bool suspended = false;  ///< its pool is suspended: the address has no memory until resume()
};

/// "0x7f0000000000: 2 MiB live on stream 7", with ", suspended" where it is.
[[nodiscard]] WEIR_API std::string to_string(const block_info& block);

/// A handle or segment of physical memory and where it is mapped now.
struct physical_info {
  device_address address = 0;  ///< where it is mapped
  bytes size{};                ///< of the handle or segment
  /// Of a segment of the classic policies: counts from 1, in the order in which the pool took them.
  /// 0 for handles, which can move.
  std::uint32_t number = 0;
};

/// The physical memory under a block.
struct block_handles {
  std::vector<vmm::physical> handles;  ///< in the order of their addresses
  bytes offset{};                      ///< of the block's start in the first handle
};

/// One pool of an allocator: its counters, blocks and physical memory.
struct pool_snapshot {
  pool_id id{};                         ///< 0: the allocator's default pool
  std::string name;                     ///< empty for the default pool
  memory_stats stats;                   ///< of this pool
  std::vector<block_info> blocks;       ///< by address, without gaps inside a segment or arena
  std::vector<physical_info> physical;  ///< by address
  /// Of a suspended pool: where the returned memory was mapped, by address.
  std::vector<physical_info> suspended;
  /// Each entry of `physical` is a segment: no block spans two of them, even if they are adjacent.
  bool in_segments = false;
};

/// A consistent snapshot of everything an allocator holds.
struct allocator_snapshot {
  device_id device{};                ///< the allocator's device
  memory_stats stats;                ///< of the whole allocator
  std::vector<pool_snapshot> pools;  ///< the default pool first
};

/// The counters of one tag.
struct tag_stats {
  weir::tag tag{};     ///< which tag
  memory_stats stats;  ///< its counters
};

/// The report of a failed request: where the memory is, and what would make the request fit.
struct memory_report {
  bytes requested{};            ///< the size of the request
  stream_id stream{};           ///< the stream of the request
  weir::tag tag{};              ///< the tag of the request
  bytes tag_limit{};            ///< the limit of the tag; bytes::max() without one
  bytes limit{};                ///< of the allocator; bytes::max() without one
  bytes device_free{};          ///< as the driver reports it, 0 if it did not answer
  bytes device_total{};         ///< the device's memory
  memory_stats stats;           ///< of the allocator
  std::vector<tag_stats> tags;  ///< tags with live memory, most bytes first
  /// Live blocks of one size.
  struct size_group {
    bytes size{};              ///< of each block, rounded
    std::uint64_t blocks = 0;  ///< how many
  };
  std::vector<size_group> largest;  ///< live blocks by size, most bytes first, at most 8
  /// The memory that one stream holds.
  struct stream_share {
    stream_id stream{};  ///< which stream
    bytes size{};        ///< how much
  };
  std::vector<stream_share> bound;    ///< free memory bound to streams, most first
  std::vector<stream_share> awaited;  ///< pending memory by the stream it waits for, most first
  bytes largest_free{};               ///< the longest contiguous piece free for this stream
  bytes fragments{};                  ///< free, but in pieces smaller than a handle
  bytes other_pools{};                ///< cached by private pools of this allocator
  bytes elsewhere{};                  ///< used on the device outside this allocator
  std::string advice;                 ///< the obstacle, and what would make the request fit

  /// The report as text, a few lines.
  [[nodiscard]] WEIR_API std::string text() const;
};

/// The same as report.text().
[[nodiscard]] inline std::string to_string(const memory_report& report) { return report.text(); }

}}  // namespace weir::v0
