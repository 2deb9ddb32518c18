// SPDX-License-Identifier: Apache-2.0
// Numbers as bytes, little-endian whatever the machine: for tickets and packets.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weir { inline namespace v0 { namespace sharing {

template <std::unsigned_integral T>
void put(std::span<std::byte> target, std::size_t offset, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    target[offset + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}

template <std::unsigned_integral T>
[[nodiscard]] T get(std::span<const std::byte> source, std::size_t offset) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(source[offset + i]) << (8 * i);
  return static_cast<T>(value);
}

}}}  // namespace weir::v0::sharing
