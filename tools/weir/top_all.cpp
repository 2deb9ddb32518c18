// SPDX-License-Identifier: Apache-2.0
// weir top without a process: shows all processes, periodically.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "commands.hpp"
#include "json.hpp"
#include "process_table.hpp"
#include "top.hpp"
#include "traces.hpp"
#include "weir/base/version.hpp"

namespace weir::command {

namespace {

/// The program's name, without what would move a terminal's cursor.
std::string program_name(int process) {
  std::ifstream file{fmt::format("/proc/{}/comm", process)};
  std::string name;
  std::getline(file, name);
  for (char& each : name)
    if (each < ' ' || each > '~') each = '?';
  return name;
}

bool wants_colours() {
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  if (refused != nullptr && *refused != '\0') return false;
  return terminal == nullptr || std::string_view{terminal} != "dumb";
}

}  // namespace

int show_all_processes(const top_arguments& args) {
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool coloured = is_terminal && wants_colours();
  process_table table;
  std::set<std::string> named;  // errors that were printed
  for (;;) {
    const auto budgets = read_budgets(args.folder);
    if (!budgets) {
      print_error(top_subcommand, budgets.error().detail());
      return failed;
    }
    const live_listing live = read_all_live_pages();
    table.update(live, *budgets, &program_name);
    table.sort(args.sort);
    const std::string text =
        args.format == "json"
            ? json_text(json{{"weir", version_text()}, {"processes", table.to_json()}})
            : table.text(coloured);
    fmt::print("{}{}", is_terminal && !args.once ? "\033[H\033[J" : "", text);
    if (std::fflush(stdout) != 0) return 0;  // the reader has closed the pipe
    for (const auto* const refused : {&live.refused, &budgets->refused})
      for (const error& each : *refused)
        if (named.insert(each.detail()).second) print_error(top_subcommand, each.detail());
    if (args.once || (!is_terminal && table.is_empty())) return named.empty() ? 0 : incomplete;
    std::this_thread::sleep_for(std::chrono::duration<double>{args.seconds});
  }
}

}  // namespace weir::command
