// SPDX-License-Identifier: Apache-2.0
// Cutting text into lines and fields, and reading the numbers in them.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace formats {

[[nodiscard]] inline error bad_line(std::string_view name, std::size_t line,
                                    std::string_view reason) {
  return {{.code = errc::invalid_argument,
           .detail = std::string{name} + ":" + std::to_string(line) + ": " + std::string{reason}}};
}

/// All of `text` as a number in that base; empty if it is anything else.
[[nodiscard]] inline std::optional<std::uint64_t> number(std::string_view text, int base = 10) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value, base);
  if (status != std::errc{} || stop != end) return std::nullopt;
  return value;
}

/// The comma-separated fields of a line; empty unless there are exactly Count.
template <std::size_t Count>
[[nodiscard]] std::optional<std::array<std::string_view, Count>> fields(std::string_view line) {
  std::array<std::string_view, Count> parts;
  for (std::size_t i = 0; i < Count; ++i) {
    const auto comma = line.find(',');
    if ((comma == std::string_view::npos) != (i == Count - 1)) return std::nullopt;
    parts[i] = line.substr(0, comma);
    line.remove_prefix(i == Count - 1 ? line.size() : comma + 1);
  }
  return parts;
}

/// Calls `visit(line, number)` for each line, without its end; stops at the first error.
template <class Function>
result<void> for_each_line(std::string_view text, Function visit) {
  for (std::size_t count = 1; !text.empty(); ++count) {
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    WEIR_TRY(visit(line, count));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return {};
}

}}}  // namespace weir::v0::formats
