// SPDX-License-Identifier: Apache-2.0
// weir export: a recording in another program's format.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "commands.hpp"
#include "formats/chrome_trace.hpp"
#include "formats/csv_trace.hpp"
#include "formats/memory_map.hpp"
#include "formats/torch_snapshot.hpp"
#include "output.hpp"
#include "printable.hpp"
#include "replay/replay.hpp"
#include "report/placement.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"
#include "weir/trace/trace_file.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr std::string_view export_subcommand = "export";

constexpr const char* export_explanation =
    "Examples:\n"
    "  weir export run.weirtrace --format torch -o run.pickle\n"
    "  weir export snapshot.pickle --format csv -o - | head\n"
    "\n"
    "Formats:\n"
    "  torch      a PyTorch memory snapshot, for torch/cuda/_memory_viz.py\n"
    "             and pytorch.org/memory_viz\n"
    "  chrome     a Chrome trace in JSON, for ui.perfetto.dev and chrome://tracing\n"
    "  weirtrace  weir's own format (docs/trace-format.md)\n"
    "  csv        one event per line: op,id,bytes,stream,t_us\n"
    "\n"
    "Exit codes:\n"
    "  0   the file was written\n"
    "  1   the file was written, but the trace is damaged\n"
    "  2   the trace could not be read or replayed, or the file could not be written\n"
    "  64  the command line is invalid";

struct export_arguments {
  std::string trace;
  std::string output;
  std::string format;
  std::string place = "none";
  bool overwrite = false;
  std::optional<std::uint64_t> device;  // of a snapshot
};

/// Empty: "none". An error: no policy that says where its memory is.
result<std::optional<replay::policy>> placing_policy(const std::string& name) {
  if (name == "none") return std::optional<replay::policy>{};
  WEIR_TRY_VALUE(policies, replay::parse_policies(name));
  if (policies.size() != 1 || policies.front() == replay::policy::driver_pool) {
    return error{
        {.code = errc::bad_option,
         .detail = "--place: expected none or one policy other than driver-pool, got " + name}};
  }
  return std::optional{policies.front()};
}

/// The recording as it would have been under that policy.
result<recording> placed_by(replay::policy policy, const recording& recording) {
  const replay::script script = replay::make_script(recording);
  progress_line bar{"playing", script.steps.size()};
  replay::settings settings{.policy = policy, .capacity = recording.device_capacity};
  settings.progress = bar.part();
  WEIR_TRY_VALUE(placed, report::place(script, settings));
  return report::relocate(recording, placed.first);
}

result<void> write(const recording& recording, const std::string& format, const std::string& path) {
  const stage_line writing{"writing " + format};
  if (format == "torch") return formats::write_torch_snapshot(recording, path);
  if (format == "chrome") return formats::write_chrome_trace(recording, path);
  if (format == "csv") return formats::write_csv_trace(recording, path);
  return write_trace(recording, path);
}

/// "FILE: 9933 events, 1.2 MiB; at the end 3 GiB live in 4 GiB reserved": which the other
/// program should show too.
void print_summary(const recording& recording, const output_file& output) {
  const std::string path = output.is_standard() ? "standard output" : printable(output.path());
  formats::memory_map map{recording};
  for (const trace_event& each : recording.events) map.apply(each);
  std::uint64_t live = 0;
  std::uint64_t suspended = 0;  // live, but without memory
  std::uint64_t reserved = 0;
  for (const auto& [address, each] : map.blocks())
    if (!each.pending) (map.has_memory(address) ? live : suspended) += each.size;
  for (const auto& [first, last] : map.reserved()) reserved += last - first;
  std::error_code ignored;
  fmt::print(output.is_standard() ? stderr : stdout,
             "{}: {} events, {}; at the end {} bytes live in {} bytes reserved{}\n", path,
             recording.events.size(),
             to_string(bytes{std::filesystem::file_size(output.path(), ignored)}), live, reserved,
             suspended == 0 ? std::string{} : fmt::format(", {} bytes suspended", suspended));
}

int run_export(const export_arguments& args) {
  const auto placing = placing_policy(args.place);
  if (!placing) {
    print_error(export_subcommand, placing.error());
    return bad_usage;
  }
  auto output = output_file::open(args.output, args.overwrite);
  if (!output) {
    print_error(export_subcommand, output.error());
    return failed;
  }
  auto recording = read_trace(export_subcommand, args.trace, args.device);
  if (!recording) return failed;
  const bool damaged = warn_if_damaged(export_subcommand, args.trace, *recording);
  if (*placing) {
    auto placed = placed_by(**placing, *recording);
    if (!placed) {
      print_error(export_subcommand, placed.error());
      return failed;
    }
    *recording = std::move(*placed);
  }
  auto written = write(*recording, args.format, output->path());
  if (written) written = output->finish();
  if (!written) {
    print_error(export_subcommand, written.error());
    return failed;
  }
  print_summary(*recording, *output);
  return damaged ? incomplete : 0;
}

}  // namespace

void add_export(CLI::App& application, int& exit_code) {
  auto* const exporting = application.add_subcommand(
      "export", "Write a recording in the format of another program, such as PyTorch's viewer");
  const auto args = std::make_shared<export_arguments>();
  exporting->add_option("trace", args->trace, "A recording; - reads the standard input")
      ->required()
      ->type_name("TRACE");
  exporting
      ->add_option("-o,--output", args->output,
                   "The file to write; - writes to the standard output")
      ->required()
      ->type_name("FILE");
  exporting->add_option("--format", args->format, "torch, chrome, weirtrace or csv")
      ->required()
      ->type_name("FORMAT")
      ->check(one_of({"torch", "chrome", "weirtrace", "csv"}));
  exporting
      ->add_option("--place", args->place,
                   "Write the addresses and the reserved memory of this policy instead of the "
                   "recorded ones; none keeps the recorded ones")
      ->type_name("POLICY")
      ->capture_default_str();
  exporting->add_flag("-f,--force", args->overwrite, "Replace the file if it exists");
  add_snapshot_device(*exporting, "--device", args->device);
  exporting->footer(export_explanation);
  exporting->callback([args, &exit_code] { exit_code = run_export(*args); });
}

}  // namespace weir::command
