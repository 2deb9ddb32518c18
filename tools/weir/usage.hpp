// SPDX-License-Identifier: Apache-2.0
// Help and refusals of the command line, in weir's words instead of the parser's.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace weir::command {

/// Writes help: arguments by the name of what they take, defaults and requirements in words.
class help_formatter : public CLI::Formatter {
 public:
  help_formatter();

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_option_usage(const CLI::Option* option) const override;
};

/// "weir replay: --jobs: expected a number from 1 to 8, got 0", for a command line that the parser
/// refused; the last line says where help is.
[[nodiscard]] std::string refusal_text(const CLI::App& application, const CLI::ParseError& refusal,
                                       int argc, const char* const* argv);

}  // namespace weir::command
