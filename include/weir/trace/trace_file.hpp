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

/// What reading a trace may cost at most; a file that claims more is refused before memory is
/// taken.
struct trace_limits {
  std::uint64_t events = std::uint64_t{256} << 20;
  std::uint64_t bytes = std::uint64_t{8} << 30;  ///< of the file's frames, uncompressed
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

/// Whether these bytes begin as a .weirtrace does.
[[nodiscard]] WEIR_API bool is_trace(std::string_view bytes) noexcept;

/// Reads a whole file. What is cut or damaged gives everything before the damage, and
/// recording::damage says where and why.
///
/// not_found: no such file; invalid_argument: no .weirtrace; bad_version: of a later weir;
/// not_supported: it is compressed and this machine has no libzstd.so.1; limit_exceeded: more than
/// `limits` allows; system: it cannot be read.
[[nodiscard]] WEIR_API result<recording> read_trace(const std::string& path,
                                                    const trace_limits& limits = {});
/// The same of bytes in memory.
[[nodiscard]] WEIR_API result<recording> read_trace_from(std::string_view bytes,
                                                         const trace_limits& limits = {});

struct trace_write_options {
  /// zstd's level, 1 to 19; 0 stores without compression, as is done where there is no
  /// libzstd.so.1.
  int level = 19;
};

/// Writes a recording; its `damage` is not kept. The file appears under its name when it is whole,
/// and replaces one that was there; if anything fails, what was there stays.
///
/// invalid_argument: the recording breaks its own rules (see weir::recording), the detail names the
/// event; system: the file cannot be written, e.g. because the disk is full.
[[nodiscard]] WEIR_API result<void> write_trace(const recording& recording, const std::string& path,
                                                const trace_write_options& options = {});

}}  // namespace weir::v0
