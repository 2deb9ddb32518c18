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
#include "replay/fit.hpp"
#include "replay/replay.hpp"
#include "report/page.hpp"
#include "traces.hpp"

namespace weir::command {

namespace {

constexpr std::string_view subcommand = "report";

constexpr const char* explanation =
    "The page shows memory over time, the arena at any moment and what pins its pages,\n"
    "why memory ran out, and the policies side by side. docs/report.md explains it.\n"
    "\n"
    "Exit codes:\n"
    "  0   the report was written\n"
    "  1   the report was written, but the trace is damaged\n"
    "  2   the trace could not be read or played, or the report not be written\n"
    "  64  the command line could not be understood";

struct arguments {
  std::string trace;
  std::string output;
  std::string policies = "torch-default,torch-expandable,balanced";
  std::string place = "balanced";
  bool fit = false;
  bool overwrite = false;
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

/// The policies that the arguments name, and the one that places blocks.
struct policy_choice {
  std::vector<replay::policy> compared;
  replay::policy placing{};
};

std::optional<policy_choice> choose(const arguments& args) {
  policy_choice choice;
  if (args.policies != "none") {
    auto named = replay::parse_policies(args.policies);
    if (!named) {
      print_error(subcommand, named.error());
      return std::nullopt;
    }
    choice.compared = std::move(*named);
  }
  const auto placing = replay::parse_policies(args.place);
  if (!placing) {
    print_error(subcommand, placing.error());
    return std::nullopt;
  }
  choice.placing = placing->front();
  if (placing->size() != 1 || choice.placing == replay::policy::driver_pool) {
    print_error(subcommand,
                "--place wants one policy; driver-pool does not say where its memory is");
    return std::nullopt;
  }
  return choice;
}

int run(const arguments& args) {
  const auto policies = choose(args);
  if (!policies) return bad_usage;
  auto output = output_file::open(args.output, args.overwrite);
  if (!output) {
    print_error(subcommand, output.error());
    return failed;
  }
  const auto recording = read_trace(subcommand, args.trace);
  if (!recording) return failed;
  warn_if_damaged(subcommand, args.trace, *recording);
  report::page_source source{*recording, std::filesystem::path{args.trace}.filename().string()};
  std::optional<report::placement> placement;
  std::optional<replay::policy> placing;
  if (!recording->real_addresses && !recording->events.empty()) placing = policies->placing;
  if (const auto played = play(*recording, policies->compared, placing, source, placement);
      !played) {
    print_error(subcommand, played.error());
    return failed;
  }
  if (args.fit) {
    if (const auto found = find_fits(*recording, policies->compared, source); !found) {
      print_error(subcommand, found.error());
      return failed;
    }
  }
  if (placement) source.placement = &*placement;
  const std::string page = [&] {
    const stage_line making{"making the page"};
    return report::make_page(source);
  }();
  auto written = formats::write_file(output->path(), page);
  if (written) written = output->finish();
  if (!written) {
    print_error(subcommand, written.error());
    return failed;
  }
  fmt::print(output->is_standard() ? stderr : stdout, "{}: {} events, {}\n",
             output->is_standard() ? "standard output" : args.output, recording->events.size(),
             to_string(bytes{page.size()}));
  return recording->damage ? incomplete : 0;
}

}  // namespace

void add_report(CLI::App& application, int& exit_code) {
  auto* const report = application.add_subcommand(
      "report", "Write a recording as one HTML file: where the memory went, and why");
  const auto args = std::make_shared<arguments>();
  report->add_option("trace", args->trace, "The recording; - is the standard input")
      ->required()
      ->type_name("TRACE");
  report->add_option("-o,--output", args->output, "The file to write; - is the standard output")
      ->required()
      ->type_name("FILE");
  report
      ->add_option("--policy", args->policies,
                   "Policies to replay for comparison: a list, all, or none")
      ->type_name("LIST")
      ->capture_default_str();
  report
      ->add_option("--place", args->place,
                   "The policy that places the blocks of a recording without addresses")
      ->type_name("POLICY")
      ->capture_default_str();
  report->add_flag("--fit", args->fit,
                   "Find the least memory with which each of these policies runs the recording");
  report->add_flag("-f,--force", args->overwrite, "Replace the file if it exists");
  report->footer(explanation);
  report->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace weir::command
