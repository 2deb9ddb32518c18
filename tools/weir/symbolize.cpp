// SPDX-License-Identifier: Apache-2.0
// weir symbolize: the calls in a report, with function, file and line.
#include <fmt/core.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "formats/debug_information.hpp"
#include "formats/frames.hpp"
#include "printable.hpp"

namespace weir::command {

namespace {

constexpr const char* symbolize_explanation =
    "Examples:\n"
    "  ./program 2>&1 | weir symbolize\n"
    "  weir symbolize errors.log\n"
    "\n"
    "A report of a double free, a leak or damaged memory names each call of a stack as\n"
    "function+0x1c at /path/program+0x4711 (build 0123456789ab). This command replaces such\n"
    "lines by function at file:line, with the calls that were inlined, if the very build is\n"
    "still there and has debug information. It copies all other lines.\n"
    "\n"
    "Exit codes:\n"
    "  0   all lines were written\n"
    "  2   the file could not be read, or this command was built without libdw\n"
    "  64  the command line is invalid";

void symbolize(std::istream& input) {
  formats::debug_information files;
  for (std::string line; std::getline(input, line);) {
    const std::size_t indentation = line.find_first_not_of(' ');
    const auto frame = indentation == line.npos
                           ? std::nullopt
                           : formats::parse_frame(std::string_view{line}.substr(indentation));
    const auto named = frame ? files.lines_at(*frame) : std::vector<std::string>{};
    if (named.empty()) fmt::print("{}\n", line);
    for (const std::string& each : named)
      fmt::print("{}{}\n", std::string_view{line}.substr(0, indentation), each);
  }
}

int run_symbolize(const std::string& path) {
  if (!formats::reads_debug_information()) {
    fmt::print(stderr, "weir symbolize: this command was built without libdw; use addr2line\n");
    return failed;
  }
  if (path == "-") {
    symbolize(std::cin);
    return 0;
  }
  std::ifstream file{path};
  if (!file) {
    fmt::print(stderr, "weir symbolize: {}: cannot be read\n", printable(path));
    return failed;
  }
  symbolize(file);
  return 0;
}

}  // namespace

void add_symbolize(CLI::App& application, int& exit_code) {
  auto* const symbolizing = application.add_subcommand(
      "symbolize", "Name the calls in a report by function, file and line");
  const auto path = std::make_shared<std::string>("-");
  symbolizing->add_option("report", *path, "A report; - reads the standard input")
      ->type_name("FILE")
      ->capture_default_str();
  symbolizing->footer(symbolize_explanation);
  symbolizing->callback([path, &exit_code] { exit_code = run_symbolize(*path); });
}

}  // namespace weir::command
