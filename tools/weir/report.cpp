// SPDX-License-Identifier: Apache-2.0
// weir report: a recording as one HTML file that opens anywhere.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "formats/output.hpp"
#include "output.hpp"
#include "printable.hpp"
#include "replay/fit.hpp"
#include "replay/replay.hpp"
#include "report/card_report.hpp"
#include "report/history.hpp"
#include "report/page.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr std::string_view report_subcommand = "report";

constexpr const char* report_explanation =
    "Examples:\n"
    "  weir report snapshot.pickle                      writes snapshot.html\n"
    "  weir report before.weirtrace after.weirtrace -o both.html\n"
    "  weir report run.weirtrace --capacity 16GiB --policy all\n"
    "\n"
    "The page shows memory over time, the arena at any moment, what pins its pages, why memory\n"
    "ran out, and the policies side by side. With two recordings it also shows the differences.\n"
    "docs/report.md explains it.\n"
    "\n"
    "Exit codes:\n"
    "  0   the report was written\n"
    "  1   the report was written, but a trace is damaged or lacks events\n"
    "  2   a trace could not be read or replayed, or the report could not be written\n"
    "  64  the command line is invalid";

struct report_arguments {
  std::vector<std::string> traces;  // one, or two to compare
  std::string output;
  std::string policies = "torch-default,torch-expandable,balanced";
  std::string place = "balanced";
  bool fit = false;
  std::string capacity;
  bool overwrite = false;
  std::optional<std::uint64_t> device;  // of a snapshot
};

/// Plays the policies; the one that places the blocks is played once for both.
result<void> play(const recording& recording, const std::vector<replay::policy>& policies,
                  std::optional<replay::policy> placing, report::page_source& source,
                  std::optional<report::placement>& placement) {
  if (policies.empty() && !placing) return {};
  const replay::script script = replay::make_script(recording);
  const bool is_played_apart =
      placing && std::find(policies.begin(), policies.end(), *placing) == policies.end();
  progress_line bar{"playing", script.steps.size() * (policies.size() + (is_played_apart ? 1 : 0))};
  const auto settings = [&](replay::policy policy) {
    replay::settings out{.policy = policy, .capacity = recording.device_capacity, .samples = 1000};
    out.progress = bar.part();
    return out;
  };
  for (const replay::policy policy : policies) {
    if (placing == policy) {
      WEIR_TRY_VALUE(outcome, report::place(script, settings(policy)));
      placement = std::move(outcome.first);
      source.policies.push_back(std::move(outcome.second));
    } else {
      WEIR_TRY_VALUE(outcome, replay::play(script, settings(policy)));
      source.policies.push_back(std::move(outcome));
    }
  }
  if (is_played_apart) {
    WEIR_TRY_VALUE(outcome, report::place(script, settings(*placing)));
    placement = std::move(outcome.first);
  }
  return {};
}

/// How little memory each policy would do with, whatever the recorded program had.
result<void> find_fits(const recording& recording, const std::vector<replay::policy>& policies,
                       report::page_source& source) {
  const replay::script script = replay::make_script(recording);
  progress_line bar{"fitting", policies.size()};
  for (const replay::policy policy : policies) {
    const auto fit = replay::find_fit(script, {.policy = policy});
    const bool known = fit || fit.code() == errc::out_of_memory ||
                       fit.code() == errc::invalid_argument;  // too much, or nothing asked for
    if (!known) return fit.error();
    source.fits.push_back(fit ? fit->capacity : bytes{});
    bar.add(1);
  }
  return {};
}

/// How each policy does on a card of that size.
result<void> try_cards(const recording& recording, const std::vector<replay::policy>& policies,
                       bytes card, report::page_source& source) {
  const replay::script script = replay::make_script(recording);
  progress_line bar{"trying the card", policies.size()};
  for (const replay::policy policy : policies) {
    WEIR_TRY_VALUE(trial, replay::try_card(script, {.policy = policy}, card));
    source.card.push_back(trial);
    bar.add(1);
  }
  return {};
}

/// The policies that the arguments name, the one that places blocks, and the card, if any.
struct policy_choice {
  std::vector<replay::policy> compared;
  replay::policy placing{};
  bytes card{};
};

/// False, with the reason printed, if the size is invalid or no policy is chosen.
bool choose_card(const report_arguments& args, policy_choice& choice) {
  if (args.capacity.empty()) return true;
  const auto size = size_argument("--capacity", args.capacity);
  if (!size) {
    print_error(report_subcommand, size.error());
    return false;
  }
  if (choice.compared.empty()) {
    print_error(report_subcommand, "--capacity needs policies; name them with --policy");
    return false;
  }
  choice.card = *size;
  return true;
}

std::optional<policy_choice> choose(const report_arguments& args) {
  policy_choice choice;
  if (args.policies != "none") {
    auto named = replay::parse_policies(args.policies);
    if (!named) {
      print_error(report_subcommand, named.error());
      return std::nullopt;
    }
    choice.compared = std::move(*named);
  }
  const auto placing = replay::parse_policies(args.place);
  if (!placing) {
    print_error(report_subcommand, placing.error());
    return std::nullopt;
  }
  choice.placing = placing->front();
  if (placing->size() != 1 || choice.placing == replay::policy::driver_pool) {
    print_error(report_subcommand,
                "--place: expected one policy other than driver-pool, got " + args.place);
    return std::nullopt;
  }
  if (!choose_card(args, choice)) return std::nullopt;
  return choice;
}

