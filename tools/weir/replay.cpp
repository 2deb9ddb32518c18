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

constexpr std::string_view who = "replay";
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

/// One trace under one policy, and what came of it.
struct task {
  const subject* what = nullptr;
  replay::settings how;
  result<replay::outcome> came = errc::internal;
};

result<replay::settings> settings_of(const arguments& wanted) {
  replay::settings made;
  WEIR_TRY_VALUE(where, replay::target_named(wanted.device));
  made.where = where;
  // More would not fit into a time of 64 bits.
  constexpr std::uint64_t longest = 1'000'000'000'000;
  made.lag = std::chrono::microseconds{std::min(wanted.lag_us, longest)};
  if (!wanted.capacity.empty()) {
    const auto size = parse_bytes(wanted.capacity);
    if (!size || size->count() == 0)
      return error{.code = errc::bad_option,
                   .detail = "\"" + wanted.capacity + "\" is no size, such as 80GiB"};
    made.capacity = *size;
  }
  WEIR_TRY_VALUE(environment, options_from_environment());
  made.driver = environment.driver_path;
  return made;
}

void play_all(std::vector<task>& tasks, unsigned jobs) {
  std::uint64_t steps = 0;
  for (const task& each : tasks) steps += each.what->script.steps.size();
  progress_line progress{"replaying", steps};
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    while (true) {
      const std::size_t mine = next.fetch_add(1);
      if (mine >= tasks.size()) return;
      task& now = tasks[mine];
      now.how.progress = [&progress, last = std::size_t{0}](std::size_t done) mutable {
        progress.add(done - last);
        last = done;
      };
      now.came = replay::play(now.what->script, now.how);
    }
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < jobs; ++i) others.emplace_back(work);
  work();
  for (std::thread& each : others) each.join();
}

std::optional<std::uint64_t> recorded_under(const subject& what, replay::policy how) {
  for (const recorded_peak& each : what.peaks)
    if (each.policy == replay::name(how)) return each.reserved;
  return std::nullopt;
}

int run(const arguments& wanted) {
  const auto policies = replay::policies_named(wanted.policies);
  const auto settings = settings_of(wanted);
  if (!policies || !settings) {
    complain(who, policies ? settings.error() : policies.error());
    return bad_usage;
  }

  // Allocators under replay are nobody's to record or to watch.
  ::unsetenv("WEIR_RECORD");
  ::unsetenv("WEIR_LIVE");
  int exit_code = 0;
  std::vector<std::unique_ptr<subject>> subjects;
  for (const std::string& path : wanted.traces) {
    auto read = read_trace(who, path);
    if (!read) {
      exit_code = failed;
      continue;
    }
    if (say_if_damaged(who, path, *read)) exit_code = std::max(exit_code, not_whole);
    subjects.push_back(std::make_unique<subject>(
        subject{trace_name(path), replay::make_script(*read), std::move(read->peaks)}));
  }

  std::vector<task> tasks;
  for (const auto& each : subjects) {
    for (const replay::policy how : *policies) {
      tasks.push_back({each.get(), *settings});
      tasks.back().how.how = how;
    }
  }
  // A real device is one; on the simulator every replay has its own.
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const unsigned jobs = wanted.jobs == 0 ? cores : wanted.jobs;
  play_all(tasks, settings->where.simulated ? std::min(jobs, most_jobs) : 1);

  std::vector<replay_row> rows;
  for (task& each : tasks) {
    const std::string what = fmt::format("{}, {}", each.what->name, replay::name(each.how.how));
    if (!each.came) {
      complain(who, fmt::format("{}: {}", what, each.came.error().message()));
      exit_code = failed;
      continue;
    }
    replay::outcome& came = *each.came;
    if (!came.whole()) exit_code = std::max(exit_code, not_whole);
    if (came.ooms != 0)
      complain(who, fmt::format("{}: {} requests could not be met", what, came.ooms));
    if (came.mismatches != 0)
      complain(who, fmt::format("{}: {} blocks did not keep their pattern", what, came.mismatches));
    rows.push_back({each.what->name, std::move(came), recorded_under(*each.what, each.how.how)});
  }
  if (rows.empty() && wanted.format == "table") return exit_code;
  const std::string device = to_string(settings->where);
  fmt::print("{}", wanted.format == "csv"    ? to_csv(rows)
                   : wanted.format == "json" ? to_json(rows, device)
                                             : to_table(rows));
  return exit_code;
}

}  // namespace

void add_replay(CLI::App& application, int& exit_code) {
  auto* const replay = application.add_subcommand(
      "replay", "Play recorded programs against other policies and say what they would have taken");
  const auto wanted = std::make_shared<arguments>();
  replay->add_option("traces", wanted->traces, "Recordings, as weir record and others write them")
      ->type_name("TRACE")
      ->required();
  replay
      ->add_option("--policy", wanted->policies,
                   "A list of torch-default, torch-expandable, balanced, throughput, compact, "
                   "driver-pool and never-move; all is the first six")
      ->type_name("LIST")
      ->capture_default_str();
  replay->add_option("--device", wanted->device, "Where: sim, cuda or cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  replay
      ->add_option("--lag-us", wanted->lag_us,
                   "On the simulated device: how long work takes from being queued to being done")
      ->type_name("N")
      ->check(CLI::Validator{CLI::NonNegativeNumber}.description(""))
      ->capture_default_str();
  replay->add_option("--capacity", wanted->capacity, "The most device memory to take, as in 80GiB")
      ->type_name("SIZE");
  replay->add_option("--jobs", wanted->jobs, "How many replays at a time, at most 8 (else cores)")
      ->type_name("N")
      ->check(CLI::Validator{CLI::Range(1, 1024)}.description(""));
  replay->add_option("--format", wanted->format, "table, csv or json")
      ->type_name("FORMAT")
      ->check(CLI::Validator{CLI::IsMember({"table", "csv", "json"})}.description(""))
      ->capture_default_str();
  replay->footer(explanation);
  replay->callback([wanted, &exit_code] { exit_code = run(*wanted); });
}

}  // namespace weir::command
