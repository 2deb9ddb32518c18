// weir plan: where a recorded step's blocks could lie if all of it were known before.
#include "replay/plan.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "commands.hpp"
#include "json.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/version.hpp"

namespace weir::command {

namespace {

constexpr std::string_view who = "plan";

constexpr const char* explanation =
    "A step is what lies between two markers of the recording: step 0 begins with the first\n"
    "marker. Without --step the whole recording is one step.\n"
    "\n"
    "Exit codes:\n"
    "  0   the plan was made\n"
    "  1   the plan was made, but the trace is damaged\n"
    "  2   the trace could not be read, or the output not be written\n"
    "  64  the command line could not be understood";

struct arguments {
  std::string trace;
  std::optional<std::size_t> step;
  double seconds = 2;
  std::uint64_t seed = 1;
  std::string output;
  bool json = false;
};

struct window {
  std::uint64_t from = 0;
  std::uint64_t to = std::numeric_limits<std::uint64_t>::max();
};

/// Empty if the recording has no such step.
std::optional<window> window_of(const recording& what, std::optional<std::size_t> step) {
  if (!step) return window{};
  std::vector<std::uint64_t> marks;
  for (const trace_event& each : what.events)
    if (each.kind == trace_kind::marker) marks.push_back(each.time);
  if (*step >= marks.size()) return std::nullopt;
  window found{.from = marks[*step]};
  if (*step + 1 < marks.size()) found.to = marks[*step + 1];
  return found;
}

bool write_offsets(const std::string& path, const std::vector<replay::lifetime>& blocks,
                   const replay::plan& made) {
  // Never over something that is there.
  std::FILE* const file = std::fopen(path.c_str(), "wx");
  if (file == nullptr) return false;
  fmt::print(file, "offset,size,begin,end\n");
  for (std::size_t i = 0; i < blocks.size(); ++i)
    fmt::print(file, "{},{},{},{}\n", made.offsets[i], blocks[i].size, blocks[i].begin,
               blocks[i].end);
  const bool fine = std::ferror(file) == 0;
  return std::fclose(file) == 0 && fine;
}

std::string to_text(const std::string& name, const replay::plan& made) {
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
      name, made.offsets.size(), size(made.bound), size(made.first_height), size(made.height),
      made.ratio(), made.tries, std::chrono::duration<double>{made.took}.count());
}

std::string to_json(const std::string& name, const replay::plan& made) {
  json_writer out;
  out.begin_object();
  out.member("weir", version_text());
  out.member("trace", name);
  out.member("blocks", made.offsets.size());
  out.member("lower_bound", made.bound);
  out.member("height_by_size", made.first_height);
  out.member("height", made.height);
  out.member("ratio", made.ratio());
  out.member("tries", made.tries);
  out.member("seconds", std::chrono::duration<double>{made.took}.count());
  out.end_object();
  return out.text();
}

int run(const arguments& wanted) {
  const auto read = read_trace(who, wanted.trace);
  if (!read) return failed;
  int exit_code = say_if_damaged(who, wanted.trace, *read) ? not_whole : 0;
  const auto between = window_of(*read, wanted.step);
  if (!between) {
    complain(who, fmt::format("{}: there is no step {}", wanted.trace, *wanted.step));
    return bad_usage;
  }
  const auto script = replay::make_script(*read);
  const auto blocks = replay::lifetimes_between(script, between->from, between->to);
  replay::plan_settings how;
  how.improve = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>{wanted.seconds});
  how.seed = wanted.seed;
  const auto made = replay::make_plan(blocks, how);
  if (!wanted.output.empty() && !write_offsets(wanted.output, blocks, made)) {
    complain(who, fmt::format("{}: could not be written, or is there already", wanted.output));
    exit_code = failed;
  }
  const std::string name = trace_name(wanted.trace);
  fmt::print("{}", wanted.json ? to_json(name, made) : to_text(name, made));
  return exit_code;
}

}  // namespace

void add_plan(CLI::App& application, int& exit_code) {
  auto* const plan = application.add_subcommand(
      "plan", "Place a recorded step's blocks knowing all of it before, and say how low that gets");
  const auto wanted = std::make_shared<arguments>();
  plan->add_option("trace", wanted->trace, "A recording")->type_name("TRACE")->required();
  plan->add_option("--step", wanted->step, "Only the step between markers N and N + 1, from 0")
      ->type_name("N");
  plan->add_option("--seconds", wanted->seconds, "How long to look for a better plan")
      ->type_name("S")
      ->check(CLI::Validator{CLI::Range(0.0, 86400.0)}.description(""))
      ->capture_default_str();
  plan->add_option("--seed", wanted->seed, "Where the search begins")
      ->type_name("N")
      ->capture_default_str();
  plan->add_option("-o,--output", wanted->output,
                   "Write where each block lies to this file, as CSV")
      ->type_name("FILE");
  plan->add_flag("--json", wanted->json, "Write JSON instead of text");
  plan->footer(explanation);
  plan->callback([wanted, &exit_code] { exit_code = run(*wanted); });
}

}  // namespace weir::command
