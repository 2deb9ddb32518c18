// SPDX-License-Identifier: Apache-2.0
// What fuzzers share: the bytes of an input as choices, numbers and texts, and what must hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace weir::fuzz {

/// Ends the process where something is wrong, which libFuzzer takes for a find.
inline void require(bool holds, std::string_view message) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %.*s\n", static_cast<int>(message.size()), message.data());
  std::abort();
}

/// The bytes of an input, one after the other; 0 behind its end.
class fuzz_input {
 public:
  explicit fuzz_input(std::span<const std::uint8_t> data) noexcept : data_{data} {}

  [[nodiscard]] bool at_end() const noexcept { return next_ >= data_.size(); }
  [[nodiscard]] std::uint8_t next() noexcept { return at_end() ? std::uint8_t{0} : data_[next_++]; }
  [[nodiscard]] std::size_t below(std::size_t end) noexcept { return next() % end; }
  [[nodiscard]] bool chance(std::size_t in) noexcept { return next() % in == in - 1; }

  /// Of eight bytes, the lowest first.
  [[nodiscard]] std::uint64_t word() noexcept {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < 8; ++i) value |= std::uint64_t{next()} << (8 * i);
    return value;
  }

  /// Small, around a power of two, around the largest, or anything.
  [[nodiscard]] std::uint64_t number() noexcept {
    const unsigned form = next();
    if (form < 160) return form;
    if (form < 224) return (std::uint64_t{1} << (form - 160)) + next() % 5 - 2;
    if (form < 240) return std::numeric_limits<std::uint64_t>::max() - next();
    return word();
  }

  [[nodiscard]] std::string text(std::size_t most) {
    const std::size_t length =
        std::min(below(most + 1), data_.size() - std::min(next_, data_.size()));
    const std::string read{reinterpret_cast<const char*>(data_.data() + next_), length};
    next_ += length;
    return read;
  }

  template <class T, std::size_t Count>
  [[nodiscard]] const T& one_of(const T (&choices)[Count]) noexcept {
    return choices[below(Count)];
  }

 private:
  std::span<const std::uint8_t> data_;
  std::size_t next_ = 0;
};

}  // namespace weir::fuzz
