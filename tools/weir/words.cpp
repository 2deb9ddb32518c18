// SPDX-License-Identifier: Apache-2.0
// Corrections of the command line's words.
#include "words.hpp"

#include <algorithm>
#include <vector>

#include "replay/nearest.hpp"

namespace weir::command {

namespace {

using words = std::vector<std::string>;

/// Empty where none is near: a word of which more than half would have to change.
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

std::string correction(const CLI::App& application, int argc, const char* const* argv) {
  const CLI::App* chosen = &application;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;  // what follows is a program's
    if (word.starts_with("--")) {
      const std::string_view name = word.substr(0, word.find('='));
      const words known = options_of(*chosen);
      if (!has(known, name))
        return "\"" + std::string{name} + "\" is no option" + suggestion(name, known);
    } else if (chosen == &application && !word.starts_with("-")) {
      const words known = commands_of(application);
      if (!has(known, word))
        return "\"" + std::string{word} + "\" is no command" + suggestion(word, known);
      chosen = application.get_subcommand(std::string{word});
    }
  }
  return {};
}

}  // namespace weir::command
