// SPDX-License-Identifier: Apache-2.0
// Tickets: the bytes that describe what one process exports to another. An importer checks them
// all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 {

enum class share_kind : std::uint8_t {
  memory = 1,         ///< physical handles, one descriptor each
  legacy_memory = 2,  ///< an allocation of allocate_plain(), by the driver's 64 bytes
  pool = 3,           ///< a driver pool, one descriptor
  pool_pointer = 4,   ///< an allocation of such a pool, by the driver's 64 bytes
  event = 5,          ///< an interprocess event, by the driver's 64 bytes
};

/// "memory", "legacy_memory", "pool", "pool_pointer", "event".
[[nodiscard]] WEIR_API std::string_view name(share_kind kind) noexcept;
[[nodiscard]] WEIR_API std::string to_string(share_kind kind);

/// The exported object, its exporter, and the part of it that is granted.
///
/// A plain value. The numbers are the exporter's: `exporter` is drawn at random by each process,
/// `object` and `grant` count up in it and are never used twice, so that an old ticket is never
/// taken for a new one. Sizes are claims; the importer checks them against the driver.
struct share_ticket {
  share_kind kind = share_kind::memory;
  access_rights rights = access_rights::read_write;
  std::array<std::uint8_t, 16> device{};  ///< its UUID: ordinals differ between processes
  std::uint64_t exporter = 0;
  std::uint64_t object = 0;             ///< the exported object; of a pool pointer: the pool
  std::uint64_t grant = 0;              ///< this one export of it
  bytes size{};                         ///< of memory: the part that may be used
  bytes offset{};                       ///< of that in the first handle
  bytes piece{};                        ///< the size of each handle
  std::uint32_t first = 0;              ///< the index of the first handle among the object's
  std::uint32_t pieces = 0;             ///< the number of handles, one descriptor each
  std::array<std::byte, 64> payload{};  ///< the driver's own bytes, where it has some

  friend bool operator==(const share_ticket&, const share_ticket&) = default;
};

/// "grant 7 of object 3: memory, read, 5 MiB at 1 MiB in 3 handles of 2 MiB"; what a kind has not
/// is left out.
[[nodiscard]] WEIR_API std::string to_string(const share_ticket& ticket);

inline constexpr std::uint16_t share_ticket_version = 1;
inline constexpr std::size_t share_ticket_bytes = 160;
/// A message of the kernel carries 253 descriptors at most.
inline constexpr std::uint32_t most_share_pieces = 240;

/// Little-endian, the same on every machine; docs/sharing.md has the layout.
[[nodiscard]] WEIR_API std::array<std::byte, share_ticket_bytes> encode(
    const share_ticket& ticket) noexcept;

/// The ticket that encode() wrote; any other bytes are refused. bad_version: the ticket is of
/// another version, whatever else is in it; invalid_argument: cut off, damaged, or its numbers
/// contradict each other. The checksum finds damage, not forgery.
[[nodiscard]] WEIR_API result<share_ticket> decode_share_ticket(std::span<const std::byte> from);

}}  // namespace weir::v0
