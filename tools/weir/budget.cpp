// SPDX-License-Identifier: Apache-2.0
// weir budget: shows and changes the shares of each card.
#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "json.hpp"
#include "traces.hpp"
#include "weir/base/version.hpp"
#include "weir/share/budget.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr std::string_view budget_subcommand = "budget";

constexpr const char* budget_explanation =
    "Examples:\n"
    "  weir budget                            shows the share of each process on each card\n"
    "  weir budget set trainer --ceiling 40GiB\n"
    "  weir budget clear                      removes the shares of processes that have ended\n"
    "\n"
    "MEMBER is a process's number, PID.N if it has several shares, or a name. The program\n"
    "adopts a changed share within its period.\n"
    "\n"
    "A program joins if it was started with WEIR_BUDGET=floor=8GiB,ceiling=20GiB,priority=2,\n"
    "sets the option budget, or creates a weir::budget_member. docs/budget.md explains it.\n"
    "\n"
    "Exit codes:\n"
    "  0   shares were shown or changed\n"
    "  1   shares were shown, but some budget files cannot be read\n"
    "  2   the member does not exist, the share is invalid, or other users can write the files\n"
    "  64  the command line is invalid";

struct budget_arguments {
  std::string action = "list";
  std::string member{};
  std::string floor{};
  std::string ceiling{};
  std::optional<int> priority{};
  std::string folder{};
  std::string format = "table";
};

/// "7", or "7.2" where the process has several places on all cards together.
std::string number_of(const budget_listing& listing, const budget_row& row) {
  std::size_t count = 0;
  for (const card_budget& card : listing.cards)
    for (const budget_row& each : card.members) count += each.process == row.process ? 1 : 0;
  return count > 1 ? fmt::format("{}.{}", row.process, row.number) : std::to_string(row.process);
}

std::string table_of(const budget_listing& listing) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const card_budget& card : listing.cards) {
    if (card.members.empty()) continue;
    bytes floors{};
    bytes held{};
    for (const budget_row& each : card.members) {
      floors += each.share.floor;
      held += each.held;
    }
    fmt::format_to(out, "{}card {}, {}: floors {}, held {}\n\n", text.empty() ? "" : "\n",
                   card.card, to_string(card.capacity), to_string(floors), to_string(held));
    fmt::format_to(out, "{:>10}  {:<16} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10}\n", "PID", "NAME",
                   "FLOOR", "CEILING", "PRIORITY", "HELD", "ASKED", "GIVEN");
    for (const budget_row& each : card.members)
      fmt::format_to(out, "{:>10}  {:<16} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10}\n",
                     number_of(listing, each), each.name, to_string(each.share.floor),
                     to_string(each.share.ceiling), each.share.priority, to_string(each.held),
                     to_string(each.asked), to_string(each.given));
  }
  return text.empty() ? "no process has a share of a card; start one with "
                        "WEIR_BUDGET=floor=8GiB,ceiling=20GiB\n"
                      : text;
}

std::string json_of(const budget_listing& listing) {
  json cards = json::array();
  for (const card_budget& card : listing.cards) {
    json members = json::array();
    for (const budget_row& each : card.members)
      members.push_back({{"process", each.process},
                         {"number", each.number},
                         {"name", each.name},
                         {"floor", each.share.floor.count()},
                         {"ceiling", each.share.ceiling.count()},
                         {"priority", each.share.priority},
                         {"held", each.held.count()},
                         {"asked", each.asked.count()},
                         {"given", each.given.count()}});
    cards.push_back({{"card", card.card},
                     {"capacity", card.capacity.count()},
                     {"members", std::move(members)}});
  }
  json refused = json::array();
  for (const error& each : listing.refused) refused.push_back(each.detail());
  return json_text(
      json{{"weir", version_text()}, {"cards", std::move(cards)}, {"refused", std::move(refused)}});
}

int list(const budget_arguments& args, const budget_listing& listing) {
  fmt::print("{}", args.format == "json" ? json_of(listing) : table_of(listing));
  for (const error& each : listing.refused) print_error(budget_subcommand, each.detail());
  return listing.refused.empty() ? 0 : incomplete;
}

// --- Changing a share ----------------------------------------------------------------------------

struct chosen {
  std::string card;
  budget_row row;
};

