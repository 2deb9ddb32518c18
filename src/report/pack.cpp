// SPDX-License-Identifier: Apache-2.0
// The encoding of numbers and texts in the page.
#include "report/pack.hpp"

#include <zlib.h>

#include <cstddef>
#include <limits>
#include <new>

namespace weir { inline namespace v0 { namespace report {

packer& packer::number(std::uint64_t value) {
  while (value >= 0x80) {
    packed_ += static_cast<char>(0x80 | (value & 0x7f));
    value >>= 7;
  }
  packed_ += static_cast<char>(value);
  return *this;
}

packer& packer::difference(std::uint64_t value, std::uint64_t previous) {
  // Wraps where the two are further apart than half the numbers, and wraps back when unpacked.
  const std::uint64_t change = value - previous;
  return number((change << 1) ^ ((change >> 63) != 0 ? ~std::uint64_t{0} : 0));
}

packer& packer::text(std::string_view value) {
  number(value.size());
  packed_ += value;
  return *this;
}

std::string deflated(std::string_view plain) {
  z_stream stream{};
  constexpr int raw_window = -15;  // negative: no header
  if (deflateInit2(&stream, 6, Z_DEFLATED, raw_window, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc{};
  }
  // A chunk is far below the 4 GiB that zlib can be given at once, but a text in the recording may
  // be of any length.
  constexpr std::size_t most = std::numeric_limits<uInt>::max() / 2;
  std::string out;
  std::string buffer(64 << 10, '\0');
  int status = Z_OK;
  do {
    const std::size_t part = plain.size() < most ? plain.size() : most;
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
    stream.avail_in = static_cast<uInt>(part);
    plain.remove_prefix(part);
    do {
      stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream.avail_out = static_cast<uInt>(buffer.size());
      status = deflate(&stream, plain.empty() ? Z_FINISH : Z_NO_FLUSH);
      out.append(buffer, 0, buffer.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  } while (status != Z_STREAM_END);
  deflateEnd(&stream);
  return out;
}

std::string base64(std::string_view plain) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((plain.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < plain.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto byte = i + k < plain.size() ? static_cast<unsigned char>(plain[i + k]) : 0U;
      group = (group << 8) | byte;
    }
    for (std::size_t k = 0; k < 4; ++k) {
      const bool padding = i + k > plain.size();
      out += padding ? '=' : letters[(group >> (18 - 6 * k)) & 63];
    }
  }
  return out;
}

}}}  // namespace weir::v0::report
