// SPDX-License-Identifier: Apache-2.0
// recording: the memory events of a program, as read from a trace file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 {

/// What happened; the comments list the fields of trace_event that the kind sets.
enum class trace_kind : std::uint8_t {
  allocate = 1,  ///< address, size, rounded in `extra`, stream, stack in `other`
  deallocate,    ///< address, size, stream of the free, stack in `other`
  reusable,      ///< address: the block is free for reuse from here on; only in imported recordings
  record_stream,  ///< address, stream
  wait,           ///< `stream` waits for the work queued on stream `other`
  reserve,        ///< address, size: physical memory was mapped there
  move,           ///< size bytes of physical memory were remapped from `extra` to address
  release,        ///< address, size: physical memory was returned to the driver
  out_of_memory,  ///< size, stream: the request failed
  capture_begin,  ///< stream, pool
  capture_end,    ///< stream, pool
  pool_created,   ///< pool
  pool_released,  ///< pool
  limit,          ///< size: the new limit of the allocator, or of the tag
  marker,         ///< a remark of the program; text in `other`
  suspended,  ///< pool, tag, size of live blocks that lost their memory; saved contents in `extra`
  resumed,    ///< the same; restored contents in `extra`
};

/// "allocate", "record_stream", …; empty for an unknown kind.
[[nodiscard]] WEIR_API std::string_view name(trace_kind kind) noexcept;
/// The same; "kind 77" for an unknown kind.
[[nodiscard]] WEIR_API std::string to_string(trace_kind kind);

/// One event. Fields that its kind does not set are 0. Streams, threads, tags, pools, texts and
/// stacks are indices of the recording's tables.
struct trace_event {
  std::uint64_t time = 0;     ///< nanoseconds since the start of the recording
  std::uint64_t address = 0;  ///< of the block or of the physical memory
  std::uint64_t size = 0;     ///< in bytes, as requested
  std::uint64_t extra = 0;    ///< by kind: a rounded size, an old address or contents
  std::uint32_t stream = 0;   ///< index of recording::streams
  std::uint32_t other = 0;  ///< stream, text or stack by kind; a stack's number plus one, 0 is none
  std::uint16_t thread = 0;  ///< index of recording::threads
  std::uint16_t tag = 0;     ///< index of recording::tags
  std::uint16_t pool = 0;    ///< index of recording::pools
  trace_kind kind{};         ///< what happened

  friend bool operator==(const trace_event&, const trace_event&) = default;
};
static_assert(sizeof(trace_event) == 48);

/// The peaks that the program's own allocator reported, for comparison.
struct recorded_peak {
  std::string policy;  ///< "torch-default", "torch-expandable", "balanced", …
  bytes requested{};   ///< the peak of requested memory
  bytes reserved{};    ///< the peak of reserved memory

  friend bool operator==(const recorded_peak&, const recorded_peak&) = default;
};

/// Where and why reading a file stopped.
struct trace_damage {
  std::uint64_t offset = 0;  ///< in the file
  std::string reason;        ///< what is wrong there
};

/// The content of a trace.
///
/// Events are in the order in which the allocator saw them; times never decrease. A block is
/// identified by its address, from its allocate to its deallocate; in between no other block has
/// that address. Readers leave out a deallocate or record_stream whose block was allocated before
/// the recording began, so the block of every event is known.
struct recording {
  std::vector<trace_event> events;     ///< in order
  std::vector<std::string> tags{""};   ///< by trace_event::tag; entry 0 has no name
  std::vector<std::string> pools{""};  ///< by trace_event::pool; entry 0 is the default pool
  std::vector<std::uint64_t> streams;  ///< by trace_event::stream: the stream's id in the program
  std::vector<std::uint64_t> threads;  ///< by trace_event::thread: the system's id
  std::vector<std::string> texts;      ///< markers
  /// Call stacks by number, innermost frame first, as indices of `frames`.
  std::vector<std::vector<std::uint32_t>> stacks;
  std::vector<std::string> frames;  ///< "function at file:line", or the known part of it

  std::string program;                 ///< the name of the program, for titles
  std::string device;                  ///< the name of the device
  bytes device_capacity{};             ///< 0 if unknown
  bool real_addresses = true;          ///< false: addresses only identify blocks
  std::uint64_t dropped = 0;           ///< events that were lost because a ring was full
  std::vector<recorded_peak> peaks;    ///< for comparison; may be empty
  std::optional<trace_damage> damage;  ///< the events before it are complete
};

/// "1.500000000 s allocate 0x7f0000000000 size 1000 rounded 1024 stream 1": the fields that are not
/// 0.
[[nodiscard]] WEIR_API std::string to_string(const trace_event& event);
/// "balanced: 3 GiB requested, 4 GiB reserved".
[[nodiscard]] WEIR_API std::string to_string(const recorded_peak& peak);
/// "damaged at byte 4096: a frame's checksum is wrong".
[[nodiscard]] WEIR_API std::string to_string(const trace_damage& damage);
/// One line: the program, the numbers of events, streams and threads, and any damage.
[[nodiscard]] WEIR_API std::string to_string(const recording& recording);

}}  // namespace weir::v0
