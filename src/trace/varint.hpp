// SPDX-License-Identifier: Apache-2.0
// Numbers of variable length: seven bits a byte, the lowest first, the top bit set on all but the
// last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weir { inline namespace v0 { namespace trace {

inline void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

/// Differences of either sign as small numbers: 0, -1, 1, -2, … The subtraction may wrap.
[[nodiscard]] constexpr std::uint64_t zigzag(std::uint64_t difference) noexcept {
  return (difference << 1) ^ (std::uint64_t{0} - (difference >> 63));
}
[[nodiscard]] constexpr std::uint64_t unzigzag(std::uint64_t coded) noexcept {
  return (coded >> 1) ^ (std::uint64_t{0} - (coded & 1));
}

/// Takes values off the front of untrusted bytes.
class byte_reader {
 public:
  explicit byte_reader(std::string_view bytes) noexcept : rest_{bytes} {}

  [[nodiscard]] bool empty() const noexcept { return rest_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return rest_.size(); }

  [[nodiscard]] std::optional<std::uint64_t> varint() noexcept {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return std::nullopt;
      const auto next = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      if (shift == 63 && next > 1) return std::nullopt;
      value |= std::uint64_t{next & 0x7fU} << shift;
      if (next < 0x80) return value;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::string_view> take(std::uint64_t count) noexcept {
    if (count > rest_.size()) return std::nullopt;
    const auto taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  /// A length, and as many bytes.
  [[nodiscard]] std::optional<std::string_view> sized() noexcept {
    const auto length = varint();
    return length ? take(*length) : std::nullopt;
  }

 private:
  std::string_view rest_;
};

}}}  // namespace weir::v0::trace
