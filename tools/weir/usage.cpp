// SPDX-License-Identifier: Apache-2.0
// Help and refusals of the command line, in weir's words instead of the parser's.
#include "usage.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <regex>

#include "words.hpp"

namespace weir::command {

namespace {

/// Takes a list, or several values.
bool is_list(const CLI::Option& option) { return option.get_expected_max() > 1; }

/// The name by which the user knows it: "TRACE", "--jobs".
std::string shown_name(const CLI::Option& option) {
  return option.get_positional() ? option.get_type_name() : option.get_name();
}

/// A description in the middle of a sentence.
std::string lower_first(std::string text) {
  const bool is_acronym = text.size() > 1 && std::isupper(static_cast<unsigned char>(text[1])) != 0;
  if (!text.empty() && !is_acronym)
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

struct rewording {
  std::regex pattern;
  const char* text;  // with the pattern's groups as $1, $2
};

/// The parser's sentences that a user can provoke. Others pass as they are.
std::string reworded(const std::string& message) {
  static const std::array rewordings{
      rewording{std::regex{"^(.*): At Most (\\d+) required but received (\\d+)$"},
                "$1: expected at most $2, got $3"},
      rewording{std::regex{"^(.*): At least (\\d+) required but received (\\d+)$"},
                "$1: expected at least $2, got $3"},
      rewording{std::regex{"^(.*): \\d+ required (.*) missing$"}, "$1: expected a value ($2)"},
      rewording{std::regex{"^(.*) was given a disallowed flag override$"}, "$1: takes no value"},
      rewording{std::regex{"^(.*): Should be true/false or a number$"}, "$1: takes no value"},
      rewording{std::regex{"^Could not convert: (.*) = ([\\s\\S]*)$"},
                "$1: expected a number, got $2"},
      rewording{std::regex{"^(.*) excludes (.*)$"}, "$1 and $2 cannot be used together"},
      rewording{std::regex{"^(.*) requires (.*)$"}, "$1 needs $2 as well"},
      rewording{std::regex{"^The following argument was not expected: ([\\s\\S]*)$"},
                "unexpected argument: $1"},
      rewording{std::regex{"^The following arguments were not expected: ([\\s\\S]*)$"},
                "unexpected arguments: $1"},
  };
  for (const rewording& each : rewordings) {
    if (std::regex_match(message, each.pattern))
      return std::regex_replace(message, each.pattern, each.text);
  }
  return message;
}

std::string text_for(const CLI::App& chosen, const std::string& message) {
  for (const CLI::Option* const each : chosen.get_options()) {
    const std::string name = each->get_name();
    if (message == name + " is required") {
      std::string form = shown_name(*each);
      if (!each->get_positional()) form += " " + each->get_type_name();
      return fmt::format("missing {} ({})", form, lower_first(each->get_description()));
    }
    if (each->get_positional() && message.starts_with(name + ":"))
      return reworded(shown_name(*each) + message.substr(name.size()));
  }
  return reworded(message);
}

}  // namespace

help_formatter::help_formatter() {
  column_width(34);
  label("Positionals", "Arguments");
  label("SUBCOMMAND", "COMMAND");
}

std::string help_formatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  if (is_positional) return option->get_type_name();
  std::string name = CLI::Formatter::make_option_name(option, false);
  const auto brace = name.find('{');  // "--no-children{false}"
  if (brace != name.npos) name.erase(brace, name.find('}', brace) - brace + 1);
  return name;
}

std::string help_formatter::make_option_opts(const CLI::Option* option) const {
  if (option->get_positional() || option->get_type_size() == 0) return {};
  return option->get_type_name().empty() ? "" : " " + option->get_type_name();
}

std::string help_formatter::make_option_desc(const CLI::Option* option) const {
  std::string text = option->get_description();
  if (!option->get_default_str().empty()) text += " (default " + option->get_default_str() + ")";
  if (option->get_required() && !option->get_positional()) text += " (required)";
  return text;
}

std::string help_formatter::make_option_usage(const CLI::Option* option) const {
  const std::string name = option->get_type_name();
  if (!option->get_required()) return "[" + name + "]";
  if (!is_list(*option)) return name;
  return option->get_expected_max() == 2 ? name + " [" + name + "]" : name + "...";
}

std::string refusal_text(const CLI::App& application, const CLI::ParseError& refusal, int argc,
                         const char* const* argv) {
  const auto parsed = application.get_subcommands();
  const CLI::App& chosen = parsed.empty() ? application : *parsed.front();
  const std::string command = parsed.empty() ? "weir" : "weir " + chosen.get_name();
  std::string problem = correction(application, argc, argv);
  if (problem.empty()) problem = text_for(chosen, refusal.what());
  return fmt::format("{}: {}\nSee {} --help.\n", command, problem, command);
}

}  // namespace weir::command
