// weir export: a recording in another program's format.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "commands.hpp"
#include "formats/chrome_trace.hpp"
#include "formats/csv_trace.hpp"
#include "formats/final_state.hpp"
#include "formats/torch_snapshot.hpp"
#include "replay/replay.hpp"
#include "report/placement.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::command {

namespace {

constexpr std::string_view who = "export";

constexpr const char* explanation =
    "Formats:\n"
    "  torch      a PyTorch memory snapshot, for torch/cuda/_memory_viz.py\n"
    "             and pytorch.org/memory_viz\n"
    "  chrome     a Chrome trace in JSON, for ui.perfetto.dev and chrome://tracing\n"
    "  weirtrace  weir's own\n"
    "  csv        one event a line: op,id,bytes,stream,t_us\n"
    "\n"
    "Exit codes:\n"
    "  0   the file was written\n"
    "  1   the file was written, but the trace is damaged\n"
    "  2   the trace could not be read or played, or the file not be written\n"
    "  64  the command line could not be understood";

struct arguments {
  std::string trace;
  std::string output;
  std::string format;
  std::string place = "none";
  bool overwrite = false;
};

/// Empty: "none". An error: no policy that says where its memory is.
result<std::optional<replay::policy>> placing_policy(const std::string& named) {
  if (named == "none") return std::optional<replay::policy>{};
  WEIR_TRY_VALUE(found, replay::policies_named(named));
  if (found.size() != 1 || found.front() == replay::policy::driver_pool) {
    return error{
        .code = errc::bad_option,
        .detail = "--place wants one policy; driver-pool does not say where its memory is"};
  }
  return std::optional{found.front()};
}

/// What the policy would have made of the recording.
result<recording> placed_by(replay::policy how, const recording& what) {
  const replay::script script = replay::make_script(what);
  progress_line bar{"playing", script.steps.size()};
  replay::settings settings{.how = how, .capacity = bytes{what.device_capacity}};
  settings.progress = [&bar, before = std::size_t{0}](std::size_t done) mutable {
    bar.add(done - before);
    before = done;
  };
  WEIR_TRY_VALUE(came, report::place(script, settings));
  return report::placed(what, came.first);
}

result<void> write(const recording& what, const arguments& wanted) {
  if (wanted.format == "torch") return formats::write_torch_snapshot(what, wanted.output);
  if (wanted.format == "chrome") return formats::write_chrome_trace(what, wanted.output);
  if (wanted.format == "csv") return formats::write_csv_trace(what, wanted.output);
  return write_trace(what, wanted.output);
}

/// "FILE: 9933 events, 1.2 MiB; at the end 3 GiB live in 4 GiB reserved": what the other program
/// should say too.
void say(const recording& what, const std::string& path) {
  formats::memory_map map{what};
  for (const trace_event& each : what.events) map.take(each);
  std::uint64_t live = 0;
  std::uint64_t reserved = 0;
  for (const auto& [address, each] : map.blocks()) live += each.pending ? 0 : each.size;
  for (const auto& [first, last] : map.reserved()) reserved += last - first;
  std::error_code ignored;
  fmt::print("{}: {} events, {}; at the end {} bytes live in {} bytes reserved\n", path,
             what.events.size(), to_string(bytes{std::filesystem::file_size(path, ignored)}), live,
             reserved);
}

int run(const arguments& wanted) {
  const auto placing = placing_policy(wanted.place);
  if (!placing) {
    complain(who, placing.error());
    return bad_usage;
  }
  if (!wanted.overwrite && std::filesystem::exists(wanted.output)) {
    complain(who, wanted.output + " exists; --force replaces it");
    return failed;
  }
  auto what = read_trace(who, wanted.trace);
  if (!what) return failed;
  const bool damaged = say_if_damaged(who, wanted.trace, *what);
  if (*placing) {
    auto placed = placed_by(**placing, *what);
    if (!placed) {
      complain(who, placed.error());
      return failed;
    }
    *what = std::move(*placed);
  }
  if (const auto written = write(*what, wanted); !written) {
    complain(who, written.error());
    return failed;
  }
  say(*what, wanted.output);
  return damaged ? not_whole : 0;
}

}  // namespace

void add_export(CLI::App& application, int& exit_code) {
  auto* const exporting = application.add_subcommand(
      "export", "Write a recording in the format of another program, such as PyTorch's viewer");
  const auto wanted = std::make_shared<arguments>();
  exporting->add_option("trace", wanted->trace, "A recording")->required()->type_name("TRACE");
  exporting->add_option("-o,--output", wanted->output, "The file to write")
      ->required()
      ->type_name("FILE");
  exporting->add_option("--format", wanted->format, "torch, chrome, weirtrace or csv")
      ->required()
      ->type_name("FORMAT")
      ->check(
          CLI::Validator{CLI::IsMember({"torch", "chrome", "weirtrace", "csv"})}.description(""));
  exporting
      ->add_option("--place", wanted->place,
                   "Tell where this policy would have put the blocks and what it would have "
                   "reserved, instead of what the recording says; or none")
      ->type_name("POLICY")
      ->capture_default_str();
  exporting->add_flag("-f,--force", wanted->overwrite, "Replace the file if it exists");
  exporting->footer(explanation);
  exporting->callback([wanted, &exit_code] { exit_code = run(*wanted); });
}

}  // namespace weir::command
