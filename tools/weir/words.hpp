// SPDX-License-Identifier: Apache-2.0
// Words of the command line: ranges as people write and read them, and what was meant.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace weir::command {

/// Refuses what is no number from `least` to `most`, and says so in words.
template <class Number>
[[nodiscard]] CLI::Validator between(Number least, Number most) {
  return CLI::Validator{[least, most](const std::string& text) {
                          Number value{};
                          const bool is_number = CLI::detail::lexical_cast(text, value);
                          if (is_number && least <= value && value <= most) return std::string{};
                          return fmt::format("{} is no number from {} to {}", text, least, most);
                        },
                        ""};
}

/// The same without an upper end.
template <class Number>
[[nodiscard]] CLI::Validator at_least(Number least) {
  return CLI::Validator{[least](const std::string& text) {
                          Number value{};
                          const bool is_number = CLI::detail::lexical_cast(text, value);
                          if (is_number && least <= value) return std::string{};
                          return fmt::format("{} is no number of {} or more", text, least);
                        },
                        ""};
}

/// Refuses what is not a whole number from 0, such as -1, which would wrap.
[[nodiscard]] inline CLI::Validator whole_number() {
  return CLI::Validator{[](const std::string& text) {
                          std::uint64_t value = 0;
                          const char* const end = text.data() + text.size();
                          const auto read = std::from_chars(text.data(), end, value);
                          if (read.ec == std::errc{} && read.ptr == end) return std::string{};
                          return fmt::format("expected a whole number from 0, got {}", text);
                        },
                        ""};
}

/// The first word of the command line that is no command and no option of the one that is chosen,
/// with the nearest that is: `"repaly" is no command; did you mean "replay"?`. Empty: all are.
[[nodiscard]] std::string correction(const CLI::App& application, int argc,
                                     const char* const* argv);

}  // namespace weir::command
