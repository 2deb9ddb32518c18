// weir top: what the allocators of a running process hold, again and again.
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
#include "traces.hpp"
#include "weir/base/version.hpp"
#include "weir/trace/live_page.hpp"

namespace weir::command {

namespace {

constexpr std::string_view who = "top";

constexpr const char* explanation =
    "The process publishes what it holds where it was started with WEIR_LIVE=on, has the option\n"
    "live on, or makes a weir::live_page.\n"
    "\n"
    "Exit codes:\n"
    "  0   it was shown, until the process ended or the user had enough\n"
    "  2   the process is not there, or publishes nothing\n"
    "  64  the command line could not be understood";

struct arguments {
  int process = 0;
  double seconds = 1;
  bool once = false;
  std::string format = "table";
};

std::string size(std::uint64_t count) { return to_string(bytes{count}); }

void write_table(std::string& text, const live_view& view) {
  const auto out = std::back_inserter(text);
  const memory_stats& now = view.stats;
  fmt::format_to(out, "process {}, device {} of {}, update {}\n\n", view.process, view.device,
                 size(view.device_total), view.updates);
  fmt::format_to(out, "{:<12} {:>12} {:>12}\n", "", "now", "at most");
  const auto line = [&](std::string_view name, const gauge& each) {
    fmt::format_to(out, "{:<12} {:>12} {:>12}\n", name, size(each.current), size(each.peak));
  };
  line("requested", now.requested);
  line("allocated", now.allocated);
  line("active", now.active);
  line("reserved", now.reserved);
  fmt::format_to(out, "{:<12} {:>12} {:>12}\n", "blocks", now.blocks.current, now.blocks.peak);
  fmt::format_to(out,
                 "\nallocations {}, by threads alone {:.1f} %, handles {} made {} moved, waits {}, "
                 "failures {}\n",
                 now.allocations,
                 now.allocations == 0
                     ? 0.0
                     : 100 * static_cast<double>(now.hits) / static_cast<double>(now.allocations),
                 now.handles_created, now.handles_moved, now.waits, now.failures);
  if (!view.tags.empty())
    fmt::format_to(out, "\n{:<32} {:>12} {:>12} {:>9}\n", "tag", "requested", "at most", "blocks");
  for (const live_tag& each : view.tags)
    fmt::format_to(out, "{:<32} {:>12} {:>12} {:>9}\n", each.name.empty() ? "(no tag)" : each.name,
                   size(each.requested.current), size(each.requested.peak), each.blocks);
  if (!view.streams.empty())
    fmt::format_to(out, "\n{:<12} {:>12} {:>12}\n", "stream", "live", "kept for it");
  for (const live_stream& each : view.streams)
    fmt::format_to(out, "{:<12} {:>12} {:>12}\n",
                   each.stream.number() == 0 ? "any" : std::to_string(each.stream.number()),
                   size(each.live), size(each.bound));
}

std::string to_json(const std::vector<live_view>& views) {
  json_writer out;
  out.begin_object();
  out.member("weir", version_text());
  out.key("allocators").begin_array();
  for (const live_view& view : views) {
    out.begin_object();
    out.member("process", view.process).member("device", view.device);
    out.member("device_total", view.device_total).member("updates", view.updates);
    const auto write = [&](std::string_view name, const gauge& each) {
      out.key(name).begin_object();
      out.member("current", each.current).member("peak", each.peak).end_object();
    };
    write("requested", view.stats.requested);
    write("allocated", view.stats.allocated);
    write("active", view.stats.active);
    write("reserved", view.stats.reserved);
    write("blocks", view.stats.blocks);
    out.member("allocations", view.stats.allocations).member("frees", view.stats.frees);
    out.member("hits", view.stats.hits).member("failures", view.stats.failures);
    out.key("tags").begin_array();
    for (const live_tag& each : view.tags) {
      out.begin_object().member("name", each.name).member("requested", each.requested.current);
      out.member("peak", each.requested.peak).member("blocks", each.blocks).end_object();
    }
    out.end_array();
    out.key("streams").begin_array();
    for (const live_stream& each : view.streams) {
      out.begin_object().member("stream", each.stream.number());
      out.member("live", each.live).member("bound", each.bound).end_object();
    }
    out.end_array();
    out.end_object();
  }
  out.end_array();
  out.end_object();
  return out.text();
}

bool running(int process) { return ::kill(process, 0) == 0 || errno == EPERM; }

int run(const arguments& wanted) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  bool shown = false;
  while (true) {
    const bool there = running(wanted.process);
    const auto views = read_live_pages(wanted.process);
    if (!views || !there) {
      if (shown) return 0;  // it ended
      complain(who, there ? views.error().detail
                          : fmt::format("there is no process {}", wanted.process));
      return failed;
    }
    std::string text;
    if (wanted.format == "json") {
      text = to_json(*views);
    } else {
      for (const live_view& each : *views) {
        if (!text.empty()) text += '\n';
        write_table(text, each);
      }
    }
    fmt::print("{}{}", terminal && !wanted.once ? "\033[H\033[J" : "", text);
    std::fflush(stdout);
    shown = true;
    if (wanted.once) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>{wanted.seconds});
  }
}

}  // namespace

void add_top(CLI::App& application, int& exit_code) {
  auto* const top = application.add_subcommand(
      "top", "Show what the allocators of a running process hold, by tag and stream");
  const auto wanted = std::make_shared<arguments>();
  top->add_option("process", wanted->process, "The process's number")
      ->type_name("PID")
      ->required()
      ->check(CLI::Validator{CLI::PositiveNumber}.description(""));
  top->add_option("--seconds", wanted->seconds, "The time between two looks")
      ->type_name("S")
      ->check(CLI::Validator{CLI::Range(0.05, 3600.0)}.description(""))
      ->capture_default_str();
  top->add_flag("--once", wanted->once, "Look once");
  top->add_option("--format", wanted->format, "table or json")
      ->type_name("FORMAT")
      ->check(CLI::Validator{CLI::IsMember({"table", "json"})}.description(""))
      ->capture_default_str();
  top->footer(explanation);
  top->callback([wanted, &exit_code] { exit_code = run(*wanted); });
}

}  // namespace weir::command
