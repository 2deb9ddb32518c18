// SPDX-License-Identifier: Apache-2.0
// weir replay: replays recorded programs under other policies.
#include "replay.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "commands.hpp"
#include "replay/diff.hpp"
#include "traces.hpp"
#include "weir/base/options.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr std::string_view replay_subcommand = "replay";
/// The most simulated machines that a process can have.
constexpr unsigned most_jobs = 8;

constexpr const char* replay_explanation =
    "Examples:\n"
    "  weir replay run.weirtrace --policy all\n"
    "  weir replay snapshot.pickle --fit --card 24GiB,16GiB\n"
    "  weir replay run.weirtrace --policy balanced,compact --capacity 20GiB --format csv\n"
    "\n"
    "in use is the most that the program needed at one time, taken the most that the policy\n"
    "reserved, ratio taken divided by in use. docs/replay.md explains every column.\n"
    "\n"
    "Exit codes:\n"
    "  0   every trace was replayed completely under every policy\n"
    "  1   incomplete: a damaged trace, a request that failed, or, on a real device,\n"
    "      a block whose contents changed\n"
    "  2   a trace could not be read or contains no allocation, or the device failed\n"
    "  64  the command line or an environment variable is invalid";

struct replay_arguments {
  std::vector<std::string> traces;
  std::string policies = "balanced";
  std::string device = "sim";
  std::optional<std::uint64_t> snapshot_device;
  std::uint64_t lag_us = 1000;
  std::string capacity;
  bool profile = false;
  bool fit = false;
  std::vector<std::string> cards;
  unsigned jobs = 0;
  std::string format = "table";
};

/// A trace ready to be played.
struct subject {
  std::string name;
  replay::script script;
  std::vector<recorded_peak> peaks;
  std::uint64_t reserved_peak = 0;  // as recorded; 0 if it is not
};

/// One trace under one policy, and its outcome.
struct task {
  const command::subject* subject = nullptr;
  replay::settings settings;
  result<replay::outcome> outcome = errc::internal;
  result<replay::fit> fit = errc::internal;  // where that is asked for

  [[nodiscard]] std::string title() const {
    return fmt::format("{}, {}", subject->name, replay::name(settings.policy));
  }
};

result<std::vector<bytes>> cards_of(const replay_arguments& args) {
  std::vector<bytes> cards;
  for (const std::string& each : args.cards) {
    WEIR_TRY_VALUE(card, size_argument("--card", each));
    cards.push_back(card);
  }
  return cards;
}

result<replay::settings> settings_of(const replay_arguments& args) {
  replay::settings settings;
  WEIR_TRY_VALUE(target, replay::parse_target(args.device));
  settings.target = target;
  if (args.fit && !target.simulated)
    return error{{.code = errc::bad_option,
                  .detail = "--fit works with --device sim only, got --device " + args.device}};
  // More would not fit into a time of 64 bits.
  constexpr std::uint64_t longest = 1'000'000'000'000;
  settings.lag = std::chrono::microseconds{std::min(args.lag_us, longest)};
  if (!args.capacity.empty()) {
    WEIR_TRY_VALUE(size, size_argument("--capacity", args.capacity));
    settings.capacity = size;
  }
  WEIR_TRY_VALUE(environment, options_from_environment());
  settings.driver = environment.driver_path;
  return settings;
}

/// Does `work` on every task, some at a time. What one throws is thrown here once all are done.
template <class Work>
void do_all(std::vector<task>& tasks, unsigned jobs, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto go_on = [&]() noexcept {
    while (true) {
      const std::size_t index = next.fetch_add(1);
      if (index >= tasks.size()) return;
      try {
        work(tasks[index]);
      } catch (...) {
        const std::lock_guard lock{mutex};
        thrown = std::current_exception();
        next = tasks.size();
      }
    }
  };
  std::vector<std::thread> others;
  try {
    for (unsigned i = 1; i < jobs; ++i) others.emplace_back(go_on);
  } catch (const std::system_error&) {  // then with those that there are
  }
  go_on();
  for (std::thread& each : others) each.join();
  if (thrown) std::rethrow_exception(thrown);
}

void profile_all(std::vector<task>& tasks) {
  progress_line progress{"profiling", tasks.size()};
  // One at a time: others would be in each other's host times, and the meter is one.
  do_all(tasks, 1, [&](task& current) {
    current.outcome = replay::play_profiled(current.subject->script, current.settings);
    progress.add(1);
  });
}

