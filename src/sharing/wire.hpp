// Numbers as bytes, little-endian whatever the machine: for tickets and packets.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weir::inline v0::sharing {

template <std::unsigned_integral T>
void put(std::span<std::byte> into, std::size_t at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    into[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}

template <std::unsigned_integral T>
[[nodiscard]] T get(std::span<const std::byte> from, std::size_t at) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(from[at + i]) << (8 * i);
  return static_cast<T>(value);
}

}  // namespace weir::inline v0::sharing
