// SPDX-License-Identifier: Apache-2.0
// share_ticket: the bytes that describe what one process exports to another. An importer checks
// every field.
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

/// The kind of an exported object.
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
/// A plain value. The exporter assigns the numbers: `exporter` is random for each process, `object`
/// and `grant` are counters that never repeat, so an old ticket cannot be mistaken for a new one.
/// The importer checks the sizes against the driver.
struct share_ticket {
  share_kind kind = share_kind::memory;              ///< what is exported
  access_rights rights = access_rights::read_write;  ///< what the importer may do
  std::array<std::uint8_t, 16> device{};  ///< its UUID: ordinals differ between processes
  std::uint64_t exporter = 0;             ///< the random number of the exporting process
  std::uint64_t object = 0;               ///< the exported object; of a pool pointer: the pool
  std::uint64_t grant = 0;                ///< the number of this export
  bytes size{};                           ///< of memory: the part that may be used
  bytes offset{};                         ///< of that part in the first handle
  bytes piece{};                          ///< the size of each handle
  std::uint32_t first = 0;                ///< the index of the first handle among the object's
  std::uint32_t pieces = 0;               ///< the number of handles, one descriptor each
  std::array<std::byte, 64> payload{};    ///< the driver's own bytes, if the kind has some

  friend bool operator==(const share_ticket&, const share_ticket&) = default;
};

/// "grant 7 of object 3: memory, read, 5 MiB at 1 MiB in 3 handles of 2 MiB"; fields that the kind
/// does not use are left out.
[[nodiscard]] WEIR_API std::string to_string(const share_ticket& ticket);

/// The version of the format.
inline constexpr std::uint16_t share_ticket_version = 1;
/// The size of an encoded ticket.
inline constexpr std::size_t share_ticket_bytes = 160;
/// The most handles of one ticket; a message of the kernel carries at most 253 descriptors.
inline constexpr std::uint32_t most_share_pieces = 240;

/// Encodes a ticket, little-endian on every machine; docs/sharing.md describes the layout.
[[nodiscard]] WEIR_API std::array<std::byte, share_ticket_bytes> encode(
    const share_ticket& ticket) noexcept;

/// Decodes a ticket of encode(); other bytes are refused. bad_version: the ticket has another
/// version; invalid_argument: it is incomplete or damaged, or its numbers are inconsistent. The
/// checksum detects damage, not forgery.
[[nodiscard]] WEIR_API result<share_ticket> decode_share_ticket(std::span<const std::byte> from);

}}  // namespace weir::v0
