// Byte sizes to and from text. Integers throughout: no locale can change what is written or read.
#include "weir/base/bytes.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include "weir/base/checked.hpp"

namespace weir::inline v0 {
namespace {

constexpr std::array<std::string_view, 7> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

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
  std::uint64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, count);
  if (failed != std::errc{}) return std::nullopt;

  std::string_view suffix{rest, static_cast<std::size_t>(end - rest)};
  if (suffix.empty()) return bytes{count};
  if (suffix.front() == ' ') suffix.remove_prefix(1);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (suffix == units[unit])
      return checked_multiply(bytes{count}, std::uint64_t{1} << (10 * unit));
  }
  return std::nullopt;
}

}  // namespace weir::inline v0
