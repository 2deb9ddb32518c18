// SPDX-License-Identifier: Apache-2.0
// weir top: shows the counters of one running process, periodically.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "commands.hpp"
#include "json.hpp"
#include "printable.hpp"
#include "top.hpp"
#include "traces.hpp"
#include "weir/base/version.hpp"
#include "weir/trace/live_page.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr const char* top_explanation =
    "Examples:\n"
    "  WEIR_LIVE=on ./program &        publishes the program's memory\n"
    "  weir top                        all processes, updated every second\n"
    "  weir top 4711 --once            one process, by tag and stream\n"
    "\n"
    "A process publishes its memory if it was started with WEIR_LIVE=on, sets the option live,\n"
    "or creates a weir::live_page.\n"
    "\n"
    "Without PID, weir top shows one line for each such process of this user, and for each that\n"
    "shares a card (weir budget). RESERVED is green within the floor of the share, yellow above\n"
    "it, and red while others wait for some of it; NO_COLOR turns colours off. If there is\n"
    "nothing to show and the output is not a terminal, the command ends.\n"
    "\n"
    "Exit codes:\n"
    "  0   shown, until the process ended or you quit\n"
    "  1   shown with --once, but some pages cannot be read\n"
    "  2   the process does not exist, or publishes nothing\n"
    "  64  the command line is invalid";

void write_table(std::string& text, const live_view& view) {
  const auto out = std::back_inserter(text);
  const memory_stats& now = view.stats;
  fmt::format_to(out, "process {}, device {} of {}, update {}\n\n", view.process, view.device,
                 to_string(view.device_total), view.updates);
  fmt::format_to(out, "{:<12} {:>12} {:>12}\n", "", "now", "peak");
  const auto line = [&](std::string_view name, const byte_gauge& each) {
    fmt::format_to(out, "{:<12} {:>12} {:>12}\n", name, to_string(each.current),
                   to_string(each.peak));
  };
  line("requested", now.requested);
  line("allocated", now.allocated);
  line("active", now.active);
  line("reserved", now.reserved);
  fmt::format_to(out, "{:<12} {:>12} {:>12}\n", "blocks", now.blocks.current, now.blocks.peak);
  fmt::format_to(
      out,
      "\nallocations {}, from thread caches {:.1f} %, handles {} created {} moved, waits {}, "
      "failures {}\n",
      now.allocations,
      now.allocations == 0
          ? 0.0
          : 100 * static_cast<double>(now.hits) / static_cast<double>(now.allocations),
      now.handles_created, now.handles_moved, now.waits, now.failures);
  if (!view.tags.empty())
    fmt::format_to(out, "\n{:<32} {:>12} {:>12} {:>9}\n", "tag", "requested", "peak", "blocks");
  for (const live_tag& each : view.tags)
    fmt::format_to(out, "{:<32} {:>12} {:>12} {:>9}\n",
                   each.name.empty() ? "(no tag)" : printable(each.name),
                   to_string(each.requested.current), to_string(each.requested.peak), each.blocks);
  if (!view.streams.empty())
    fmt::format_to(out, "\n{:<12} {:>12} {:>12}\n", "stream", "live", "free for it");
  for (const live_stream& each : view.streams)
    fmt::format_to(out, "{:<12} {:>12} {:>12}\n",
                   each.stream.number() == 0 ? "any" : std::to_string(each.stream.number()),
                   to_string(each.live), to_string(each.bound));
}

std::string to_json(const std::vector<live_view>& views) {
  const auto gauge_json = [](const byte_gauge& each) {
    return json{{"current", each.current.count()}, {"peak", each.peak.count()}};
  };
  json out{{"weir", version_text()}, {"allocators", json::array()}};
  for (const live_view& view : views) {
    json tags = json::array();
    for (const live_tag& each : view.tags) {
      tags.push_back({{"name", each.name},
                      {"requested", each.requested.current.count()},
                      {"peak", each.requested.peak.count()},
                      {"blocks", each.blocks}});
    }
    json streams = json::array();
    for (const live_stream& each : view.streams) {
      streams.push_back({{"stream", each.stream.number()},
                         {"live", each.live.count()},
                         {"bound", each.bound.count()}});
    }
    out["allocators"].push_back(
        {{"process", view.process},
         {"device", view.device},
         {"device_total", view.device_total.count()},
         {"updates", view.updates},
         {"requested", gauge_json(view.stats.requested)},
         {"allocated", gauge_json(view.stats.allocated)},
         {"active", gauge_json(view.stats.active)},
         {"reserved", gauge_json(view.stats.reserved)},
         {"blocks", {{"current", view.stats.blocks.current}, {"peak", view.stats.blocks.peak}}},
         {"allocations", view.stats.allocations},
         {"frees", view.stats.frees},
         {"hits", view.stats.hits},
         {"failures", view.stats.failures},
         {"tags", std::move(tags)},
         {"streams", std::move(streams)}});
  }
  return json_text(out);
}

bool process_exists(int process) { return ::kill(process, 0) == 0 || errno == EPERM; }

int run_top(const top_arguments& args) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  bool shown = false;
  while (true) {
    const bool is_running = process_exists(args.process);
    const auto views = read_live_pages(args.process);
    if (!views || !is_running) {
      if (shown) return 0;  // it ended
      print_error(top_subcommand, is_running
                                      ? views.error().detail()
                                      : fmt::format("process {} does not exist", args.process));
      return failed;
    }
    std::string text;
    if (args.format == "json") {
      text = to_json(*views);
    } else {
      for (const live_view& each : *views) {
        if (!text.empty()) text += '\n';
        write_table(text, each);
      }
    }
    fmt::print("{}{}", terminal && !args.once ? "\033[H\033[J" : "", text);
    shown = true;
    if (std::fflush(stdout) != 0 || args.once) return 0;  // the reader has closed the pipe
    std::this_thread::sleep_for(std::chrono::duration<double>{args.seconds});
  }
}

}  // namespace

void add_top(CLI::App& application, int& exit_code) {
  auto* const top = application.add_subcommand("top", "Show the memory of running processes");
  const auto args = std::make_shared<top_arguments>();
  top->add_option("process", args->process,
                  "One process, by tag and stream (default: all processes)")
      ->type_name("PID")
      ->check(at_least(1));
  top->add_option("--seconds", args->seconds, "Seconds between two updates")
      ->type_name("S")
      ->check(between(0.05, 3600.0))
      ->capture_default_str();
  top->add_flag("--once", args->once, "Show the table once and end");
  top->add_option("--sort", args->sort, "Order of the processes: reserved, live, pid or name")
      ->type_name("ORDER")
      ->check(one_of({"reserved", "live", "pid", "name"}))
      ->capture_default_str();
  top->add_option("--folder", args->folder,
                  "The folder of the budget files (default: /dev/shm/weir.budget.UID)")
      ->type_name("FOLDER");
  top->add_option("--format", args->format, "table or json")
      ->type_name("FORMAT")
      ->check(one_of({"table", "json"}))
      ->capture_default_str();
  top->footer(top_explanation);
  top->callback([args, &exit_code] {
    exit_code = args->process == 0 ? show_all_processes(*args) : run_top(*args);
  });
}

}  // namespace weir::command
