// SPDX-License-Identifier: Apache-2.0
// Making text of files and of other processes safe for a terminal.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "formats/utf8.hpp"

namespace weir::command {

/// Whether a letter of UTF-8 makes those around it appear in another order (U+202A to U+202E,
/// U+2066 to U+2069).
[[nodiscard]] inline bool changes_order(std::string_view letter) {
  const auto is_between = [letter](std::string_view first, std::string_view last) {
    return letter.size() == first.size() && first <= letter && letter <= last;
  };
  return is_between("\xe2\x80\xaa", "\xe2\x80\xae") || is_between("\xe2\x81\xa6", "\xe2\x81\xa9");
}

/// The text with a question mark for every control character, so that it cannot move the cursor,
/// change the terminal or show text in another order. UTF-8 stays, but for the control characters
/// among it (U+0080 to U+009F), which a terminal may also take as single bytes where they are not
/// part of a letter.
[[nodiscard]] inline std::string printable(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = std::max<std::size_t>(formats::utf8_length(text), 1);
    const std::string_view letter = text.substr(0, length);
    text.remove_prefix(length);
    const auto first = static_cast<unsigned char>(letter[0]);
    const auto last = static_cast<unsigned char>(letter.back());
    const bool is_control = length == 1 ? first < 0x20 || (first >= 0x7f && first <= 0x9f)
                                        : first == 0xc2 && last <= 0x9f;
    if (is_control || changes_order(letter)) {
      safe += '?';
    } else {
      safe += letter;
    }
  }
  return safe;
}

/// The same of several lines.
[[nodiscard]] inline std::string printable_lines(std::string_view text) {
  std::string safe;
  for (;;) {
    const auto end = text.find('\n');
    safe += printable(text.substr(0, end));
    if (end == text.npos) return safe;
    safe += '\n';
    text.remove_prefix(end + 1);
  }
}

}  // namespace weir::command
