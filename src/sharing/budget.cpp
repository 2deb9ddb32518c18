// SPDX-License-Identifier: Apache-2.0
// Budgets from outside: read, changed and cleared by other processes; and their text.
#include "weir/share/budget.hpp"

#include <algorithm>
#include <charconv>
#include <new>
#include <utility>

#include "base/member_list.hpp"
#include "sharing/budget_page.hpp"

namespace weir { inline namespace v0 {
namespace {

using budget::locked_page;
using budget::place;

error no_host_memory() {
  return {{.code = errc::no_host_memory, .detail = "out of host memory while reading budgets"}};
}

}  // namespace

result<budget_listing> read_budgets(const std::string& folder) try {
  budget_listing listing;
  WEIR_TRY_VALUE(cards, budget::cards_in(folder));
  for (const std::string& card : cards) {
    const auto page = locked_page::open(folder, card, locked_page::purpose::look);
    if (!page) {
      listing.refused.push_back(page.error());
      continue;
    }
    card_budget one{.card = card, .capacity = page->capacity(), .members = {}};
    for (const place& each : page->content().places)
      if (!each.is_free()) one.members.push_back(budget::row_of(each));
    listing.cards.push_back(std::move(one));
  }
  return listing;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> change_budget(std::string_view card, int process, int number,
                           const budget_share& share, const std::string& folder) try {
  WEIR_TRY_VALUE(page, locked_page::open(folder, card, locked_page::purpose::change));
  for (std::size_t i = 0; i < budget::most_members; ++i) {
    const place& each = page.content().places[i];
    if (each.is_free() || each.process != process || each.number != number) continue;
    return page.write_share(i, each, share);
  }
  return error{{.code = errc::not_found,
                .detail = "process " + std::to_string(process) + " is no longer a member"}};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<std::size_t> clear_budgets(const std::string& folder) try {
  std::size_t count = 0;
  WEIR_TRY_VALUE(cards, budget::cards_in(folder));
  for (const std::string& card : cards) {
    WEIR_TRY_VALUE(page, locked_page::open(folder, card, locked_page::purpose::change));
    count += page.dead();
  }
  return count;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

// --- Text ----------------------------------------------------------------------------------------

namespace {

error bad_budget(std::string detail) {
  return {{.code = errc::bad_option, .detail = "budget: " + std::move(detail)}};
}

template <class Number>
bool read_number(std::string_view text, Number& to) {
  const char* const end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, to);
  return status == std::errc{} && rest == end;
}

bool read_size(std::string_view text, bytes& to) {
  const auto size = parse_bytes(text);
  if (size) to = *size;
  return size.has_value();
}

/// "50ms" or "50".
bool read_time(std::string_view text, std::chrono::milliseconds& to) {
  if (text.ends_with("ms")) text.remove_suffix(2);
  std::int32_t count = 0;
  if (!read_number(text, count) || count < 0) return false;
  to = std::chrono::milliseconds{count};
  return true;
}

bool read_text(std::string_view text, std::string& to) {
  to = text;
  return !text.empty() && text.find('\0') == text.npos;
}

}  // namespace

result<budget_options> parse_budget(std::string_view text) try {
  budget_options options;
  std::vector<std::string_view> seen;
  while (!text.empty()) {
    const auto end = std::min(text.find_first_of(", "), text.size());
    const std::string_view entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty()) continue;
    const auto equals = entry.find('=');
    if (equals == entry.npos)
      return bad_budget('"' + std::string{entry} + "\": expected name=value");
    const std::string_view name = entry.substr(0, equals);
    const std::string_view value = entry.substr(equals + 1);
    bool is_read = false;
    if (name == "floor") {
      is_read = read_size(value, options.share.floor);
    } else if (name == "ceiling") {
      is_read = read_size(value, options.share.ceiling);
    } else if (name == "priority") {
      is_read = read_number(value, options.share.priority);
    } else if (name == "name") {
      is_read = read_text(value, options.name);
    } else if (name == "folder") {
      is_read = read_text(value, options.folder);
    } else if (name == "period") {
      is_read = read_time(value, options.period);
    } else if (name == "patience") {
      is_read = read_time(value, options.patience);
    } else {
      return bad_budget(
          '"' + std::string{name} +
          "\" is unknown; expected floor, ceiling, priority, name, folder, period or patience");
    }
    if (!is_read) return bad_budget(std::string{name} + " cannot be \"" + std::string{value} + '"');
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      return bad_budget(std::string{name} + " is given twice");
    seen.push_back(name);
  }
  return options;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

std::string to_string(const budget_share& share) {
  detail::member_list members;
  members.add("floor", share.floor)
      .add("ceiling", share.ceiling == bytes::max() ? "none" : to_string(share.ceiling))
      .add("priority", share.priority);
  return std::move(members).text();
}

std::string to_string(const budget_row& row) {
  detail::member_list members;
  members.add("process", row.process)
      .add("number", row.number)
      .add("name", row.name)
      .add("floor", row.share.floor)
      .add("ceiling", row.share.ceiling)
      .add("priority", row.share.priority)
      .add("held", row.held)
      .add("asked", row.asked)
      .add("given", row.given);
  return std::move(members).text();
}

std::string to_string(const card_budget& budget) {
  detail::member_list members;
  members.add("card", budget.card).add("capacity", budget.capacity);
  std::string text = std::move(members).text();
  for (const budget_row& each : budget.members) text += "\n" + to_string(each);
  return text;
}

std::string to_string(const budget_listing& listing) {
  std::string text = std::to_string(listing.cards.size()) + " cards";
  for (const card_budget& each : listing.cards) text += "\n" + to_string(each);
  for (const error& each : listing.refused) text += "\nrefused " + each.message();
  return text;
}

}}  // namespace weir::v0
