// SPDX-License-Identifier: Apache-2.0
// Byte sizes to and from text. Integers throughout: no locale can change what is written or read.
#include "weir/base/bytes.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 {
namespace {

constexpr std::array<std::string_view, 7> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
constexpr std::array<std::string_view, 7> decimal_units = {"", "kB", "MB", "GB", "TB", "PB", "EB"};

/// 0: there is none of that name.
std::uint64_t unit_named(std::string_view name) noexcept {
  if (name == "KB") return 1000;
  std::uint64_t binary = 1;
  std::uint64_t decimal = 1;
  for (std::size_t i = 0; i < units.size(); ++i, binary *= 1024, decimal *= 1000) {
    if (name == units[i]) return binary;
    if (i != 0 && name == decimal_units[i]) return decimal;
  }
  return 0;
}

/// A part of a unit.
struct fraction {
  std::uint64_t numerator = 0;
  std::uint64_t denominator = 1;
};

/// Takes ".25" off the front; nothing if no digit follows the point. Digits behind the eighteenth
/// are less than a byte of any unit.
std::optional<fraction> take_decimals(std::string_view& text) noexcept {
  constexpr std::uint64_t largest = 1'000'000'000'000'000'000;
  fraction decimals;
  std::size_t length = 1;
  for (; length < text.size() && text[length] >= '0' && text[length] <= '9'; ++length) {
    if (decimals.denominator == largest) continue;
    decimals.numerator = decimals.numerator * 10 + static_cast<std::uint64_t>(text[length] - '0');
    decimals.denominator *= 10;
  }
  text.remove_prefix(length);
  if (length == 1) return std::nullopt;
  return decimals;
}

/// The nearest integer, exactly. The product may need more than 64 bits, so it is divided bit by
/// bit while it is made.
std::uint64_t multiply(std::uint64_t unit, const fraction& part) noexcept {
  std::uint64_t quotient = 0;
  std::uint64_t rest = 0;
  for (int bit = 63; bit >= 0; --bit) {
    rest = rest * 2 + ((unit >> bit) & 1) * part.numerator;
    quotient = quotient * 2 + rest / part.denominator;
    rest %= part.denominator;
  }
  return quotient + (rest >= part.denominator - rest ? 1 : 0);
}

}  // namespace

std::string to_string(bytes size) {
  std::size_t unit = 0;
  while (unit + 1 < units.size() && (size.count() >> (10 * (unit + 1))) != 0) ++unit;

  const std::uint64_t one = std::uint64_t{1} << (10 * unit);
  std::uint64_t whole = size.count() / one;
  // The rest is below one unit, so a double holds the fraction to far more than two decimals.
  auto hundredths = static_cast<std::uint64_t>(
      std::lround(static_cast<double>(size.count() % one) / static_cast<double>(one) * 100));
  if (hundredths == 100) {
    hundredths = 0;
    ++whole;
  }
  if (whole == 1024 && unit + 1 < units.size()) {
    whole = 1;
    ++unit;
  }

  std::string text = std::to_string(whole);
  if (hundredths != 0) {
    text += '.';
    text += static_cast<char>('0' + hundredths / 10);
    if (hundredths % 10 != 0) text += static_cast<char>('0' + hundredths % 10);
  }
  text += ' ';
  text += units[unit];
  return text;
}

std::optional<bytes> parse_bytes(std::string_view text) noexcept {
  std::uint64_t whole = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, whole);
  if (failed != std::errc{}) return std::nullopt;
  std::string_view suffix{rest, static_cast<std::size_t>(end - rest)};
  if (suffix.empty()) return bytes{whole};

  const bool has_decimals = suffix.front() == '.';
  const auto decimals = has_decimals ? take_decimals(suffix) : fraction{};
  if (suffix.size() > 1 && suffix.front() == ' ') suffix.remove_prefix(1);
  const std::uint64_t unit = unit_named(suffix);
  if (unit == 0 || !decimals || (has_decimals && unit == 1)) return std::nullopt;
  const auto size = checked_multiply(bytes{whole}, unit);
  if (!size) return std::nullopt;
  return checked_add(*size, bytes{multiply(unit, *decimals)});
}

}}  // namespace weir::v0
