// SPDX-License-Identifier: Apache-2.0
// The table of weir top.
#include "process_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace weir::command {

namespace {

constexpr std::string_view bold = "\033[1m";
constexpr std::string_view green = "\033[32m";
constexpr std::string_view yellow = "\033[33m";
constexpr std::string_view red = "\033[31m";
constexpr std::string_view colour_off = "\033[0m";

/// Red: others wait for some of it. Yellow: it has more than is its own.
std::string_view colour_of(const process_row& row) {
  if (row.asked != bytes{}) return red;
  if (!row.share) return {};
  return row.reserved > row.share->floor ? yellow : green;
}

std::string share_text(const process_row& row) {
  if (!row.share) return "-";
  return to_string(row.share->floor) + " to " + to_string(row.share->ceiling);
}

/// The cards in use, each once, by name.
std::vector<std::pair<std::string, bytes>> cards_of(const std::vector<process_row>& rows) {
  std::map<std::string, bytes> cards;
  for (const process_row& each : rows) cards.emplace(each.card, each.capacity);
  return {cards.begin(), cards.end()};
}

}  // namespace

std::string sparkline(const std::vector<bytes>& values) {
  constexpr std::array<std::string_view, 8> heights{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::uint64_t most = 0;
  for (const bytes each : values) most = std::max(most, each.count());
  std::string line;
  for (const bytes each : values) {
    const double part =
        most == 0 ? 0 : static_cast<double>(each.count()) / static_cast<double>(most);
    line += heights[std::min<std::size_t>(static_cast<std::size_t>(part * 8), 7)];
  }
  return line;
}

void process_table::update(const live_listing& live, const budget_listing& budgets,
                           std::string (*name_of)(int process)) {
  using key = std::pair<int, std::string>;
  std::map<key, process_row> found;
  for (const live_view& each : live.views) {
    process_row& row = found[{each.process, each.card}];
    row.process = each.process;
    row.card = each.card;
    row.capacity = each.device_total;
    row.live = row.live.value_or(bytes{}) + each.stats.allocated.current;
    row.reserved += each.stats.reserved.current;
  }
  for (const card_budget& card : budgets.cards) {
    for (const budget_row& each : card.members) {
      process_row& row = found[{each.process, card.card}];
      row.process = each.process;
      row.card = card.card;
      row.capacity = card.capacity;
      row.name = each.name;
      // What the page of the budget says is older.
      if (!row.live) row.reserved += each.held;
      budget_share sum = row.share.value_or(budget_share{{}, {}, each.share.priority});
      sum.floor += each.share.floor;
      sum.ceiling = std::min(sum.ceiling + each.share.ceiling, card.capacity);
      sum.priority = std::max(sum.priority, each.share.priority);
      row.share = sum;
      row.asked += each.asked;
    }
  }
  std::erase_if(histories_, [&](const auto& each) { return !found.contains(each.first); });
  rows_.clear();
  for (auto& [where, row] : found) {
    if (row.name.empty()) row.name = name_of(row.process);
    std::vector<bytes>& history = histories_[where];
    history.push_back(row.live.value_or(row.reserved));
    if (history.size() > most_history) history.erase(history.begin());
    row.history = history;
    rows_.push_back(std::move(row));
  }
}

void process_table::sort(std::string_view by) {
  std::stable_sort(rows_.begin(), rows_.end(), [&](const process_row& a, const process_row& b) {
    if (by == "live") return a.live.value_or(bytes{}) > b.live.value_or(bytes{});
    if (by == "reserved") return a.reserved > b.reserved;
    if (by == "name") return a.name < b.name;
    return a.process < b.process;
  });
}

std::string process_table::text(bool coloured) const {
  std::string text;
  const auto out = std::back_inserter(text);
  const auto paint = [&](std::string_view colour) { return coloured ? colour : ""; };
  if (rows_.empty())
    return "no process to show: none publishes its memory or has a share of a card\n"
           "To publish: start the program with WEIR_LIVE=on, or run it under weir record.\n";
  const auto cards = cards_of(rows_);
  for (std::size_t i = 0; i < cards.size(); ++i) {
    bytes reserved{};
    std::size_t count = 0;
    for (const process_row& each : rows_) {
      if (each.card != cards[i].first) continue;
      reserved += each.reserved;
      ++count;
    }
    fmt::format_to(out, "card {}: {}, {} of {} reserved by {} process{}\n", i,
                   cards[i].first.empty() ? "of unknown number" : cards[i].first,
                   to_string(reserved), to_string(cards[i].second), count, count == 1 ? "" : "es");
  }
  fmt::format_to(out, "\n{}{:>8}  {:<16} {:>4} {:>11} {:>11}  {:>22} {:>8}  {}{}\n", paint(bold),
                 "PID", "NAME", "CARD", "LIVE", "RESERVED", "SHARE", "PRIORITY", "HISTORY",
                 paint(colour_off));
  for (const process_row& each : rows_) {
    const auto card = std::find_if(cards.begin(), cards.end(),
                                   [&](const auto& known) { return known.first == each.card; });
    const std::string_view colour = paint(colour_of(each));
    fmt::format_to(out, "{:>8}  {:<16} {:>4} {:>11} {}{:>11}{}  {:>22} {:>8}  {}\n", each.process,
                   each.name, card - cards.begin(), each.live ? to_string(*each.live) : "-", colour,
                   to_string(each.reserved), colour.empty() ? "" : colour_off, share_text(each),
                   each.share ? std::to_string(each.share->priority) : "-",
                   sparkline(each.history));
  }
  return text;
}

json process_table::to_json() const {
  json out = json::array();
  for (const process_row& each : rows_) {
    json history = json::array();
    for (const bytes value : each.history) history.push_back(value.count());
    json row{{"process", each.process},
             {"name", each.name},
             {"card", each.card},
             {"capacity", each.capacity.count()},
             {"live", nullptr},
             {"reserved", each.reserved.count()},
             {"share", nullptr},
             {"asked", each.asked.count()},
             {"history", std::move(history)}};
    if (each.live) row["live"] = each.live->count();
    if (each.share) {
      row["share"] = {{"floor", each.share->floor.count()},
                      {"ceiling", each.share->ceiling.count()},
                      {"priority", each.share->priority}};
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace weir::command