/// A recording and all that was found out about it. `source` refers to the rest, so it stays put.
struct run_report {
  run_report(recording read, std::string name)
      : recorded{std::move(read)}, source{recorded, std::move(name)} {}
  run_report(const run_report&) = delete;
  run_report& operator=(const run_report&) = delete;

  const recording recorded;
  bool is_incomplete = false;  // damaged, or events were dropped
  std::optional<report::placement> placement;
  report::page_source source;
};

/// Reads and plays one recording; null, with the reason printed, if that cannot be done.
std::unique_ptr<run_report> make_run(const report_arguments& args, const policy_choice& policies,
                                     const std::string& path, std::string name) {
  auto read = read_trace(report_subcommand, path, args.device);
  if (!read) return nullptr;
  const bool is_incomplete = warn_if_damaged(report_subcommand, path, *read);
  if (!policies.compared.empty()) warn_if_suspended(report_subcommand, path, *read);
  auto made = std::make_unique<run_report>(std::move(*read), std::move(name));
  made->is_incomplete = is_incomplete;
  const recording& recorded = made->recorded;
  std::optional<replay::policy> placing;
  if (!recorded.real_addresses && !recorded.events.empty()) placing = policies.placing;
  auto played = play(recorded, policies.compared, placing, made->source, made->placement);
  if (played && args.fit) played = find_fits(recorded, policies.compared, made->source);
  if (played && policies.card.count() != 0)
    played = try_cards(recorded, policies.compared, policies.card, made->source);
  if (!played) {
    print_error(report_subcommand, played.error());
    return nullptr;
  }
  if (made->placement) made->source.placement = &*made->placement;
  return made;
}

/// What the runs are called: their files' names, or the whole paths where those are the same.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths)
    names.push_back(std::filesystem::path{path}.filename().string());
  if (names.size() == 2 && names[0] == names[1]) return paths;
  return names;
}

/// What is said of the card, by run and policy.
std::string card_summary(const std::vector<std::unique_ptr<run_report>>& runs) {
  std::string text;
  for (const auto& run : runs) {
    if (run->source.card.empty()) continue;
    if (runs.size() > 1) text += run->source.file + ":\n";
    const report::history history = report::make_history(run->recorded);
    for (const replay::card_trial& trial : run->source.card)
      text += printable_lines(report::card_text(run->recorded, history, trial));
  }
  return text;
}

/// Where the page goes if no file is named: beside nothing else, in the current folder.
std::string page_name(const std::string& trace) {
  return trace == "-" ? "report.html" : trace_name(trace) + ".html";
}

int report_runs(const report_arguments& args) {
  const auto policies = choose(args);
  if (!policies) return bad_usage;
  const std::string path = args.output.empty() ? page_name(args.traces.front()) : args.output;
  auto output = output_file::open(path, args.overwrite);
  if (!output) {
    print_error(report_subcommand, output.error());
    return failed;
  }
  const std::vector<std::string> names = names_of(args.traces);
  std::vector<std::unique_ptr<run_report>> runs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    runs.push_back(make_run(args, *policies, args.traces[i], names[i]));
    if (runs.back() == nullptr) return failed;
  }
  const std::string page = [&] {
    const stage_line making{"making the page"};
    return runs.size() == 1 ? report::make_page(runs[0]->source)
                            : report::make_page(runs[0]->source, runs[1]->source);
  }();
  auto written = formats::write_file(output->path(), page);
  if (written) written = output->finish();
  if (!written) {
    print_error(report_subcommand, written.error());
    return failed;
  }
  std::size_t events = 0;
  bool is_incomplete = false;
  for (const auto& each : runs) {
    events += each->recorded.events.size();
    is_incomplete = is_incomplete || each->is_incomplete;
  }
  fmt::print(output->is_standard() ? stderr : stdout, "{}: {} events, {}\n{}",
             output->is_standard() ? "standard output" : printable(path), events,
             to_string(bytes{page.size()}), card_summary(runs));
  return is_incomplete ? incomplete : 0;
}

}  // namespace

void add_report(CLI::App& application, int& exit_code) {
  auto* const report = application.add_subcommand(
      "report", "Write one HTML page that shows where a recorded program's memory went");
  const auto args = std::make_shared<report_arguments>();
  report
      ->add_option("traces", args->traces,
                   "A recording, or two to compare; - reads the standard input")
      ->required()
      ->expected(1, 2)
      ->type_name("TRACE");
  report
      ->add_option("-o,--output", args->output,
                   "The file to write (default: the recording's name with .html); - writes to the "
                   "standard output")
      ->type_name("FILE");
  report
      ->add_option("--policy", args->policies,
                   "Policies to compare, separated by commas; all or none")
      ->type_name("LIST")
      ->capture_default_str();
  report
      ->add_option("--place", args->place,
                   "The policy that places the blocks of a recording without addresses")
      ->type_name("POLICY")
      ->capture_default_str();
  report->add_flag("--fit", args->fit,
                   "Find the least memory with which the recording completes under each policy");
  report
      ->add_option("--capacity", args->capacity,
                   "Show whether the recording fits on a card of this size, as in 24GiB or 24GB, "
                   "under each policy, and if not, why")
      ->type_name("SIZE");
  report->add_flag("-f,--force", args->overwrite, "Replace the file if it exists");
  add_snapshot_device(*report, "--device", args->device);
  report->footer(report_explanation);
  report->callback([args, &exit_code] { exit_code = report_runs(*args); });
}

}  // namespace weir::command
