// SPDX-License-Identifier: Apache-2.0
// A recording's tables as bytes, entry by entry, and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// What an entry of a frame of names is. Entries of a table get their numbers in the order in which
/// they come; number 0 of tags and pools has no name and is never written.
enum class name_kind : std::uint8_t {
  tag = 1,
  pool,
  stream,
  thread,
  text,
  frame,
  stack,
  program,
  device,
  device_capacity,
  made_up_addresses,
  dropped,
  peak,
};

/// The content of frames of names under construction. One thread.
class name_encoder {
 public:
  void text(name_kind kind, std::string_view value);  ///< tag, pool, text, frame, program, device
  void number(name_kind kind, std::uint64_t value);   ///< the others but stack and peak
  void stack(const std::vector<std::uint32_t>& frames);
  void peak(const recorded_peak& value);

  [[nodiscard]] bool empty() const noexcept { return entries_ == 0; }
  [[nodiscard]] std::uint32_t entries() const noexcept { return entries_; }
  [[nodiscard]] std::string_view content() const noexcept { return content_; }
  void clear() noexcept;

 private:
  void begin(name_kind kind);

  std::string content_;
  std::uint32_t entries_ = 0;
};

/// Appends a frame of names to the tables. Returns what is wrong with it; null if nothing.
[[nodiscard]] const char* decode_names(std::string_view content, std::uint32_t entries,
                                       recording& recording);

}}}  // namespace weir::v0::trace
