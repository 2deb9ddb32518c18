// SPDX-License-Identifier: Apache-2.0
// Recordings: what happened to a program's memory, read from a file or made by a recorder.
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

enum class trace_kind : std::uint8_t {
  allocate = 1,  ///< address, size, rounded in `extra`, stream, stack in `other`
  deallocate,    ///< address, size, stream of the free, stack in `other`
  reusable,      ///< address: other allocators could use the block from here on; only imported ones
  record_stream,  ///< address, stream
  wait,           ///< `stream` waits for what is queued on stream `other`
  reserve,        ///< address, size: physical memory appeared there
  move,           ///< size bytes of physical memory went from `extra` to address
  release,        ///< address, size: physical memory went back to the driver
  out_of_memory,  ///< size, stream: could not be had
  capture_begin,  ///< stream, pool
  capture_end,    ///< stream, pool
  pool_created,   ///< pool
  pool_released,  ///< pool
  limit,          ///< size: the allocator's limit from here on, or the tag's
  marker,         ///< what the user wrote; text in `other`
  suspended,      ///< pool, tag, size: live blocks without memory; contents kept in `extra`
  resumed,        ///< the same: they have it again; contents that came back in `extra`
};

/// "allocate", "record_stream", …; empty if there is no such kind.
[[nodiscard]] WEIR_API std::string_view name(trace_kind kind) noexcept;
/// The same; "kind 77" if there is no such kind.
[[nodiscard]] WEIR_API std::string to_string(trace_kind kind);

/// One event. Fields that its kind does not mention are 0. Numbers index the tables of the
/// recording.
struct trace_event {
  std::uint64_t time = 0;  ///< nanoseconds since the recording began
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t extra = 0;
  std::uint32_t stream = 0;
  std::uint32_t other = 0;  ///< stream, text or stack by kind; a stack's number plus one, 0 is none
  std::uint16_t thread = 0;
  std::uint16_t tag = 0;
  std::uint16_t pool = 0;
  trace_kind kind{};

  friend bool operator==(const trace_event&, const trace_event&) = default;
};
static_assert(sizeof(trace_event) == 48);

/// The peaks of an allocator's own counters in the same program, to compare with.
struct recorded_peak {
  std::string policy;  ///< "torch-default", "torch-expandable", "balanced", …
  bytes requested{};
  bytes reserved{};

  friend bool operator==(const recorded_peak&, const recorded_peak&) = default;
};

/// Where and why a file could be read no further.
struct trace_damage {
  std::uint64_t offset = 0;  ///< in the file
  std::string reason;
};

/// Everything a trace says.
///
/// Events stand in the order in which the allocator saw them, and times never go back. A block is
/// its address, from its allocate to its deallocate; between them no other block has that address.
/// A deallocate or record_stream whose block was allocated before the recording began is left out
/// by the readers, so every event's block is known.
struct recording {
  std::vector<trace_event> events;
  std::vector<std::string> tags{""};   ///< by trace_event::tag; 0 has no name
  std::vector<std::string> pools{""};  ///< by trace_event::pool; 0 is the allocator's own
  std::vector<std::uint64_t> streams;  ///< by trace_event::stream: the stream's id in the program
  std::vector<std::uint64_t> threads;  ///< by trace_event::thread: the system's id
  std::vector<std::string> texts;      ///< markers
  /// Stacks, innermost frame first, as indices of `frames`; what a stack's number refers to.
  std::vector<std::vector<std::uint32_t>> stacks;
  std::vector<std::string> frames;  ///< "function at file:line", or what is known of it

  std::string program;         ///< what was recorded, for titles
  std::string device;          ///< its name
  bytes device_capacity{};     ///< 0 if unknown
  bool real_addresses = true;  ///< false: addresses only tell blocks apart
  std::uint64_t dropped = 0;   ///< events that a ring had no room for
  std::vector<recorded_peak> peaks;
  std::optional<trace_damage> damage;  ///< the events before it are whole
};

/// "1.500000000 s allocate 0x7f0000000000 size 1000 rounded 1024 stream 1": what is not 0.
[[nodiscard]] WEIR_API std::string to_string(const trace_event& event);
/// "balanced: 3 GiB requested, 4 GiB reserved".
[[nodiscard]] WEIR_API std::string to_string(const recorded_peak& peak);
/// "damaged at byte 4096: a frame's checksum is wrong".
[[nodiscard]] WEIR_API std::string to_string(const trace_damage& damage);
/// One line: the program, how many events, streams and threads, and the damage if there is any.
[[nodiscard]] WEIR_API std::string to_string(const recording& recording);

}}  // namespace weir::v0