bool is_meant(const budget_row& row, std::string_view member) {
  return member == row.name || member == std::to_string(row.process) ||
         member == fmt::format("{}.{}", row.process, row.number);
}

/// Reads a size of the command line into `to`; false, with the reason printed, if it is invalid.
bool read_option(const std::string& text, std::string_view option, bytes& to) {
  if (text.empty()) return true;
  const auto size = size_argument(option, text, true);
  if (size) to = *size;
  if (!size) print_error(budget_subcommand, size.error());
  return size.has_value();
}

int set_share(const budget_arguments& args, const budget_listing& listing) {
  if (args.floor.empty() && args.ceiling.empty() && !args.priority) {
    print_error(budget_subcommand, "set: missing --floor, --ceiling or --priority");
    return bad_usage;
  }
  std::vector<chosen> meant;
  for (const card_budget& card : listing.cards)
    for (const budget_row& each : card.members)
      if (is_meant(each, args.member)) meant.push_back({card.card, each});
  if (meant.empty()) {
    print_error(
        budget_subcommand,
        fmt::format("member {} does not exist; weir budget lists the members", args.member));
    return failed;
  }
  if (meant.size() > 1) {
    std::string names;
    for (const chosen& each : meant)
      names += fmt::format("{}{}.{}", names.empty() ? "" : ", ", each.row.process, each.row.number);
    print_error(budget_subcommand,
                fmt::format("{} names several members; choose one of {}", args.member, names));
    return failed;
  }
  const chosen& one = meant.front();
  budget_share share = one.row.share;
  if (!read_option(args.floor, "--floor", share.floor)) return bad_usage;
  if (!read_option(args.ceiling, "--ceiling", share.ceiling)) return bad_usage;
  share.priority = args.priority.value_or(share.priority);
  if (const auto changed =
          change_budget(one.card, one.row.process, one.row.number, share, args.folder);
      !changed) {
    print_error(budget_subcommand, changed.error().detail());
    return failed;
  }
  return 0;
}

int clear(const budget_arguments& args) {
  const auto cleared = clear_budgets(args.folder);
  if (!cleared) {
    print_error(budget_subcommand, cleared.error().detail());
    return failed;
  }
  fmt::print("{} share{} removed\n", *cleared, *cleared == 1 ? "" : "s");
  return 0;
}

int run_budget(const budget_arguments& args) {
  if ((args.action == "set") == args.member.empty()) {
    print_error(budget_subcommand, args.action == "set"
                                       ? "set: missing MEMBER, a process's number or a name"
                                       : args.action + " takes no MEMBER; only set does");
    return bad_usage;
  }
  if (args.action == "clear") return clear(args);
  const auto listing = read_budgets(args.folder);
  if (!listing) {
    print_error(budget_subcommand, listing.error().detail());
    return failed;
  }
  return args.action == "set" ? set_share(args, *listing) : list(args, *listing);
}

}  // namespace

void add_budget(CLI::App& application, int& exit_code) {
  auto* const budget = application.add_subcommand(
      "budget", "Show or change the shares that processes have of a card");
  const auto args = std::make_shared<budget_arguments>();
  budget->add_option("action", args->action, "list, set or clear")
      ->type_name("ACTION")
      ->check(one_of({"list", "set", "clear"}))
      ->capture_default_str();
  budget->add_option("member", args->member, "With set: a process's number, PID.N or a name")
      ->type_name("MEMBER");
  budget->add_option("--floor", args->floor, "The memory that the member is guaranteed, as in 8GiB")
      ->type_name("SIZE");
  budget
      ->add_option("--ceiling", args->ceiling,
                   "The most memory that the member may hold, as in 20GiB")
      ->type_name("SIZE");
  budget
      ->add_option("--priority", args->priority,
                   "Between floor and ceiling, higher priorities are served first")
      ->type_name("N")
      ->check(between(-1000, 1000));
  budget
      ->add_option("--folder", args->folder,
                   "The folder of the budget files (default: /dev/shm/weir.budget.UID)")
      ->type_name("FOLDER");
  budget->add_option("--format", args->format, "table or json")
      ->type_name("FORMAT")
      ->check(one_of({"table", "json"}))
      ->capture_default_str();
  budget->footer(budget_explanation);
  budget->callback([args, &exit_code] { exit_code = run_budget(*args); });
}

}  // namespace weir::command
