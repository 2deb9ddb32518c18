// SPDX-License-Identifier: Apache-2.0
// The words of misuse.
#include "observe/misuse.hpp"

#include <algorithm>
#include <new>

#include "base/hexadecimal.hpp"

namespace weir { inline namespace v0 { namespace observe {

using detail::hexadecimal;

std::string words_of(const accused_block& block) {
  std::string text = hexadecimal(block.address);
  if (block.size != bytes{}) text += ", " + to_string(block.size);
  if (block.tag != tag{}) text += ", tag \"" + std::string{block.tag.name()} + "\"";
  if (block.stream != stream_id{}) text += ", stream " + std::to_string(block.stream.number());
  return text;
}

std::string position_of(std::uint64_t address, const accused_block& block) {
  const auto bytes_text = [](std::uint64_t count) {
    return std::to_string(count) + (count == 1 ? " byte " : " bytes ");
  };
  const std::uint64_t end = block.address + block.size.count();
  if (address < block.address) return bytes_text(block.address - address) + "before";
  if (address >= end) return bytes_text(address - end + 1) + "after";
  return bytes_text(address - block.address) + "into";
}

namespace {

/// "-4", "1000": from the block's start.
std::string offset_of(std::uint64_t address, const accused_block& block) {
  return address < block.address ? "-" + std::to_string(block.address - address)
                                 : std::to_string(address - block.address);
}

std::string two_digits(std::uint8_t byte) {
  constexpr std::string_view digits = "0123456789abcdef";
  return {digits[byte / 16], digits[byte % 16]};
}

/// "5 bytes behind its end were written, at offsets 1000 to 1004: fd there became 2a 2a 2a 2a 2a".
std::string words_of(const damaged_block& about) {
  const accused_block& block = about.block;
  const std::uint64_t end = block.address + block.size.count();
  std::string text = std::to_string(about.count) + (about.count == 1 ? " byte" : " bytes");
  if (about.after_free) {
    text += about.count == 1 ? " was written after its free" : " were written after its free";
  } else {
    text += about.last < block.address ? " before its start" : "";
    text += about.first >= end ? " after its end" : "";
    text += about.count == 1 ? " was written" : " were written";
  }
  const std::uint64_t length = about.last - about.first + 1;
  if (about.count == 1) {
    text += ", at offset " + offset_of(about.first, block);
  } else {
    text += about.count == length ? ", at offsets " : ", between offsets ";
    text += offset_of(about.first, block) + (about.count == length ? " to " : " and ") +
            offset_of(about.last, block);
  }
  text += ": " + two_digits(about.expected) + " there became";
  const auto shown = std::min<std::uint64_t>(length, about.seen.size());
  for (const std::uint8_t each : about.seen.first(shown)) text += " " + two_digits(each);
  return shown < length ? text + " ..." : text;
}

/// The error with the detail that `words()` makes, or without one.
template <class Words>
error told(error plain, Words&& words) noexcept {
  try {
    plain.set_detail(words());
  } catch (const std::bad_alloc&) {  // the code must do
  }
  return plain;
}

}  // namespace

error double_free(const accused_block& block) noexcept {
  return told({{.code = errc::double_free}}, [&] { return words_of(block) + block.life; });
}

error double_free(std::uint64_t address, const accused_block& freed) noexcept {
  return told({{.code = errc::double_free}}, [&] {
    return hexadecimal(address) + ", in the free memory " + words_of(freed) + freed.life;
  });
}

error foreign_pointer(std::uint64_t address, std::string_view owner) noexcept {
  return told({{.code = errc::foreign_pointer}}, [&] {
    return hexadecimal(address) + " is not memory of this " + std::string{owner};
  });
}

error damaged(const damaged_block& about) noexcept {
  return told({{.code = errc::memory_damaged}},
              [&] { return words_of(about.block) + ": " + words_of(about) + about.block.life; });
}

error foreign_pointer(std::uint64_t address, const accused_block& block) noexcept {
  return told({{.code = errc::foreign_pointer}}, [&] {
    const bool is_inside = address >= block.address && address - block.address < block.size.count();
    if (!is_inside) {
      return hexadecimal(address) + " is " + position_of(address, block) +
             " a block: " + words_of(block) + block.life;
    }
    return hexadecimal(address) + " is inside a block, not its start: " + words_of(block) +
           block.life;
  });
}

error leak(std::string_view what, std::uint64_t count, bytes size,
           std::vector<accused_block> blocks) noexcept {
  constexpr std::size_t most = 8;
  const auto shown = blocks.begin() + static_cast<std::ptrdiff_t>(std::min(most, blocks.size()));
  // By size, and then by address: what a table has in any order is told in one.
  std::partial_sort(blocks.begin(), shown, blocks.end(),
                    [](const accused_block& a, const accused_block& b) {
                      return a.size != b.size ? a.size > b.size : a.address < b.address;
                    });
  return told({{.code = errc::still_live, .requested = size}}, [&] {
    std::string text{what};
    text += " with " + std::to_string(count) + " live blocks of " + to_string(size);
    for (auto each = blocks.begin(); each != shown; ++each)
      text += "\n  " + words_of(*each) + each->life;
    if (blocks.size() > most) text += "\n  and " + std::to_string(blocks.size() - most) + " more";
    return text;
  });
}

}}}  // namespace weir::v0::observe