void play_all(std::vector<task>& tasks, unsigned jobs) {
  std::uint64_t steps = 0;
  for (const task& each : tasks) steps += each.subject->script.steps.size();
  progress_line progress{"replaying", steps};
  do_all(tasks, jobs, [&](task& current) {
    current.settings.progress = progress.part();
    current.outcome = replay::play(current.subject->script, current.settings);
  });
  // All play in the addresses of one process: what found too few left is played by itself.
  for (task& each : tasks) {
    if (jobs == 1 || each.outcome || each.outcome.code() != errc::no_host_memory) continue;
    each.settings.progress = {};
    each.outcome = replay::play(each.subject->script, each.settings);
  }
}

void fit_all(std::vector<task>& tasks, const std::vector<bytes>& cards, unsigned jobs) {
  progress_line progress{"fitting", tasks.size()};
  do_all(tasks, jobs, [&](task& current) {
    current.fit = replay::find_fit(current.subject->script, current.settings, cards);
    progress.add(1);
  });
  for (task& each : tasks) {
    if (jobs == 1 || each.fit || each.fit.code() != errc::no_host_memory) continue;
    each.fit = replay::find_fit(each.subject->script, each.settings, cards);
  }
}

std::optional<std::uint64_t> recorded_under(const subject& subject, replay::policy policy) {
  for (const recorded_peak& each : subject.peaks)
    if (each.policy == replay::name(policy)) return each.reserved.count();
  // A snapshot has no counters, and does not say which policy its allocator had.
  if (subject.peaks.empty() && subject.reserved_peak != 0) return subject.reserved_peak;
  return std::nullopt;
}

/// Prints what was played, and says what was not; the exit code.
int print_replays(std::vector<task>& tasks, const replay_arguments& args,
                  const std::string& device) {
  int exit_code = 0;
  std::vector<replay_row> rows;
  for (task& each : tasks) {
    const std::string title = each.title();
    if (!each.outcome) {
      print_error(replay_subcommand, fmt::format("{}: {}", title, each.outcome.error().message()));
      exit_code = failed;
      continue;
    }
    replay::outcome& outcome = *each.outcome;
    if (!outcome.is_complete()) exit_code = std::max(exit_code, incomplete);
    if (outcome.ooms != 0)
      print_error(replay_subcommand, title + ": " + out_of_memory_text(outcome));
    if (outcome.mismatches != 0)
      print_error(replay_subcommand,
                  fmt::format("{}: the contents of {} block{} changed on the device", title,
                              outcome.mismatches, outcome.mismatches == 1 ? "" : "s"));
    rows.push_back({each.subject->name, std::move(outcome),
                    recorded_under(*each.subject, each.settings.policy)});
  }
  if (rows.empty() && args.format == "table") return exit_code;
  if (args.format == "json")
    fmt::print("{}", to_json(rows, device));
  else if (args.profile)
    fmt::print("{}", args.format == "csv" ? to_profile_csv(rows) : to_profile_table(rows));
  else
    fmt::print("{}", args.format == "csv" ? to_csv(rows) : to_table(rows));
  return exit_code;
}

/// The same of fits.
int print_fits(std::vector<task>& tasks, const std::vector<bytes>& cards,
               const replay_arguments& args, const std::string& device) {
  int exit_code = 0;
  std::vector<fit_row> rows;
  for (task& each : tasks) {
    if (each.fit) {
      rows.push_back({each.subject->name, std::move(*each.fit)});
      continue;
    }
    const bool too_large = each.fit.code() == errc::out_of_memory;
    const error& reason = each.fit.error();
    print_error(replay_subcommand,
                fmt::format("{}: {}", each.title(),
                            reason.detail().empty() ? reason.message() : reason.detail()));
    exit_code = std::max(exit_code, too_large ? incomplete : failed);
  }
  if (rows.empty() && args.format == "table") return exit_code;
  fmt::print("{}", args.format == "csv"    ? to_csv(rows, cards)
                   : args.format == "json" ? to_json(rows, device)
                                           : to_table(rows));
  return exit_code;
}

/// --device N is a snapshot's, as in the other commands; sim, cuda and cuda:N are where to play.
replay_arguments with_snapshot_device(replay_arguments args) {
  const auto is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
  if (args.device.empty() || args.device.size() > 9 ||
      !std::all_of(args.device.begin(), args.device.end(), is_digit))
    return args;
  args.snapshot_device = std::stoul(args.device);
  args.device = "sim";
  return args;
}

