// SPDX-License-Identifier: Apache-2.0
// Options to and from text. Each type knows how it reads and writes; the table does the rest.
#include "weir/base/options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/environment.hpp"
#include "base/host_memory.hpp"
#include "base/spelling.hpp"

namespace weir { inline namespace v0 {
namespace {

using namespace std::chrono_literals;
using namespace literals;

// --- Choices -------------------------------------------------------------------------------------

template <class T>
struct spelled {
  std::string_view text;
  T value;
};

template <class T>
constexpr std::array<spelled<T>, 0> choices{};
template <>
constexpr std::array<spelled<runtime_choice>, 3> choices<runtime_choice>{{
    {"auto", runtime_choice::automatic},
    {"cuda", runtime_choice::cuda},
    {"sim", runtime_choice::simulated},
}};
template <>
constexpr std::array<spelled<sim_progress>, 3> choices<sim_progress>{{
    {"seeded", sim_progress::seeded},
    {"timed", sim_progress::timed},
    {"manual", sim_progress::manual},
}};

template <>
constexpr std::array<spelled<placement_policy>, 6> choices<placement_policy>{{
    {"balanced", placement_policy::balanced},
    {"throughput", placement_policy::throughput},
    {"compact", placement_policy::compact},
    {"never_move", placement_policy::never_move},
    {"classic", placement_policy::classic},
    {"classic_expandable", placement_policy::classic_expandable},
}};

template <>
constexpr std::array<spelled<crossing_rule>, 2> choices<crossing_rule>{{
    {"all_work", crossing_rule::all_work},
    {"declared_uses", crossing_rule::declared_uses},
}};

template <>
constexpr std::array<spelled<debug_checks>, 3> choices<debug_checks>{{
    {"off", debug_checks::off},
    {"red_zones", debug_checks::red_zones},
    {"guard_pages", debug_checks::guard_pages},
}};

template <>
constexpr std::array<spelled<rdma_use>, 3> choices<rdma_use>{{
    {"auto", rdma_use::automatic},
    {"on", rdma_use::on},
    {"off", rdma_use::off},
}};

template <>
constexpr std::array<spelled<error_printing>, 3> choices<error_printing>{{
    {"auto", error_printing::automatic},
    {"on", error_printing::on},
    {"off", error_printing::off},
}};

template <class T>
concept choice = std::is_enum_v<T>;

// --- The types: read() and write() are each other's inverse -------------------------------------

// A whole number and whatever follows it.
template <std::integral T>
std::optional<std::pair<T, std::string_view>> read_number(std::string_view text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, number);
  if (failed != std::errc{}) return std::nullopt;
  return std::pair{number, std::string_view{rest, static_cast<std::size_t>(end - rest)}};
}

template <class T>
struct text_of;

template <std::integral T>
struct text_of<T> {
  static constexpr std::string_view kind = "whole number";
  static std::optional<T> read(std::string_view text) {
    const auto number = read_number<T>(text);
    if (!number || !number->second.empty()) return std::nullopt;
    return number->first;
  }
  static std::string write(T value) { return std::to_string(value); }
};

template <>
struct text_of<bool> {
  static constexpr std::string_view kind = "switch";
  static std::optional<bool> read(std::string_view text) {
    if (text == "on" || text == "true" || text == "1") return true;
    if (text == "off" || text == "false" || text == "0") return false;
    return std::nullopt;
  }
  static std::string write(bool value) { return value ? "on" : "off"; }
};

template <>
struct text_of<std::string> {
  static constexpr std::string_view kind = "text";
  static std::optional<std::string> read(std::string_view text) {
    // Such text goes to the system, which would stop at a null character or take "" for a default.
    if (text.empty() || text.find('\0') != text.npos) return std::nullopt;
    return std::string{text};
  }
  static std::string write(const std::string& value) { return value; }
};

template <>
struct text_of<bytes> {
  static constexpr std::string_view kind = "size";
  static std::optional<bytes> read(std::string_view text) { return parse_bytes(text); }
  // Exact, unlike to_string(): the largest unit that divides the size.
  static std::string write(bytes value) {
    constexpr std::array<std::string_view, 5> units = {"", "KiB", "MiB", "GiB", "TiB"};
    std::uint64_t count = value.count();
    std::size_t unit = 0;
    while (count != 0 && count % 1024 == 0 && unit + 1 < units.size()) {
      count /= 1024;
      ++unit;
    }
    return std::to_string(count).append(units[unit]);
  }
};

template <>
struct text_of<std::chrono::nanoseconds> {
  static constexpr std::string_view kind = "duration";
  static constexpr std::array<spelled<std::int64_t>, 4> units{
      {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}};

