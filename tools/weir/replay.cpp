// weir replay: what other policies would have needed for a recorded program.
#include "replay.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "commands.hpp"
#include "traces.hpp"
#include "weir/base/options.hpp"

namespace weir::command {

namespace {

constexpr std::string_view subcommand = "replay";
/// As many simulated machines may live in a process.
constexpr unsigned most_jobs = 8;

constexpr const char* explanation =
    "Exit codes:\n"
    "  0   every trace was played whole under every policy\n"
    "  1   something was missing: a damaged trace, a request that could not be met,\n"
    "      or, on a real device, a block that did not keep what was written to it\n"
    "  2   a trace could not be read, or the device not be used\n"
    "  64  the command line or an environment variable could not be understood";

struct arguments {
  std::vector<std::string> traces;
  std::string policies = "balanced";
  std::string device = "sim";
  std::uint64_t lag_us = 1000;
  std::string capacity;
  unsigned jobs = 0;
  std::string format = "table";
};

/// A trace ready to be played.
struct subject {
  std::string name;
  replay::script script;
  std::vector<recorded_peak> peaks;
};

/// One trace under one policy, and its outcome.
struct task {
  const command::subject* subject = nullptr;
  replay::settings settings;
  result<replay::outcome> outcome = errc::internal;
};

result<replay::settings> settings_of(const arguments& args) {
  replay::settings settings;
  WEIR_TRY_VALUE(target, replay::parse_target(args.device));
  settings.target = target;
  // More would not fit into a time of 64 bits.
  constexpr std::uint64_t longest = 1'000'000'000'000;
  settings.lag = std::chrono::microseconds{std::min(args.lag_us, longest)};
  if (!args.capacity.empty()) {
    const auto size = parse_bytes(args.capacity);
    if (!size || size->count() == 0)
      return error{.code = errc::bad_option,
                   .detail = "\"" + args.capacity + "\" is no size, such as 80GiB"};
    settings.capacity = *size;
  }
  WEIR_TRY_VALUE(environment, options_from_environment());
  settings.driver = environment.driver_path;
  return settings;
}

void play_all(std::vector<task>& tasks, unsigned jobs) {
  std::uint64_t steps = 0;
  for (const task& each : tasks) steps += each.subject->script.steps.size();
  progress_line progress{"replaying", steps};
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    while (true) {
      const std::size_t index = next.fetch_add(1);
      if (index >= tasks.size()) return;
      task& current = tasks[index];
      current.settings.progress = progress.part();
      current.outcome = replay::play(current.subject->script, current.settings);
    }
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < jobs; ++i) others.emplace_back(work);
  work();
  for (std::thread& each : others) each.join();
}

std::optional<std::uint64_t> recorded_under(const subject& subject, replay::policy policy) {
  for (const recorded_peak& each : subject.peaks)
    if (each.policy == replay::name(policy)) return each.reserved.count();
  return std::nullopt;
}

int run(const arguments& args) {
  const auto policies = replay::parse_policies(args.policies);
  const auto settings = settings_of(args);
  if (!policies || !settings) {
    print_error(subcommand, policies ? settings.error() : policies.error());
    return bad_usage;
  }

  // Allocators under replay are not to be recorded or published.
  ::unsetenv("WEIR_RECORD");
  ::unsetenv("WEIR_LIVE");
  int exit_code = 0;
  std::vector<std::unique_ptr<subject>> subjects;
  for (const std::string& path : args.traces) {
    auto recording = read_trace(subcommand, path);
    if (!recording) {
      exit_code = failed;
      continue;
    }
    if (warn_if_damaged(subcommand, path, *recording)) exit_code = std::max(exit_code, incomplete);
    subjects.push_back(std::make_unique<subject>(
        subject{trace_name(path), replay::make_script(*recording), std::move(recording->peaks)}));
  }

  std::vector<task> tasks;
  for (const auto& each : subjects) {
    for (const replay::policy policy : *policies) {
      tasks.push_back({each.get(), *settings});
      tasks.back().settings.policy = policy;
    }
  }
  // A real device is one; on the simulator every replay has its own.
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const unsigned jobs = args.jobs == 0 ? cores : args.jobs;
  play_all(tasks, settings->target.simulated ? std::min(jobs, most_jobs) : 1);

  std::vector<replay_row> rows;
  for (task& each : tasks) {
    const std::string title =
        fmt::format("{}, {}", each.subject->name, replay::name(each.settings.policy));
    if (!each.outcome) {
      print_error(subcommand, fmt::format("{}: {}", title, each.outcome.error().message()));
      exit_code = failed;
      continue;
    }
    replay::outcome& outcome = *each.outcome;
    if (!outcome.is_complete()) exit_code = std::max(exit_code, incomplete);
    if (outcome.ooms != 0)
      print_error(subcommand, fmt::format("{}: {} requests could not be met", title, outcome.ooms));
    if (outcome.mismatches != 0)
      print_error(subcommand, fmt::format("{}: {} blocks did not keep their pattern", title,
                                          outcome.mismatches));
    rows.push_back({each.subject->name, std::move(outcome),
                    recorded_under(*each.subject, each.settings.policy)});
  }
  if (rows.empty() && args.format == "table") return exit_code;
  const std::string device = to_string(settings->target);
  fmt::print("{}", args.format == "csv"    ? to_csv(rows)
                   : args.format == "json" ? to_json(rows, device)
                                           : to_table(rows));
  return exit_code;
}

}  // namespace

void add_replay(CLI::App& application, int& exit_code) {
  auto* const replay = application.add_subcommand(
      "replay", "Play recorded programs against other policies and say what they would have taken");
  const auto args = std::make_shared<arguments>();
  replay->add_option("traces", args->traces, "Recordings, as weir record and others write them")
      ->type_name("TRACE")
      ->required();
  replay
      ->add_option("--policy", args->policies,
                   "A list of torch-default, torch-expandable, balanced, throughput, compact, "
                   "driver-pool and never-move; all is the first six")
      ->type_name("LIST")
      ->capture_default_str();
  replay->add_option("--device", args->device, "Where: sim, cuda or cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  replay
      ->add_option("--lag-us", args->lag_us,
                   "On the simulated device: how long work takes from being queued to being done")
      ->type_name("N")
      ->check(CLI::Validator{CLI::NonNegativeNumber}.description(""))
      ->capture_default_str();
  replay->add_option("--capacity", args->capacity, "The most device memory to take, as in 80GiB")
      ->type_name("SIZE");
  replay->add_option("--jobs", args->jobs, "How many replays at a time, at most 8 (else cores)")
      ->type_name("N")
      ->check(CLI::Validator{CLI::Range(1, 1024)}.description(""));
  replay->add_option("--format", args->format, "table, csv or json")
      ->type_name("FORMAT")
      ->check(CLI::Validator{CLI::IsMember({"table", "csv", "json"})}.description(""))
      ->capture_default_str();
  replay->footer(explanation);
  replay->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace weir::command
