// SPDX-License-Identifier: Apache-2.0
// weir help: what --help says, and the manual page from the same source.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "printable.hpp"
#include "weir/base/version.hpp"
#include "words.hpp"

namespace weir::command {

std::vector<const CLI::App*> subcommands(const CLI::App& application) {
  const auto listed = application.get_subcommands([](const CLI::App*) { return true; });
  return {listed.begin(), listed.end()};
}

namespace {

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
    return option.get_type_name() + (several ? "..." : "");
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
      fmt::format_to(std::back_inserter(out), " (default {})", roff(each->get_default_str()));
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
                 roff("record, replay and explain what programs do with GPU memory"));
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

}  // namespace

void add_help(CLI::App& application, int& exit_code) {
  auto* const help = application.add_subcommand("help", "Show the help of weir or of a command");
  const auto about = std::make_shared<std::string>();
  const auto man = std::make_shared<bool>(false);
  help->add_option("command", *about, "The command to describe")->type_name("COMMAND");
  help->add_flag("--man", *man, "Write the manual page for man(1) instead");
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
    const std::array words{"weir", about->c_str()};
    fmt::print(stderr, "weir help: {}\n", printable(correction(application, 2, words.data())));
    exit_code = bad_usage;
  });
}

}  // namespace weir::command
