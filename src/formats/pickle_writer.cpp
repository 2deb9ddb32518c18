// SPDX-License-Identifier: Apache-2.0
// Writing pickles of protocol 4; the memo holds words alone.
#include <bit>
#include <limits>
#include <utility>

#include "formats/pickle.hpp"
#include "formats/utf8.hpp"

namespace weir { inline namespace v0 { namespace formats {

pickle_writer::pickle_writer() : out_{"\x80\x04"} {}

void pickle_writer::natural(std::uint64_t value) {
  if (value <= 0xff) {
    out_ += 'K';
    out_ += static_cast<char>(value);
  } else if (value <= 0xffff) {
    out_ += 'M';
    out_ += static_cast<char>(value);
    out_ += static_cast<char>(value >> 8);
  } else {
    // LONG1 with a zero byte on top, so that no bit is taken for the sign.
    out_ += '\x8a';
    const int size = (static_cast<int>(std::bit_width(value)) + 8) / 8;
    out_ += static_cast<char>(size);
    for (int i = 0; i < size; ++i) out_ += i < 8 ? static_cast<char>(value >> (8 * i)) : '\0';
  }
}

void pickle_writer::integer(std::int64_t value) {
  if (value >= 0) return natural(static_cast<std::uint64_t>(value));
  out_ += "\x8a\x08";
  for (int i = 0; i < 8; ++i)
    out_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
}

void pickle_writer::real(double value) {
  out_ += 'G';
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i));
}

void pickle_writer::boolean(bool value) { out_ += value ? '\x88' : '\x89'; }

void pickle_writer::text(std::string_view value) {
  if (!is_utf8(value)) return text(valid_utf8(value));
  if (value.size() <= 0xff) {
    out_ += '\x8c';
    out_ += static_cast<char>(value.size());
  } else {
    value = value.substr(0, std::numeric_limits<std::uint32_t>::max());
    out_ += 'X';
    for (int i = 0; i < 4; ++i) out_ += static_cast<char>(value.size() >> (8 * i));
  }
  out_ += value;
}

void pickle_writer::word(std::string_view value) {
  const auto [known, fresh] = words_.try_emplace(value, static_cast<std::uint32_t>(words_.size()));
  if (fresh) {
    text(value);
    out_ += '\x94';
  } else if (known->second <= 0xff) {
    out_ += 'h';
    out_ += static_cast<char>(known->second);
  } else {
    out_ += 'j';
    for (int i = 0; i < 4; ++i) out_ += static_cast<char>(known->second >> (8 * i));
  }
}

void pickle_writer::begin_list() { out_ += "]("; }
void pickle_writer::next_batch() { out_ += "e("; }
void pickle_writer::end_list() { out_ += 'e'; }
void pickle_writer::begin_dict() { out_ += "}("; }
void pickle_writer::end_dict() { out_ += 'u'; }

void pickle_writer::pair(std::int64_t first, std::int64_t second) {
  integer(first);
  integer(second);
  out_ += '\x86';
}

std::string pickle_writer::finish() && {
  out_ += '.';
  return std::move(out_);
}

}}}  // namespace weir::v0::formats
