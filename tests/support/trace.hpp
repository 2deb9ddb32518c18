// Recorded allocation traces, and what PyTorch reserved for them (tests/data/traces).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/result.hpp"

namespace weir::testing_support {

/// Events of one program in the order in which its allocator saw them.
///
/// Blocks and streams are numbered from 0 without gaps, in the order of their first event. Every
/// block is allocated once and before anything else happens to it; it is freed once and reusable
/// once, in this order, or stays alive.
struct trace {
  enum class event_kind : std::uint8_t {
    allocate,
    free,     ///< the program freed the block
    reusable  ///< its memory could be used again, which is later if another stream used it
  };
  struct event {
    event_kind kind{};
    std::uint32_t stream = 0;
    std::uint32_t block = 0;
    std::uint64_t size = 0;  ///< of the block, as asked for
    std::uint64_t time = 0;  ///< microseconds of host time
  };

  std::vector<event> events;
  std::size_t blocks = 0;
  std::size_t streams = 0;
};

/// not_found: no such file; invalid_argument, with file and line: a line that is no event, or an
/// event that cannot be; system: the file is damaged.
[[nodiscard]] result<trace> read_trace(const std::string& path);
/// The same of text that was read already; `name` is for messages.
[[nodiscard]] result<trace> parse_trace(std::string_view text, std::string_view name);

/// What PyTorch's own counters said, a row a trace. Bytes.
struct trace_peaks {
  std::string name;
  std::uint64_t streams = 0;
  std::uint64_t allocations = 0;
  std::uint64_t requested = 0;
  std::uint64_t active = 0;
  std::uint64_t fixed_reserved = 0;  ///< with its default segments
  std::uint64_t expandable_requested = 0;
  std::uint64_t expandable_reserved = 0;
};

[[nodiscard]] result<std::vector<trace_peaks>> read_trace_peaks(const std::string& path);
[[nodiscard]] result<std::vector<trace_peaks>> parse_trace_peaks(std::string_view text,
                                                                 std::string_view name);

/// A file of tests/data/traces.
[[nodiscard]] std::string trace_path(std::string_view file);

}  // namespace weir::testing_support
