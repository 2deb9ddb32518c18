// SPDX-License-Identifier: Apache-2.0
// Arithmetic that refuses to wrap: an empty optional instead of a small wrong number.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <optional>

#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 {

/// a + b; empty if the sum does not fit.
template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> checked_add(T a, T b) noexcept {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// a - b; empty if b is larger than a.
template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> checked_subtract(T a, T b) noexcept {
  if (b > a) return std::nullopt;
  return static_cast<T>(a - b);
}

/// a * b; empty if the product does not fit.
template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> checked_multiply(T a, T b) noexcept {
  T product{};
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Whether `n` is a power of two; zero is not.
[[nodiscard]] constexpr bool is_power_of_two(std::uint64_t n) noexcept {
  return std::has_single_bit(n);
}

/// The next multiple of `step` at or above `n`; empty if it does not fit or `step` is zero.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_round_up(std::uint64_t n,
                                                                      std::uint64_t step) noexcept {
  if (step == 0) return std::nullopt;
  const std::uint64_t rest = n % step;
  return rest == 0 ? std::optional{n} : checked_add(n, step - rest);
}

/// a + b; empty if the sum does not fit.
[[nodiscard]] constexpr std::optional<bytes> checked_add(bytes a, bytes b) noexcept {
  const auto sum = checked_add(a.count(), b.count());
  return sum ? std::optional{bytes{*sum}} : std::nullopt;
}

/// a - b; empty if b is larger than a.
[[nodiscard]] constexpr std::optional<bytes> checked_subtract(bytes a, bytes b) noexcept {
  const auto rest = checked_subtract(a.count(), b.count());
  return rest ? std::optional{bytes{*rest}} : std::nullopt;
}

/// The size of `n` elements of `size` bytes; empty if it does not fit.
[[nodiscard]] constexpr std::optional<bytes> checked_multiply(bytes size,
                                                              std::uint64_t n) noexcept {
  const auto product = checked_multiply(size.count(), n);
  return product ? std::optional{bytes{*product}} : std::nullopt;
}

/// The next multiple of `step` at or above `size`; empty if it does not fit or `step` is zero.
[[nodiscard]] constexpr std::optional<bytes> checked_round_up(bytes size, bytes step) noexcept {
  const auto rounded = checked_round_up(size.count(), step.count());
  return rounded ? std::optional{bytes{*rounded}} : std::nullopt;
}

}}  // namespace weir::v0
