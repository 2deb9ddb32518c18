// SPDX-License-Identifier: Apache-2.0
// Words of the command line: the values that options accept, and corrections of misspelt words.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"

namespace weir::command {

/// Accepts a number from `least` to `most`.
template <class Number>
[[nodiscard]] CLI::Validator between(Number least, Number most) {
  return CLI::Validator{[least, most](const std::string& text) {
                          Number value{};
                          const bool is_number = CLI::detail::lexical_cast(text, value);
                          if (is_number && least <= value && value <= most) return std::string{};
                          return fmt::format("expected a number from {} to {}, got {}", least, most,
                                             text);
                        },
                        ""};
}

/// Accepts a number of at least `least`.
template <class Number>
[[nodiscard]] CLI::Validator at_least(Number least) {
  return CLI::Validator{[least](const std::string& text) {
                          Number value{};
                          const bool is_number = CLI::detail::lexical_cast(text, value);
                          if (is_number && least <= value) return std::string{};
                          return fmt::format("expected a number of at least {}, got {}", least,
                                             text);
                        },
                        ""};
}

/// Accepts a whole number from 0. -1 is refused; it would wrap.
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

/// "table, csv or json".
[[nodiscard]] std::string alternatives(const std::vector<std::string>& words);

/// Accepts one of these words.
[[nodiscard]] CLI::Validator one_of(std::vector<std::string> words);

/// A size that an option names. It needs a unit: 12 instead of 12GiB is a slip, not twelve bytes.
/// 0 is accepted where `is_zero_allowed`. The error names the option and what it accepts.
[[nodiscard]] result<bytes> size_argument(std::string_view option, const std::string& text,
                                          bool is_zero_allowed = false);

/// The first word of the command line that is neither a command nor an option of the chosen
/// command, with the nearest known word: `unknown command "repaly"; did you mean "replay"?`.
/// Empty if all words are known.
[[nodiscard]] std::string correction(const CLI::App& application, int argc,
                                     const char* const* argv);

}  // namespace weir::command