  static std::optional<std::chrono::nanoseconds> read(std::string_view text) {
    const auto number = read_number<std::int64_t>(text);
    if (!number) return std::nullopt;
    const auto& [amount, unit_text] = number.value();
    for (const auto& unit : units) {
      if (unit_text != unit.text) continue;
      std::int64_t count = 0;
      if (__builtin_mul_overflow(amount, unit.value, &count)) return std::nullopt;
      return std::chrono::nanoseconds{count};
    }
    return amount == 0 && unit_text.empty() ? std::optional{0ns} : std::nullopt;
  }
  static std::string write(std::chrono::nanoseconds value) {
    const auto unit = std::find_if(units.begin(), units.end() - 1, [&](const auto& candidate) {
      return value.count() % candidate.value == 0;
    });
    return std::to_string(value.count() / unit->value).append(unit->text);
  }
};

template <choice T>
struct text_of<T> {
  static constexpr std::string_view kind = "choice";
  static std::optional<T> read(std::string_view text) {
    for (const auto& known : choices<T>)
      if (known.text == text) return known.value;
    // What is on or off or neither reads the other words of a switch, too.
    if constexpr (requires { T::on, T::off; }) {
      if (const auto is_on = text_of<bool>::read(text)) return *is_on ? T::on : T::off;
    }
    return std::nullopt;
  }
  static std::string write(T value) {
    for (const auto& known : choices<T>)
      if (known.value == value) return std::string{known.text};
    // A number cast to the enum by the caller: shown as it is, and refused when read back.
    return std::to_string(static_cast<int>(value));
  }
};

// --- What a row allows --------------------------------------------------------------------------

struct anything {};
constexpr anything any;

template <class T>
struct interval {
  T least;
  T most;
};
template <class T>
constexpr interval<T> between(T least, T most) {
  return {least, most};
}
constexpr interval<std::chrono::nanoseconds> between(std::chrono::nanoseconds least,
                                                     std::chrono::nanoseconds most) {
  return {least, most};
}

template <class T>
bool allows(anything, const T&) {
  return true;
}
template <class T>
bool allows(const interval<T>& range, const T& value) {
  return range.least <= value && value <= range.most;
}

template <class T>
std::string describe(anything) {
  std::string list;
  if constexpr (choice<T>) {
    for (const auto& known : choices<T>) {
      if (!list.empty()) list += ", ";
      list += known.text;
    }
  }
  return list;
}
template <class T>
std::string describe(const interval<T>& range) {
  return text_of<T>::write(range.least) + " to " + text_of<T>::write(range.most);
}

// --- Errors -------------------------------------------------------------------------------------

error bad_option(std::string detail) {
  return {{.code = errc::bad_option, .detail = std::move(detail)}};
}

std::string in_quotes(std::string_view text) { return '"' + std::string{text} + '"'; }

template <class T, class Values>
result<void> assign(T& target, std::string_view name, std::string_view value, const Values& values,
                    std::string_view unit) {
  std::optional<T> read = text_of<T>::read(value);
  if (read && allows(values, *read)) {
    target = std::move(*read);
    return {};
  }
  std::string detail = std::string{name} + ": expected ";
  const std::string range = describe<T>(values);
  if (choice<T>) {
    detail += "one of " + range;
  } else {
    detail.append("a ").append(text_of<T>::kind);
    if (!range.empty()) detail += " from " + range;
  }
  if (!unit.empty()) detail.append(" (").append(unit).append(")");
  detail += ", got " + in_quotes(value);
  return bad_option(std::move(detail));
}

constexpr std::array option_names = {
#define WEIR_OPTION(name, type, initial, values, unit, environment, meaning) \
  std::string_view{#name},
#include "weir/base/options.def"
};

error unknown_option(std::string_view name) {
  // Names come from outside and may be of any length; only a beginning can resemble an option.
  const std::string_view shown = name.substr(0, 64);
  const auto nearest = *std::min_element(
      option_names.begin(), option_names.end(), [&](std::string_view a, std::string_view b) {
        return detail::edit_distance(shown, a) < detail::edit_distance(shown, b);
      });
  return bad_option("unknown option " + in_quotes(shown) + "; did you mean " + in_quotes(nearest) +
                    "?");
}

// The list's entry at the front of `rest`, unescaped, which it leaves behind.
std::string take_entry(std::string_view& rest) {
  std::string entry;
  std::size_t at = 0;
  for (; at < rest.size() && rest[at] != ','; ++at) {
    if (rest[at] == '\\' && at + 1 < rest.size()) ++at;
    entry += rest[at];
  }
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return entry;
}

}  // namespace

std::string to_string(runtime_choice choice) { return text_of<runtime_choice>::write(choice); }
std::string to_string(sim_progress progress) { return text_of<sim_progress>::write(progress); }
std::string to_string(placement_policy policy) { return text_of<placement_policy>::write(policy); }
std::string to_string(crossing_rule rule) { return text_of<crossing_rule>::write(rule); }
std::string to_string(debug_checks checks) { return text_of<debug_checks>::write(checks); }
std::string to_string(rdma_use use) { return text_of<rdma_use>::write(use); }
std::string to_string(error_printing when) { return text_of<error_printing>::write(when); }

result<void> set(options& target, std::string_view name, std::string_view value) try {
#define WEIR_OPTION(member, type, initial, values, unit, environment, meaning) \
  if (name == #member) return assign(target.member, #member, value, values, unit);
#include "weir/base/options.def"
  return unknown_option(name);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> set_all(options& target, std::string_view list) try {
  options changed = target;
  while (!list.empty()) {
    const std::string entry = take_entry(list);
    const std::size_t equals = entry.find('=');
    if (equals == entry.npos) return bad_option("expected name=value, got " + in_quotes(entry));
    WEIR_TRY(set(changed, std::string_view{entry}.substr(0, equals),
                 std::string_view{entry}.substr(equals + 1)));
  }
  target = std::move(changed);
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<std::string> get(const options& source, std::string_view name) try {
#define WEIR_OPTION(member, type, initial, values, unit, environment, meaning) \
  if (name == #member) return text_of<type>::write(source.member);
#include "weir/base/options.def"
  return unknown_option(name);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

std::string to_string(const options& source) {
  std::string list;
  const auto append = [&](std::string_view name, std::string_view value) {
    if (!list.empty()) list += ',';
    list.append(name) += '=';
    for (const char letter : value) {
      if (letter == ',' || letter == '\\') list += '\\';
      list += letter;
    }
  };
#define WEIR_OPTION(member, type, initial, values, unit, environment, meaning) \
  append(#member, text_of<type>::write(source.member));
#include "weir/base/options.def"
  return list;
}

result<options> options_from_environment(const environment& source, options initial) try {
  const auto read = [&](const char* name, const char* variable) -> result<void> {
    std::string_view value;
    if (!source) {
      value = detail::environment_value(variable);
    } else if (const char* const given = source(variable); given != nullptr) {
      value = given;
    }
    if (value.empty()) return {};
    auto done = set(initial, name, value);
    if (!done && done.code() == errc::bad_option)
      return bad_option(std::string{variable} + ": " + done.error().detail());
    return done;
  };
#define WEIR_OPTION(member, type, first, values, unit, variable, meaning) \
  WEIR_TRY(read(#member, variable));
#include "weir/base/options.def"
  return initial;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

namespace {

/// Sets the option from its variable, unless that is unset. What cannot be read is reported.
void read_variable(options& target, std::string_view name, const char* variable) {
  const std::string_view value = detail::environment_value(variable);
  if (value.empty()) return;
  if (const auto done = set(target, name, value); !done)
    detail::report_unavailable(variable, done.error());
}

}  // namespace

options detail::environment_defaults(options initial) {
#define WEIR_OPTION(member, type, first, values, unit, variable, meaning) \
  read_variable(initial, #member, variable);
#include "weir/base/options.def"
  return initial;
}

namespace {

template <class T>
T value_of(T options::*option) {
  options values;
#define WEIR_OPTION(member, type, first, allowed, unit, variable, meaning)    \
  if constexpr (std::is_same_v<T, type>) {                                    \
    if (option == &options::member) read_variable(values, #member, variable); \
  }
#include "weir/base/options.def"
  return values.*option;
}

}  // namespace

bool detail::environment_default(bool options::*option) { return value_of(option); }
int detail::environment_default(int options::*option) { return value_of(option); }
bytes detail::environment_default(bytes options::*option) { return value_of(option); }
crossing_rule detail::environment_default(crossing_rule options::*option) {
  return value_of(option);
}
debug_checks detail::environment_default(debug_checks options::*option) { return value_of(option); }
placement_policy detail::environment_default(placement_policy options::*option) {
  return value_of(option);
}
rdma_use detail::environment_default(rdma_use options::*option) { return value_of(option); }

std::vector<option_info> describe_options() {
  const options defaults;
  std::vector<option_info> rows;
  // Parameters are named apart from option_info's members, which the macro must not replace.
#define WEIR_OPTION(member, member_type, first, allowed, counted_in, variable, sentence) \
  rows.push_back({.name = #member,                                                       \
                  .type = std::string{text_of<member_type>::kind},                       \
                  .initial = text_of<member_type>::write(defaults.member),               \
                  .values = describe<member_type>(allowed),                              \
                  .unit = counted_in,                                                    \
                  .environment = variable,                                               \
                  .meaning = sentence});
#include "weir/base/options.def"
  return rows;
}

}}  // namespace weir::v0
