// SPDX-License-Identifier: Apache-2.0
// Events as bytes, column by column, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// The blocks of a trace so far, numbered in the order of their allocation. Encoder and decoder
/// each keep one; they agree at every event, so that a free is written as a number.
///
/// Also checks a recording's invariants: an event that cannot be is refused.
class known_blocks {
 public:
  struct block {
    std::uint64_t number = 0;
    std::uint64_t size = 0;
    std::uint32_t stream = 0;
    bool live = false;
    bool pending = false;  ///< freed, and not yet said to be reusable
  };

  /// How many were allocated; the next gets this number.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// The last block at that address, live or not; null if there was none.
  [[nodiscard]] const block* find(std::uint64_t address) const;
  /// Updates the blocks with the event. Returns what is wrong with it; null if nothing.
  [[nodiscard]] const char* apply(const trace_event& event);

 private:
  std::unordered_map<std::uint64_t, block> blocks_;  // by address, so it stops growing
  std::uint64_t count_ = 0;
  std::uint64_t live_bytes_ = 0;
};

/// How many entries each table of a recording has: what numbers in events may refer to.
struct table_sizes {
  std::uint64_t tags = 1;
  std::uint64_t pools = 1;
  std::uint64_t streams = 0;
  std::uint64_t threads = 0;
  std::uint64_t texts = 0;
  std::uint64_t stacks = 0;

  [[nodiscard]] static table_sizes of(const recording& recording) noexcept;
  /// What is wrong with the event's numbers; null if nothing.
  [[nodiscard]] const char* check(const trace_event& event) const noexcept;
};

/// Writes events frame by frame. One thread.
class event_encoder {
 public:
  /// The content of a frame with these events, at most most_records. What is wrong with an event
  /// goes to `problem`; the encoder is of no use then.
  [[nodiscard]] std::string encode(std::span<const trace_event> events, const table_sizes& tables,
                                   std::string& problem);

 private:
  known_blocks blocks_;
  std::uint64_t last_time_ = 0;
  std::uint64_t encoded_ = 0;
};

/// Reads them back in the same order. One thread.
class event_decoder {
 public:
  /// Appends the frame's events to `out`, all or none. Returns what is wrong; null if nothing,
  /// otherwise the decoder is of no use any more.
  [[nodiscard]] const char* decode(std::string_view content, std::uint32_t count,
                                   const table_sizes& tables, std::vector<trace_event>& out);

 private:
  [[nodiscard]] const char* resolve(std::span<trace_event> events, const table_sizes& tables,
                                    std::uint64_t unit);

  known_blocks blocks_;
  std::vector<std::uint64_t> addresses_;  // by the block's number
  std::uint64_t last_time_ = 0;
};

}}}  // namespace weir::v0::trace
