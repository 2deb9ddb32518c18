// Text of files and of other processes, on its way to a terminal.
#pragma once

#include <string>
#include <string_view>

namespace weir::command {

/// The text with a question mark for every control character, so that it cannot move the cursor or
/// change the terminal. UTF-8 stays, but for the control characters among it (U+0080 to U+009F).
[[nodiscard]] inline std::string printable(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    const bool is_long = byte == 0xc2 && next >= 0x80 && next <= 0x9f;
    if (is_long) ++i;
    safe += is_long || byte < 0x20 || byte == 0x7f ? '?' : text[i];
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
