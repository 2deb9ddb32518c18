// SPDX-License-Identifier: Apache-2.0
// Naming frames.
#include "formats/frames.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>
#include <vector>

#include "base/hexadecimal.hpp"
#include "formats/debug_information.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

bool is_hexadecimal(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_library_frame(std::string_view frame) {
  constexpr std::array<std::string_view, 8> marks{"/torch/",  "site-packages", "dist-packages",
                                                  "c10::",    "at::",          "weir::",
                                                  "<frozen ", "/usr/include/"};
  return std::any_of(marks.begin(), marks.end(), [&](std::string_view mark) {
    return frame.find(mark) != std::string_view::npos;
  });
}

}  // namespace

std::optional<coded_frame> parse_frame(std::string_view frame) {
  constexpr std::string_view build_mark = " (build ";
  const auto build = frame.rfind(build_mark);
  if (build == frame.npos || !frame.ends_with(')')) return {};
  coded_frame parsed;
  parsed.build = frame.substr(build + build_mark.size());
  parsed.build.pop_back();
  std::string_view place = frame.substr(0, build);
  const auto plus = place.rfind("+0x");
  if (plus == place.npos || !is_hexadecimal(parsed.build)) return {};
  const std::string_view digits = place.substr(plus + 3);
  const auto read =
      std::from_chars(digits.data(), digits.data() + digits.size(), parsed.address, 16);
  if (read.ec != std::errc{} || read.ptr != digits.data() + digits.size()) return {};
  place = place.substr(0, plus);
  // A name ends in its offset; the name of a file may have anything in it.
  const auto named = place.find(" at /");
  if (named != place.npos && place.substr(0, named).rfind("+0x") != place.npos) {
    parsed.function = place.substr(0, named);
    place.remove_prefix(named + 4);
  }
  parsed.file = place;
  return parsed;
}

std::string plain_text(const coded_frame& frame) {
  return frame.function.empty() ? frame.file + "+" + detail::hexadecimal(frame.address)
                                : frame.function + " at " + frame.file;
}

std::string_view site_frame(const recording& recording, std::uint32_t stack) {
  if (stack == 0 || stack > recording.stacks.size()) return {};
  std::string_view innermost;
  for (const std::uint32_t number : recording.stacks[stack - 1]) {
    if (number >= recording.frames.size()) continue;
    const std::string& frame = recording.frames[number];
    if (!is_library_frame(frame)) return frame;
    if (innermost.empty()) innermost = frame;
  }
  return innermost;
}

void name_frames(recording& recording) {
  std::vector<std::string> frames;
  std::map<std::string, std::uint32_t> numbers;
  const auto number_of = [&](std::string text) {
    const auto [entry, is_new] =
        numbers.try_emplace(std::move(text), static_cast<std::uint32_t>(frames.size()));
    if (is_new) frames.push_back(entry->first);
    return entry->second;
  };
  debug_information files;
  std::vector<std::vector<std::uint32_t>> meant;  // by the old number, innermost first
  for (const std::string& each : recording.frames) {
    std::vector<std::uint32_t>& texts = meant.emplace_back();
    const auto coded = parse_frame(each);
    if (coded) {
      for (std::string& line : files.lines_at(*coded)) texts.push_back(number_of(std::move(line)));
    }
    if (texts.empty()) texts.push_back(number_of(coded ? plain_text(*coded) : each));
  }
  for (std::vector<std::uint32_t>& stack : recording.stacks) {
    std::vector<std::uint32_t> named;
    for (const std::uint32_t each : stack) {
      if (each >= meant.size()) continue;
      named.insert(named.end(), meant[each].begin(), meant[each].end());
    }
    stack = std::move(named);
  }
  recording.frames = std::move(frames);
}

}}}  // namespace weir::v0::formats
