// weir help and weir completion: the man page and the shell's completion, from the same source as
// --help.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "weir/base/version.hpp"

namespace weir::command {

namespace {

std::vector<const CLI::App*> subcommands(const CLI::App& application) {
  const auto listed = application.get_subcommands([](const CLI::App*) { return true; });
  return {listed.begin(), listed.end()};
}

// --- The man page --------------------------------------------------------------------------------

/// Text as roff prints it: hyphens that are minus signs, and no request by accident.
std::string roff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (const char each : text) {
    if (line_start && (each == '.' || each == '\'')) out += "\\&";
    if (each == '\\') {
      out += "\\e";
    } else if (each == '-') {
      out += "\\-";
    } else {
      out += each;
    }
    line_start = each == '\n';
  }
  return out;
}

/// "--policy LIST", "TRACE", "-o, --output FILE".
std::string shape(const CLI::Option& option) {
  if (option.get_positional()) {
    const bool several = option.get_expected_max() > 1;
    return option.get_type_name() + (several ? "…" : "");
  }
  std::string text;
  for (const std::string& each : option.get_snames()) text += "-" + each + ", ";
  for (const std::string& each : option.get_lnames()) text += "--" + each + ", ";
  text.resize(text.size() - 2);
  if (!option.get_type_name().empty()) text += " " + option.get_type_name();
  return text;
}

void write_options(std::string& out, const CLI::App& of) {
  for (const CLI::Option* const each : of.get_options()) {
    fmt::format_to(std::back_inserter(out), ".TP\n.B {}\n{}", roff(shape(*each)),
                   roff(each->get_description()));
    if (!each->get_default_str().empty())
      fmt::format_to(std::back_inserter(out), " (initially {})", roff(each->get_default_str()));
    out += ".\n";
  }
}

void write_synopsis(std::string& out, const CLI::App& of) {
  fmt::format_to(std::back_inserter(out), ".B weir {}\n", of.get_name());
  for (const CLI::Option* const each : of.get_options()) {
    if (each->check_name("--help")) continue;
    const std::string form = roff(shape(*each));
    out += each->get_required() ? form + "\n" : "[" + form + "]\n";
  }
  out += ".br\n";
}

std::string man_page(const CLI::App& application) {
  std::string out = fmt::format(".TH WEIR 1 \"\" \"weir {}\" \"User commands\"\n", version_text());
  fmt::format_to(std::back_inserter(out), ".SH NAME\nweir \\- {}\n.SH SYNOPSIS\n",
                 roff("GPU memory, on a real machine and on a simulated one"));
  const auto all = subcommands(application);
  for (const CLI::App* const each : all) write_synopsis(out, *each);
  out += ".SH OPTIONS\n";
  write_options(out, application);
  for (const CLI::App* const each : all) {
    fmt::format_to(std::back_inserter(out), ".SH WEIR {}\n{}.\n", each->get_name(),
                   roff(each->get_description()));
    write_options(out, *each);
    if (!each->get_footer().empty())
      fmt::format_to(std::back_inserter(out), ".PP\n.nf\n{}\n.fi\n", roff(each->get_footer()));
  }
  return out;
}

// --- Completion ----------------------------------------------------------------------------------

std::string long_options(const CLI::App& of) {
  std::string words;
  for (const CLI::Option* const each : of.get_options())
    for (const std::string& name : each->get_lnames()) words += "--" + name + " ";
  if (!words.empty()) words.pop_back();
  return words;
}

/// What --format may be: its description lists it.
std::string format_words(const CLI::App& of) {
  const CLI::Option* const option = of.get_option_no_throw("--format");
  std::string words = option == nullptr ? "" : option->get_description();
  for (const std::string_view separator : {",", " or"})
    for (auto at = words.find(separator); at != words.npos; at = words.find(separator, at))
      words.erase(at, separator.size());
  return words;
}

std::string bash_completion(const CLI::App& application) {
  std::string names;
  std::string cases;
  std::string formats;
  for (const CLI::App* const each : subcommands(application)) {
    names += each->get_name() + " ";
    fmt::format_to(std::back_inserter(cases), "    {}) words=\"{}\" ;;\n", each->get_name(),
                   long_options(*each));
    if (const std::string words = format_words(*each); !words.empty())
      fmt::format_to(std::back_inserter(formats), "      {}) words=\"{}\" ;;\n", each->get_name(),
                     words);
  }
  if (!names.empty()) names.pop_back();
  return fmt::format(
      R"(# bash completion of weir; load it with: source <(weir completion bash)
_weir() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  case $before in
    --policy) words="torch-default torch-expandable balanced throughput compact driver-pool never-move all" ;;
    --device) words="sim cuda" ;;
    --place) words="torch-default torch-expandable balanced throughput compact never-move" ;;
  esac
  if [[ $before == --format ]]; then
    case ${{COMP_WORDS[1]}} in
{}    esac
  fi
  if [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    return
  fi
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "{} {}" -- "$word")
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
      formats, names, long_options(application), cases);
}

}  // namespace

void add_help(CLI::App& application, int& exit_code) {
  auto* const help =
      application.add_subcommand("help", "Show the help of weir or of one of its commands");
  const auto about = std::make_shared<std::string>();
  const auto man = std::make_shared<bool>(false);
  help->add_option("command", *about, "The command to describe")->type_name("COMMAND");
  help->add_flag("--man", *man, "Write the manual page instead, for man(1)");
  help->callback([&application, about, man, &exit_code] {
    exit_code = 0;
    if (*man) {
      fmt::print("{}", man_page(application));
      return;
    }
    if (about->empty()) {
      // Not help(), which would describe the chosen subcommand: this one.
      fmt::print("{}", application.get_formatter()->make_help(&application, application.get_name(),
                                                              CLI::AppFormatMode::Normal));
      return;
    }
    for (const CLI::App* const each : subcommands(application)) {
      if (each->get_name() != *about) continue;
      fmt::print("{}", each->help(application.get_name()));
      return;
    }
    fmt::print(stderr, "weir help: there is no command \"{}\"\n", *about);
    exit_code = bad_usage;
  });

  auto* const completion =
      application.add_subcommand("completion", "Write what a shell needs to complete weir's words");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "The shell: bash")
      ->type_name("SHELL")
      ->required()
      ->check(CLI::Validator{CLI::IsMember({"bash"})}.description(""));
  completion->callback([&application, &exit_code] {
    fmt::print("{}", bash_completion(application));
    exit_code = 0;
  });
}

}  // namespace weir::command
