// SPDX-License-Identifier: Apache-2.0
// Packets to bytes and back.
#include "sharing/packet.hpp"

#include <string>

#include "sharing/wire.hpp"

namespace weir { inline namespace v0 { namespace sharing {
namespace {

constexpr std::uint32_t packet_magic = 0x7269'6577;  // "weir"
constexpr std::size_t header_bytes = 8;
constexpr std::size_t number_bytes = header_bytes + sizeof(std::uint64_t);

std::vector<std::byte> with_header(packet_kind kind, std::size_t size) {
  std::vector<std::byte> raw(size);
  put(raw, 0, packet_magic);
  put(raw, 4, packet_version);
  put(raw, 6, static_cast<std::uint16_t>(kind));
  return raw;
}

error bad_packet(const char* reason) {
  return {{.code = errc::invalid_argument, .detail = reason}};
}

}  // namespace

std::vector<std::byte> encode_number(packet_kind kind, std::uint64_t number) {
  auto raw = with_header(kind, number_bytes);
  put(raw, header_bytes, number);
  return raw;
}

std::vector<std::byte> encode_offer(const share_ticket& ticket) {
  auto raw = with_header(packet_kind::offer, header_bytes);
  const auto body = encode(ticket);
  raw.insert(raw.end(), body.begin(), body.end());
  return raw;
}

std::vector<std::byte> encode_note(std::span<const std::byte> text) {
  auto raw = with_header(packet_kind::note, header_bytes);
  raw.insert(raw.end(), text.begin(), text.end());
  return raw;
}

result<packet> decode_packet(std::span<const std::byte> from) {
  if (from.size() < header_bytes) return bad_packet("the received message is incomplete");
  if (get<std::uint32_t>(from, 0) != packet_magic)
    return bad_packet("the received data is not a message of weir");
  if (const auto version = get<std::uint16_t>(from, 4); version != packet_version) {
    return error{{.code = errc::bad_version, .detail = "link version " + std::to_string(version)}};
  }
  packet decoded{.kind = static_cast<packet_kind>(get<std::uint16_t>(from, 6))};
  const auto body = from.subspan(header_bytes);
  switch (decoded.kind) {
    case packet_kind::hello:
    case packet_kind::revoke:
    case packet_kind::closed:
      if (from.size() != number_bytes) return bad_packet("the received message has a wrong length");
      decoded.number = get<std::uint64_t>(body, 0);
      if (decoded.number == 0) return bad_packet("the received message names no object");
      return decoded;
    case packet_kind::offer: {
      WEIR_TRY_VALUE(ticket, decode_share_ticket(body));
      decoded.ticket = ticket;
      return decoded;
    }
    case packet_kind::note:
      decoded.note = body;
      return decoded;
  }
  return bad_packet("the received message is of an unknown kind");
}

}}}  // namespace weir::v0::sharing
