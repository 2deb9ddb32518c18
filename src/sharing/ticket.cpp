// SPDX-License-Identifier: Apache-2.0
// Tickets to bytes and back.
#include "weir/share/ticket.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "sharing/wire.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 {

using sharing::get;
using sharing::put;

namespace {

// The offset of each field.
constexpr std::size_t at_magic = 0;
constexpr std::size_t at_version = 8;
constexpr std::size_t at_kind = 10;
constexpr std::size_t at_rights = 11;
constexpr std::size_t at_pieces = 12;
constexpr std::size_t at_device = 16;
constexpr std::size_t at_exporter = 32;
constexpr std::size_t at_object = 40;
constexpr std::size_t at_grant = 48;
constexpr std::size_t at_size = 56;
constexpr std::size_t at_offset = 64;
constexpr std::size_t at_piece = 72;
constexpr std::size_t at_first = 80;
constexpr std::size_t at_reserved = 84;
constexpr std::size_t at_payload = 88;
constexpr std::size_t at_checksum = 152;
static_assert(at_checksum + sizeof(std::uint64_t) == share_ticket_bytes);

constexpr std::uint64_t ticket_magic = 0x7465'6b74'7269'6577;  // "weirtket"

/// FNV-1a.
std::uint64_t checksum_of(std::span<const std::byte> content) noexcept {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const std::byte each : content)
    hash = (hash ^ std::to_integer<std::uint64_t>(each)) * 0x100'0000'01b3;
  return hash;
}

error bad_ticket(const char* reason) {
  return {{.code = errc::invalid_argument, .detail = reason}};
}

bool is_zero(const std::array<std::byte, 64>& payload) noexcept {
  return std::all_of(payload.begin(), payload.end(),
                     [](std::byte each) { return each == std::byte{0}; });
}

/// Fields that only memory in handles has.
bool has_layout(const share_ticket& ticket) noexcept {
  return ticket.offset != bytes{} || ticket.piece != bytes{} || ticket.first != 0;
}

result<void> check_memory(const share_ticket& ticket) {
  if (ticket.pieces == 0 || ticket.pieces > most_share_pieces)
    return bad_ticket("invalid number of handles");
  if (!checked_add(ticket.first, ticket.pieces)) return bad_ticket("invalid number of handles");
  if (ticket.piece == bytes{}) return bad_ticket("the handles have size zero");
  const auto whole = checked_multiply(ticket.piece, ticket.pieces);
  const auto end = checked_add(ticket.offset, ticket.size);
  if (!whole || !end) return bad_ticket("a size does not fit in the address space");
  if (ticket.size == bytes{} || ticket.offset >= ticket.piece || *end > *whole ||
      *end <= *whole - ticket.piece) {
    return bad_ticket("the range exceeds the handles");
  }
  if (!is_zero(ticket.payload)) return bad_ticket("unexpected payload");
  return {};
}

result<void> check_ticket(const share_ticket& ticket) {
  if (ticket.rights != access_rights::read && ticket.rights != access_rights::read_write) {
    return bad_ticket("access rights");
  }
  if (ticket.exporter == 0 || ticket.object == 0 || ticket.grant == 0)
    return bad_ticket("a number");
  if (ticket.kind == share_kind::memory) return check_memory(ticket);
  // The driver knows no rights for the others.
  if (ticket.rights != access_rights::read_write) return bad_ticket("access rights");
  if (has_layout(ticket)) return bad_ticket("unexpected handles");
  switch (ticket.kind) {
    case share_kind::legacy_memory:
    case share_kind::pool_pointer:
      if (ticket.size == bytes{} || ticket.pieces != 0) return bad_ticket("a size");
      return {};
    case share_kind::pool:
      if (ticket.size != bytes{} || ticket.pieces != 1) return bad_ticket("a size");
      if (!is_zero(ticket.payload)) return bad_ticket("unexpected payload");
      return {};
    case share_kind::event:
      if (ticket.size != bytes{} || ticket.pieces != 0) return bad_ticket("a size");
      return {};
    case share_kind::memory:
      break;
  }
  return bad_ticket("unknown kind");
}

}  // namespace

