// Sizes of the command line, and corrections of its words.
#include "words.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "replay/nearest.hpp"

namespace weir::command {

namespace {

struct unit {
  std::string_view name;
  double size;
};
constexpr std::array units{
    unit{"", 1},         unit{"B", 1},        unit{"KB", 1e3},     unit{"kB", 1e3},
    unit{"MB", 1e6},     unit{"GB", 1e9},     unit{"TB", 1e12},    unit{"KiB", 0x1p10},
    unit{"MiB", 0x1p20}, unit{"GiB", 0x1p30}, unit{"TiB", 0x1p40},
};

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

std::optional<bytes> read_size(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  // Whole numbers beyond what a double holds exactly are sizes in bytes.
  std::uint64_t count = 0;
  const auto [whole_end, whole_code] = std::from_chars(text.data(), end, count);
  if (whole_code == std::errc{} && whole_end == end) return bytes{count};
  const auto [rest, code] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (code != std::errc{} || number < 0) return std::nullopt;
  std::string_view name{rest, static_cast<std::size_t>(end - rest)};
  if (name.size() > 1 && name.front() == ' ') name.remove_prefix(1);
  for (const unit& each : units) {
    if (name != each.name) continue;
    const double size = std::round(number * each.size);
    if (!(size < 0x1p64)) return std::nullopt;
    return bytes{static_cast<std::uint64_t>(size)};
  }
  return std::nullopt;
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
