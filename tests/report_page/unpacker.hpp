// SPDX-License-Identifier: Apache-2.0
// Reads what a page carries, as the browser does.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace weir::report_test {

/// The text of the element with that id.
inline std::string element(std::string_view page, std::string_view id) {
  const std::string mark = "id=\"" + std::string{id} + "\">";
  const std::size_t from = page.rfind(mark);
  if (from == std::string_view::npos) throw std::runtime_error("no " + mark);
  const std::size_t to = page.find('<', from);
  return std::string{page.substr(from + mark.size(), to - from - mark.size())};
}

inline std::string from_base64(std::string_view text) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char letter : text) {
    if (letter == '=') break;
    const std::size_t value = letters.find(letter);
    if (value == std::string_view::npos) throw std::runtime_error("no base64");
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>((bits >> count) & 0xff);
  }
  return out;
}

inline std::string inflated(std::string_view packed) {
  z_stream stream{};
  if (inflateInit2(&stream, -15) != Z_OK) throw std::runtime_error("inflateInit2");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string out;
  std::string buffer(1 << 16, '\0');
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    state = inflate(&stream, Z_NO_FLUSH);
    out.append(buffer, 0, buffer.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  if (state != Z_STREAM_END) throw std::runtime_error("not deflated");
  if (stream.avail_in != 0) throw std::runtime_error("something follows what is deflated");
  return out;
}

class unpacker {
 public:
  explicit unpacker(std::string packed) : packed_{std::move(packed)} {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(packed_.at(at_++));
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::uint64_t difference(std::uint64_t before) {
    const std::uint64_t packed = number();
    return before + ((packed >> 1) ^ ((packed & 1) != 0 ? ~std::uint64_t{0} : 0));
  }
  std::string text() {
    const std::uint64_t length = number();
    at_ += length;
    return packed_.substr(at_ - length, length);
  }
  [[nodiscard]] bool done() const { return at_ == packed_.size(); }

 private:
  std::string packed_;
  std::size_t at_ = 0;
};

}  // namespace weir::report_test