std::string_view name(share_kind kind) noexcept {
  switch (kind) {
    case share_kind::memory:
      return "memory";
    case share_kind::legacy_memory:
      return "legacy_memory";
    case share_kind::pool:
      return "pool";
    case share_kind::pool_pointer:
      return "pool_pointer";
    case share_kind::event:
      return "event";
  }
  return "unknown";
}

std::string to_string(share_kind kind) { return std::string{name(kind)}; }

std::string to_string(const share_ticket& ticket) {
  std::string text = "grant " + std::to_string(ticket.grant) + " of object " +
                     std::to_string(ticket.object) + ": " + to_string(ticket.kind);
  if (ticket.kind == share_kind::memory) text += ", " + to_string(ticket.rights);
  if (ticket.size != bytes{}) text += ", " + to_string(ticket.size);
  if (ticket.kind == share_kind::memory)
    text += " at " + to_string(ticket.offset) + " in " + std::to_string(ticket.pieces) +
            " handles of " + to_string(ticket.piece);
  return text;
}

std::array<std::byte, share_ticket_bytes> encode(const share_ticket& ticket) noexcept {
  std::array<std::byte, share_ticket_bytes> raw{};
  put(raw, at_magic, ticket_magic);
  put(raw, at_version, share_ticket_version);
  put(raw, at_kind, static_cast<std::uint8_t>(ticket.kind));
  put(raw, at_rights, static_cast<std::uint8_t>(ticket.rights));
  put(raw, at_pieces, ticket.pieces);
  std::memcpy(&raw[at_device], ticket.device.data(), ticket.device.size());
  put(raw, at_exporter, ticket.exporter);
  put(raw, at_object, ticket.object);
  put(raw, at_grant, ticket.grant);
  put(raw, at_size, ticket.size.count());
  put(raw, at_offset, ticket.offset.count());
  put(raw, at_piece, ticket.piece.count());
  put(raw, at_first, ticket.first);
  std::memcpy(&raw[at_payload], ticket.payload.data(), ticket.payload.size());
  put(raw, at_checksum, checksum_of(std::span{raw}.first(at_checksum)));
  return raw;
}

result<share_ticket> decode_share_ticket(std::span<const std::byte> from) {
  if (from.size() < at_kind) return bad_ticket("cut off");
  if (get<std::uint64_t>(from, at_magic) != ticket_magic) return bad_ticket("no ticket");
  // Before anything else that a later version could have changed.
  if (const auto version = get<std::uint16_t>(from, at_version); version != share_ticket_version) {
    return error{
        {.code = errc::bad_version, .detail = "ticket version " + std::to_string(version)}};
  }
  if (from.size() != share_ticket_bytes) return bad_ticket("the length");
  if (get<std::uint64_t>(from, at_checksum) != checksum_of(from.first(at_checksum))) {
    return bad_ticket("the checksum");
  }
  if (get<std::uint32_t>(from, at_reserved) != 0) return bad_ticket("a reserved field is not zero");
  const auto rights = get<std::uint8_t>(from, at_rights);
  if (rights > static_cast<std::uint8_t>(access_rights::read_write)) {
    return bad_ticket("access rights");
  }
  share_ticket ticket{
      .kind = static_cast<share_kind>(get<std::uint8_t>(from, at_kind)),
      .rights = static_cast<access_rights>(rights),
      .exporter = get<std::uint64_t>(from, at_exporter),
      .object = get<std::uint64_t>(from, at_object),
      .grant = get<std::uint64_t>(from, at_grant),
      .size = bytes{get<std::uint64_t>(from, at_size)},
      .offset = bytes{get<std::uint64_t>(from, at_offset)},
      .piece = bytes{get<std::uint64_t>(from, at_piece)},
      .first = get<std::uint32_t>(from, at_first),
      .pieces = get<std::uint32_t>(from, at_pieces),
  };
  std::memcpy(ticket.device.data(), &from[at_device], ticket.device.size());
  std::memcpy(ticket.payload.data(), &from[at_payload], ticket.payload.size());
  WEIR_TRY(check_ticket(ticket));
  return ticket;
}

}}  // namespace weir::v0
