// SPDX-License-Identifier: Apache-2.0
// .weirtrace files: recordings on disk. docs/trace-format.md describes every byte.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 {

/// Limits for reading a trace; a file that declares more is refused before memory is allocated.
struct trace_limits {
  std::uint64_t events = std::uint64_t{256} << 20;  ///< the most events
  std::uint64_t bytes = std::uint64_t{8} << 30;     ///< the most bytes of all frames, uncompressed
  /// Events, and names, for each byte of the file, beyond the first four million. Recordings of
  /// programs have about one. Without this bound, a compressed file of a few KiB could ask for
  /// gigabytes of memory.
  std::uint64_t records_per_byte = 128;

  /// The most events, and the most names, that a file of this many bytes is believed to have.
  [[nodiscard]] constexpr std::uint64_t most_records(std::uint64_t file_bytes) const noexcept {
    constexpr std::uint64_t always = std::uint64_t{4} << 20;
    constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
    if (records_per_byte != 0 && file_bytes > (all - always) / records_per_byte) return all;
    return always + file_bytes * records_per_byte;
  }
};

/// Whether the bytes start like a .weirtrace file.
[[nodiscard]] WEIR_API bool is_trace(std::string_view bytes) noexcept;

/// Reads a whole file. If it is incomplete or damaged, everything before the damage is returned,
/// and recording::damage says where and why.
///
/// not_found: the file does not exist; invalid_argument: it is not a .weirtrace file; bad_version:
/// a later weir wrote it; not_supported: it is compressed and this machine has no libzstd.so.1;
/// limit_exceeded: more than `limits` allow; system: it cannot be read.
[[nodiscard]] WEIR_API result<recording> read_trace(const std::string& path,
                                                    const trace_limits& limits = {});
/// The same for bytes in memory.
[[nodiscard]] WEIR_API result<recording> read_trace_from(std::string_view bytes,
                                                         const trace_limits& limits = {});

/// The choices of write_trace().
struct trace_write_options {
  /// zstd's level, 1 to 19; 0 stores without compression, which is also done if libzstd.so.1 is
  /// missing.
  int level = 19;
};

/// Writes a recording, without its `damage`. The complete file replaces an existing one; after a
/// failure the existing file is unchanged.
///
/// invalid_argument: the recording violates the rules of weir::recording; the detail names the
/// event. system: the file cannot be written, e.g. because the disk is full.
[[nodiscard]] WEIR_API result<void> write_trace(const recording& recording, const std::string& path,
                                                const trace_write_options& options = {});

}}  // namespace weir::v0
