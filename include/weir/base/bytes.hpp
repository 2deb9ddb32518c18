// SPDX-License-Identifier: Apache-2.0
// Byte sizes as a type: a count of bytes cannot be mistaken for a count of elements or an address.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// A number of bytes. Explicit in, explicit out; sums and differences stay byte sizes.
///
/// Addition and subtraction are unchecked, like the integers they stand for; where a size comes
/// from outside, use the functions of checked.hpp, which refuse to wrap.
class bytes {
 public:
  /// Zero bytes.
  constexpr bytes() noexcept = default;
  /// A size of `count` bytes.
  explicit constexpr bytes(std::uint64_t count) noexcept : count_{count} {}

  /// The number of bytes.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return count_; }
  /// The largest size; as a limit it means no limit.
  [[nodiscard]] static constexpr bytes max() noexcept {
    return bytes{std::numeric_limits<std::uint64_t>::max()};
  }

  /// Sizes compare as their numbers do.
  friend constexpr auto operator<=>(bytes, bytes) noexcept = default;
  /// The sum; it wraps around on overflow, as unsigned integers do.
  friend constexpr bytes operator+(bytes a, bytes b) noexcept { return bytes{a.count_ + b.count_}; }
  /// The difference; it wraps around below zero.
  friend constexpr bytes operator-(bytes a, bytes b) noexcept { return bytes{a.count_ - b.count_}; }
  /// `n` times the size; it wraps around on overflow.
  friend constexpr bytes operator*(bytes a, std::uint64_t n) noexcept {
    return bytes{a.count_ * n};
  }
  /// `n` times the size; it wraps around on overflow.
  friend constexpr bytes operator*(std::uint64_t n, bytes a) noexcept { return a * n; }
  /// How often `b` fits into `a`. `b` must not be zero.
  friend constexpr std::uint64_t operator/(bytes a, bytes b) noexcept {
    return a.count_ / b.count_;
  }
  /// The size divided by `n`, rounded down. `n` must not be zero.
  friend constexpr bytes operator/(bytes a, std::uint64_t n) noexcept {
    return bytes{a.count_ / n};
  }
  /// The rest of the division. `b` must not be zero.
  friend constexpr bytes operator%(bytes a, bytes b) noexcept { return bytes{a.count_ % b.count_}; }
  /// Adds a size; it wraps around on overflow.
  constexpr bytes& operator+=(bytes b) noexcept { return *this = *this + b; }
  /// Subtracts a size; it wraps around below zero.
  constexpr bytes& operator-=(bytes b) noexcept { return *this = *this - b; }

 private:
  std::uint64_t count_ = 0;
};

/// "512 B", "20 MiB", "1.5 GiB": the largest binary unit that keeps the number at 1 or above.
/// At most two decimals, rounded; a size that rounds up to the next unit is written in that unit.
[[nodiscard]] WEIR_API std::string to_string(bytes size);

/// The size that `text` names: "4096", "20 MiB", "1.5GiB", "24GB": B; KiB to EiB, of 1024 (GiB is
/// 2^30); kB or KB, MB to EB, of 1000 (GB is 10^9). Empty for anything else and what does not fit.
[[nodiscard]] WEIR_API std::optional<bytes> parse_bytes(std::string_view text) noexcept;

/// `using namespace weir::literals;` makes `64_MiB` a size.
namespace literals {
/// `512_B`, `2_KiB`, `64_MiB`, `1_GiB`, `1_TiB`: sizes in units of 1024.
constexpr bytes operator""_B(unsigned long long n) noexcept { return bytes{n}; }
constexpr bytes operator""_KiB(unsigned long long n) noexcept { return bytes{n << 10}; }
constexpr bytes operator""_MiB(unsigned long long n) noexcept { return bytes{n << 20}; }
constexpr bytes operator""_GiB(unsigned long long n) noexcept { return bytes{n << 30}; }
constexpr bytes operator""_TiB(unsigned long long n) noexcept { return bytes{n << 40}; }
}  // namespace literals

/// The alignment of a request that names none. Every allocating type gives it; a caching_allocator
/// gives more (allocator_granularity).
inline constexpr bytes default_alignment{256};

}}  // namespace weir::v0