int run_replay(const replay_arguments& given) {
  const replay_arguments args = with_snapshot_device(given);
  const auto policies = replay::parse_policies(args.policies);
  const auto settings = settings_of(args);
  const auto cards = cards_of(args);
  if (!policies || !settings || !cards) {
    print_error(replay_subcommand, !policies   ? policies.error()
                                   : !settings ? settings.error()
                                               : cards.error());
    return bad_usage;
  }

  // Allocators under replay are not to be recorded or published.
  ::unsetenv("WEIR_RECORD");
  ::unsetenv("WEIR_LIVE");
  ::unsetenv("WEIR_BUDGET");
  int exit_code = 0;
  std::vector<std::unique_ptr<subject>> subjects;
  for (const std::string& path : args.traces) {
    auto recording = read_trace(replay_subcommand, path, args.snapshot_device);
    if (!recording) {
      exit_code = failed;
      continue;
    }
    if (warn_if_damaged(replay_subcommand, path, *recording))
      exit_code = std::max(exit_code, incomplete);
    if (warn_if_suspended(replay_subcommand, path, *recording) && !args.capacity.empty() &&
        !args.fit) {
      print_error(replay_subcommand, path + ": --capacity is not supported for such a trace");
      exit_code = failed;
      continue;
    }
    subjects.push_back(std::make_unique<subject>(
        subject{trace_name(path), replay::make_script(*recording), std::move(recording->peaks),
                replay::recorded_reserved_peak(*recording)}));
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
  const unsigned wanted = std::min(args.jobs == 0 ? cores : args.jobs, most_jobs);
  const unsigned jobs = settings->target.simulated ? wanted : 1;
  const std::string device = to_string(settings->target);
  if (args.fit) {
    fit_all(tasks, *cards, jobs);
    return std::max(exit_code, print_fits(tasks, *cards, args, device));
  }
  if (args.profile)
    profile_all(tasks);
  else
    play_all(tasks, jobs);
  return std::max(exit_code, print_replays(tasks, args, device));
}

}  // namespace

void add_replay(CLI::App& application, int& exit_code) {
  auto* const replay = application.add_subcommand(
      "replay", "Replay recorded programs under other policies and show what each would reserve");
  const auto args = std::make_shared<replay_arguments>();
  replay
      ->add_option("traces", args->traces,
                   "Recordings of weir, PyTorch snapshots, RMM logs or CSV (docs/replay.md); "
                   "- reads the standard input")
      ->type_name("TRACE")
      ->required();
  replay
      ->add_option("--policy", args->policies,
                   "Policies, separated by commas: torch-default, torch-expandable, balanced, "
                   "throughput, compact, driver-pool, never-move; all means the first six")
      ->type_name("LIST")
      ->capture_default_str();
  replay
      ->add_option("--device", args->device,
                   "Where to replay: sim, cuda or cuda:N; a number alone means --snapshot-device")
      ->type_name("DEVICE")
      ->capture_default_str();
  replay
      ->add_option("--lag-us", args->lag_us,
                   "Simulated time from queueing work to its completion, in microseconds")
      ->type_name("N")
      ->check(whole_number())
      ->capture_default_str();
  replay
      ->add_option("--capacity", args->capacity,
                   "The most device memory to reserve, as in 80GiB or 80GB")
      ->type_name("SIZE");
  auto* const profile =
      replay->add_flag("--profile", args->profile,
                       "Show which step served the requests, with driver calls and time");
  auto* const fit =
      replay->add_flag("--fit", args->fit, "Find the least memory with which each trace completes");
  fit->excludes(profile);
  replay
      ->add_option(
          "--card", args->cards,
          "With --fit: show whether the trace fits on cards of these sizes, as in 24GiB,16GB")
      ->type_name("SIZE")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(fit);
  replay
      ->add_option("--jobs", args->jobs,
                   "Replays at the same time, 1 to 8 (default: number of cores)")
      ->type_name("N")
      ->check(between(1U, most_jobs));
  replay->add_option("--format", args->format, "table, csv or json")
      ->type_name("FORMAT")
      ->check(one_of({"table", "csv", "json"}))
      ->capture_default_str();
  add_snapshot_device(*replay, "--snapshot-device", args->snapshot_device);
  replay->footer(replay_explanation);
  replay->callback([args, &exit_code] { exit_code = run_replay(*args); });
}

}  // namespace weir::command
