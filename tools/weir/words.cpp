// SPDX-License-Identifier: Apache-2.0
// The values that options accept, and corrections of misspelt words.
#include "words.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "replay/nearest.hpp"
#include "weir/base/options.hpp"

namespace weir::command {

namespace {

using words = std::vector<std::string>;

/// Empty if the nearest known word differs in more than half of its letters.
std::string suggestion(std::string_view word, const words& known) {
  const std::vector<std::string_view> all{known.begin(), known.end()};
  if (all.empty()) return {};
  const std::string_view nearest = replay::nearest(word, all);
  if (2 * replay::edit_distance(word.substr(0, 64), nearest) > nearest.size()) return {};
  return "; did you mean \"" + std::string{nearest} + "\"?";
}

words commands_of(const CLI::App& application) {
  words names;
  for (const CLI::App* const each :
       application.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(each->get_name());
  return names;
}

words options_of(const CLI::App& of) {
  words names;
  for (const CLI::Option* const each : of.get_options())
    for (const std::string& name : each->get_lnames()) names.push_back("--" + name);
  return names;
}

bool has(const words& all, std::string_view word) {
  return std::find(all.begin(), all.end(), word) != all.end();
}

}  // namespace

std::string alternatives(const std::vector<std::string>& words) {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i != 0) list += i + 1 == words.size() ? " or " : ", ";
    list += words[i];
  }
  return list;
}

CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator{[words = std::move(words)](const std::string& text) {
                          if (has(words, text)) return std::string{};
                          return fmt::format("expected {}, got {}", alternatives(words),
                                             text.empty() ? "an empty word" : text);
                        },
                        ""};
}

result<bytes> size_argument(std::string_view option, const std::string& text,
                            bool is_zero_allowed) {
  const auto size = parse_bytes(text);
  const bool is_zero = size && size->count() == 0;
  const bool has_unit = !text.empty() && (text.back() < '0' || text.back() > '9');
  if (is_zero ? is_zero_allowed : size && has_unit) return *size;
  const std::string given = text.empty() ? "an empty word" : text;
  const char* const wanted = is_zero             ? "a size greater than zero"
                             : size && !has_unit ? "a size with a unit"
                                                 : "a size";
  return error{{.code = errc::bad_option,
                .detail = fmt::format("{}: expected {}, such as 24GiB or 24GB, got {}", option,
                                      wanted, given)}};
}

std::string correction(const CLI::App& application, int argc, const char* const* argv) {
  const CLI::App* chosen = &application;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;  // what follows is a program's
    if (word.starts_with("--")) {
      const std::string_view name = word.substr(0, word.find('='));
      const words known = options_of(*chosen);
      if (!has(known, name))
        return "unknown option \"" + std::string{name} + '"' + suggestion(name, known);
    } else if (chosen == &application && !word.starts_with("-")) {
      const words known = commands_of(application);
      if (!has(known, word))
        return "unknown command \"" + std::string{word} + '"' + suggestion(word, known);
      chosen = application.get_subcommand(std::string{word});
    }
  }
  return {};
}

}  // namespace weir::command
