// Words of the command line: ranges as people write and read them, and what was meant.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

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

/// The first word of the command line that is no command and no option of the one that is chosen,
/// with the nearest that is: `"repaly" is no command; did you mean "replay"?`. Empty: all are.
[[nodiscard]] std::string correction(const CLI::App& application, int argc,
                                     const char* const* argv);

}  // namespace weir::command
