// SPDX-License-Identifier: Apache-2.0
// weir completion: what shells need to complete weir's words, from the same source as --help.
#include <fmt/format.h>

#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

/// What an option may be, where that is a list: "table csv json".
std::string choices(const CLI::Option& option) {
  constexpr std::string_view placing =
      "torch-default torch-expandable balanced throughput compact never-move";
  if (option.get_type_name() == "PLACEMENT")
    return "balanced throughput compact never_move classic classic_expandable";
  if (option.check_name("--free")) return "wait async";
  if (option.check_name("--keep")) return "cuMemAlloc cuMemAllocAsync";
  if (option.check_name("--python")) return "auto on off";
  if (option.check_name("--policy"))
    return "torch-default torch-expandable balanced throughput compact driver-pool never-move all";
  if (option.check_name("--place")) return std::string{placing};
  if (option.check_name("--device") && option.get_type_name() == "DEVICE") return "sim cuda";
  if (option.check_name("--sort")) return "reserved live pid name";
  if (!option.check_name("--format")) return {};
  std::string words = option.get_description();  // which lists it
  for (const std::string_view separator : {",", " or"})
    for (auto at = words.find(separator); at != words.npos; at = words.find(separator, at))
      words.erase(at, separator.size());
  return words;
}

std::string long_options(const CLI::App& of) {
  std::string words;
  for (const CLI::Option* const each : of.get_options())
    for (const std::string& name : each->get_lnames()) words += "--" + name + " ";
  if (!words.empty()) words.pop_back();
  return words;
}

std::string names_of(const CLI::App& application) {
  std::string names;
  for (const CLI::App* const each : subcommands(application)) names += each->get_name() + " ";
  if (!names.empty()) names.pop_back();
  return names;
}

/// The text without what ends a word in the shells' quotes.
std::string plain(std::string text) {
  for (char& each : text)
    if (each == '\'' || each == '[' || each == ']' || each == ':' || each == '\\') each = ' ';
  return text;
}

// --- bash ----------------------------------------------------------------------------------------

std::string bash_completion(const CLI::App& application) {
  std::string options;
  std::string values;
  for (const CLI::App* const each : subcommands(application)) {
    fmt::format_to(std::back_inserter(options), "    {}) words=\"{}\" ;;\n", each->get_name(),
                   long_options(*each));
    for (const CLI::Option* const option : each->get_options()) {
      if (const std::string words = choices(*option); !words.empty())
        fmt::format_to(std::back_inserter(values), "    {},--{}) words=\"{}\" ;;\n",
                       each->get_name(), option->get_lnames().front(), words);
    }
  }
  return fmt::format(
      R"(# bash completion of weir; load it with: source <(weir completion bash)
_weir() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "{} {}" -- "$word")
    return
  fi
  case ${{COMP_WORDS[1]}},$before in
{}  esac
  if [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -o filenames -F _weir weir
)",
      names_of(application), long_options(application), values, options);
}

// --- zsh -----------------------------------------------------------------------------------------

/// '--format[table or json]:FORMAT:(table json)'.
std::string zsh_option(const CLI::Option& option) {
  std::string text =
      "'--" + option.get_lnames().front() + "[" + plain(option.get_description()) + "]";
  if (option.get_items_expected_max() == 0) return text + "'";
  text += ":" + plain(option.get_type_name()) + ":";
  const std::string words = choices(option);
  return text + (words.empty() ? "_files" : "(" + words + ")") + "'";
}

std::string zsh_completion(const CLI::App& application) {
  std::string commands;
  std::string cases;
  for (const CLI::App* const each : subcommands(application)) {
    fmt::format_to(std::back_inserter(commands), "    '{}:{}'\n", each->get_name(),
                   plain(each->get_description()));
    fmt::format_to(std::back_inserter(cases), "    {}) _arguments", each->get_name());
    for (const CLI::Option* const option : each->get_options())
      if (!option->get_lnames().empty()) cases += " \\\n      " + zsh_option(*option);
    cases += " \\\n      '*:file:_files' ;;\n";
  }
  return fmt::format(
      R"(#compdef weir
# zsh completion of weir; save it as _weir in a folder of $fpath, or: source <(weir completion zsh)
_weir() {{
  local -a commands
  commands=(
{}  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  local chosen=$words[2]
  shift words
  ((CURRENT--))
  case $chosen in
{}  esac
}}
compdef _weir weir
)",
      commands, cases);
}

// --- fish ----------------------------------------------------------------------------------------

std::string fish_completion(const CLI::App& application) {
  std::string text = "# fish completion of weir; load it with: weir completion fish | source\n";
  for (const CLI::App* const each : subcommands(application)) {
    fmt::format_to(std::back_inserter(text),
                   "complete -c weir -n __fish_use_subcommand -f -a {} -d '{}'\n", each->get_name(),
                   plain(each->get_description()));
    for (const CLI::Option* const option : each->get_options()) {
      if (option->get_lnames().empty()) continue;
      fmt::format_to(std::back_inserter(text),
                     "complete -c weir -n '__fish_seen_subcommand_from {}' -l {} -d '{}'",
                     each->get_name(), option->get_lnames().front(),
                     plain(option->get_description()));
      for (const std::string& name : option->get_snames()) text += " -s " + name;
      if (option->get_items_expected_max() != 0) text += " -r";
      if (const std::string words = choices(*option); !words.empty())
        text += " -f -a '" + words + "'";
      text += '\n';
    }
  }
  return text;
}

struct shell {
  std::string_view name;
  std::string (*write)(const CLI::App& application);
};
constexpr std::array shells{shell{"bash", bash_completion}, shell{"zsh", zsh_completion},
                            shell{"fish", fish_completion}};

}  // namespace

void add_completion(CLI::App& application, int& exit_code) {
  auto* const completion =
      application.add_subcommand("completion", "Write the completion script of a shell");
  const auto name = std::make_shared<std::string>();
  completion->add_option("shell", *name, "The shell: bash, zsh or fish")
      ->type_name("SHELL")
      ->required()
      ->check(one_of({"bash", "zsh", "fish"}));
  completion->callback([&application, name, &exit_code] {
    for (const shell& each : shells)
      if (each.name == *name) fmt::print("{}", each.write(application));
    exit_code = 0;
  });
}

}  // namespace weir::command
