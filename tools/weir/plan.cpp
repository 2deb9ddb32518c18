// SPDX-License-Identifier: Apache-2.0
// weir plan: the least memory of a recorded step that is known in advance.
#include "replay/plan.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <string>

#include "commands.hpp"
#include "formats/output.hpp"
#include "json.hpp"
#include "output.hpp"
#include "printable.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/version.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr std::string_view plan_subcommand = "plan";

constexpr const char* plan_explanation =
    "Examples:\n"
    "  weir plan run.weirtrace\n"
    "  weir plan run.weirtrace --step 2 --seconds 10 -o offsets.csv\n"
    "\n"
    "A step is the part of the recording between two markers; step 0 begins with the first\n"
    "marker. Without --step the whole recording is one step.\n"
    "\n"
    "Exit codes:\n"
    "  0   the plan was made\n"
    "  1   the plan was made, but the trace is damaged\n"
    "  2   the trace could not be read, or the output could not be written\n"
    "  64  the command line is invalid";

struct plan_arguments {
  std::string trace;
  std::optional<std::size_t> step;
  double seconds = 2;
  std::uint64_t seed = 1;
  std::string output;
  bool as_json = false;
  bool overwrite = false;
  std::optional<std::uint64_t> device;  // of a snapshot
};

/// Steps of the script, the last of them excluded.
struct window {
  std::size_t from = 0;
  std::size_t to = std::numeric_limits<std::size_t>::max();
};

/// Empty if the recording has no such step.
std::optional<window> window_of(const replay::script& script, std::optional<std::size_t> step) {
  if (!step) return window{};
  if (*step >= script.markers.size()) return std::nullopt;
  window between{.from = script.markers[*step]};
  if (*step + 1 < script.markers.size()) between.to = script.markers[*step + 1];
  return between;
}

std::string offsets_csv(const std::vector<replay::lifetime>& blocks, const replay::plan& plan) {
  std::string text = "offset,size,begin,end\n";
  for (std::size_t i = 0; i < blocks.size(); ++i)
    fmt::format_to(std::back_inserter(text), "{},{},{},{}\n", plan.offsets[i], blocks[i].size,
                   blocks[i].begin, blocks[i].end);
  return text;
}

std::string to_text(const std::string& name, const replay::plan& plan) {
  const auto size = [](std::uint64_t count) {
    return fmt::format("{} bytes ({})", count, to_string(bytes{count}));
  };
  return fmt::format(
      "trace          {}\n"
      "blocks         {}\n"
      "lower bound    {}\n"
      "by size        {}\n"
      "height         {}\n"
      "ratio          {:.4f}\n"
      "tries          {}\n"
      "time           {:.2f} s\n",
      printable(name), plan.offsets.size(), size(plan.bound),
      plan.first_height == 0 && plan.height != 0 ? "not done in this time"
                                                 : size(plan.first_height),
      size(plan.height), plan.ratio(), plan.tries,
      std::chrono::duration<double>{plan.search_time}.count());
}

std::string to_json(const std::string& name, const replay::plan& plan) {
  return json_text({{"weir", version_text()},
                    {"trace", name},
                    {"blocks", plan.offsets.size()},
                    {"lower_bound", plan.bound},
                    {"height_by_size", plan.first_height},
                    {"height", plan.height},
                    {"ratio", plan.ratio()},
                    {"tries", plan.tries},
                    {"seconds", std::chrono::duration<double>{plan.search_time}.count()}});
}

/// Why the recording has no such step.
std::string step_problem(std::size_t step, std::size_t steps) {
  if (steps == 0)
    return fmt::format("the recording has no markers, so step {} does not exist; leave --step out",
                       step);
  if (steps == 1) return fmt::format("expected 0, the only step, got {}", step);
  return fmt::format("expected a step from 0 to {}, got {}", steps - 1, step);
}

int run_plan(const plan_arguments& args) {
  std::optional<output_file> output;
  if (!args.output.empty()) {
    auto opened = output_file::open(args.output, args.overwrite);
    if (!opened) {
      print_error(plan_subcommand, opened.error());
      return failed;
    }
    output.emplace(std::move(*opened));
  }
  const auto recording = read_trace(plan_subcommand, args.trace, args.device);
  if (!recording) return failed;
  int exit_code = warn_if_damaged(plan_subcommand, args.trace, *recording) ? incomplete : 0;
  const auto script = replay::make_script(*recording);
  const auto between = window_of(script, args.step);
  if (!between) {
    const std::size_t steps = script.markers.size();
    print_error(plan_subcommand,
                fmt::format("{}: --step: {}", args.trace, step_problem(*args.step, steps)));
    // The step may stand behind the damage.
    return exit_code == 0 ? bad_usage : failed;
  }
  const auto blocks = replay::lifetimes_between(script, between->from, between->to);
  replay::plan_settings settings;
  settings.improve = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>{args.seconds});
  settings.seed = args.seed;
  const auto plan = [&] {
    const stage_line searching{"searching"};
    return replay::make_plan(blocks, settings);
  }();
  if (output) {
    auto written = formats::write_file(output->path(), offsets_csv(blocks, plan));
    if (written) written = output->finish();
    if (!written) {
      print_error(plan_subcommand, written.error());
      exit_code = failed;
    }
  }
  const std::string name = trace_name(args.trace);
  fmt::print(output && output->is_standard() ? stderr : stdout, "{}",
             args.as_json ? to_json(name, plan) : to_text(name, plan));
  return exit_code;
}

}  // namespace

void add_plan(CLI::App& application, int& exit_code) {
  auto* const plan = application.add_subcommand(
      "plan", "Compute how little memory a recorded step needs if it is known in advance");
  const auto args = std::make_shared<plan_arguments>();
  plan->add_option("trace", args->trace, "A recording; - reads the standard input")
      ->type_name("TRACE")
      ->required();
  plan->add_option("--step", args->step, "Only the step after marker N, counted from 0")
      ->type_name("N")
      ->check(whole_number());
  plan->add_option("--seconds", args->seconds, "How long to search for a better plan")
      ->type_name("S")
      ->check(between(0.0, 86400.0))
      ->capture_default_str();
  plan->add_option("--seed", args->seed, "The seed of the search")
      ->type_name("N")
      ->check(whole_number())
      ->capture_default_str();
  plan->add_option("-o,--output", args->output,
                   "Write the offset of each block to this file, as CSV; - writes to the standard "
                   "output")
      ->type_name("FILE");
  plan->add_flag("-f,--force", args->overwrite, "Replace the file if it exists");
  plan->add_flag("--json", args->as_json, "Write JSON instead of text");
  add_snapshot_device(*plan, "--device", args->device);
  plan->footer(plan_explanation);
  plan->callback([args, &exit_code] { exit_code = run_plan(*args); });
}

}  // namespace weir::command
