// SPDX-License-Identifier: Apache-2.0
// weir diff: what two recorded programs held at most, and what of it grew.
#include "replay/diff.hpp"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <string>

#include "commands.hpp"
#include "json.hpp"
#include "printable.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/version.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr std::string_view diff_subcommand = "diff";

constexpr const char* diff_explanation =
    "Example:\n"
    "  weir diff yesterday.weirtrace today.weirtrace --top 5\n"
    "\n"
    "Each recording is taken at its own peak.\n"
    "\n"
    "Exit codes:\n"
    "  0   both were compared, whether they differ or not\n"
    "  1   both were compared, but one is damaged\n"
    "  2   one could not be read\n"
    "  64  the command line is invalid";

struct diff_arguments {
  std::string before;
  std::string after;
  std::size_t top = 10;
  bool as_json = false;
  std::optional<std::uint64_t> device;  // of a snapshot
};

struct view {
  const char* title;
  const char* key;
  std::map<std::string, replay::holding> replay::peak_summary::*groups;
};

constexpr view peak_views[] = {{"by tag", "by_tag", &replay::peak_summary::by_tag},
                               {"by size", "by_size", &replay::peak_summary::by_size},
                               {"by site", "by_site", &replay::peak_summary::by_site}};

std::string signed_size(std::int64_t size) {
  const auto count = static_cast<std::uint64_t>(size < 0 ? -size : size);
  return (size < 0 ? "-" : "+") + to_string(bytes{count});
}

std::string to_text(const replay::peak_summary& a, const replay::peak_summary& b, std::size_t top) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{:<20} {:>16} {:>16} {:>17}\n", "", "before", "after", "growth");
  for (const replay::compared_figure& each : replay::compare(a, b)) {
    fmt::format_to(out, "{:<20} {:>16} {:>16} {:>+17}\n", each.title, each.before, each.after,
                   static_cast<std::int64_t>(each.after - each.before));
  }
  for (const view& each : peak_views) {
    const auto changed = replay::changes(a.*each.groups, b.*each.groups);
    if (changed.empty()) continue;
    fmt::format_to(out, "\n{}\n", each.title);
    for (std::size_t i = 0; i < changed.size() && i < top; ++i) {
      const replay::changed_group& group = changed[i];
      fmt::format_to(out, "  {:>12}  {:>7} -> {:<7} blocks  {}\n", signed_size(group.growth()),
                     group.before.blocks, group.after.blocks, printable(group.name));
    }
    if (changed.size() > top)
      fmt::format_to(out, "  and {} more that grew less\n", changed.size() - top);
  }
  return text;
}

std::string to_json(const replay::peak_summary& a, const replay::peak_summary& b) {
  json out{{"weir", version_text()}};
  for (const replay::compared_figure& each : replay::compare(a, b))
    out[each.key] = {{"before", each.before}, {"after", each.after}};
  for (const view& each : peak_views) {
    json& list = out[each.key] = json::array();
    for (const replay::changed_group& group : replay::changes(a.*each.groups, b.*each.groups)) {
      list.push_back({{"name", group.name},
                      {"bytes_before", group.before.bytes},
                      {"bytes_after", group.after.bytes},
                      {"blocks_before", group.before.blocks},
                      {"blocks_after", group.after.blocks}});
    }
  }
  return json_text(out);
}

int run_diff(const diff_arguments& args) {
  const auto before = read_trace(diff_subcommand, args.before, args.device);
  const auto after = read_trace(diff_subcommand, args.after, args.device);
  if (!before || !after) return failed;
  const bool damaged_before = warn_if_damaged(diff_subcommand, args.before, *before);
  const bool damaged_after = warn_if_damaged(diff_subcommand, args.after, *after);
  const auto a = replay::summarize(*before);
  const auto b = replay::summarize(*after);
  fmt::print("{}", args.as_json ? to_json(a, b) : to_text(a, b, args.top));
  return damaged_before || damaged_after ? incomplete : 0;
}

}  // namespace

void add_diff(CLI::App& application, int& exit_code) {
  auto* const diff =
      application.add_subcommand("diff", "Compare the peaks of two recorded programs or snapshots");
  const auto args = std::make_shared<diff_arguments>();
  diff->add_option("before", args->before, "A recording or snapshot")
      ->type_name("TRACE")
      ->required();
  diff->add_option("after", args->after, "A later recording or snapshot")
      ->type_name("TRACE")
      ->required();
  diff->add_option("--top", args->top, "How many groups of each kind to show")
      ->type_name("N")
      ->check(whole_number())
      ->capture_default_str();
  diff->add_flag("--json", args->as_json, "Write JSON, with all groups, instead of text");
  add_snapshot_device(*diff, "--device", args->device);
  diff->footer(diff_explanation);
  diff->callback([args, &exit_code] { exit_code = run_diff(*args); });
}

}  // namespace weir::command
