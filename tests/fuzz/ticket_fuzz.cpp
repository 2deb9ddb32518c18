// SPDX-License-Identifier: Apache-2.0
// Any bytes as a message of another process: refused, or exactly what we would have sent.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "sharing/packet.hpp"
#include "weir/base/checked.hpp"
#include "weir/share/ticket.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

template <class Bytes>
bool equal(std::span<const std::byte> a, const Bytes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// What every ticket that was let in promises to the code behind it.
void require_sound(const weir::share_ticket& ticket) {
  require(ticket.pieces <= weir::most_share_pieces);
  if (ticket.kind != weir::share_kind::memory) return;
  const auto whole = weir::checked_multiply(ticket.piece, ticket.pieces);
  const auto end = weir::checked_add(ticket.offset, ticket.size);
  require(whole && end && *end <= *whole && ticket.size != weir::bytes{});
}

void try_ticket(std::span<const std::byte> raw) {
  const auto read = weir::decode_share_ticket(raw);
  if (!read) {
    require(read.code() == weir::errc::invalid_argument || read.code() == weir::errc::bad_version);
    return;
  }
  require_sound(*read);
  require(equal(raw, weir::encode(*read)));
}

void try_packet(std::span<const std::byte> raw) {
  using namespace weir::sharing;
  const auto read = decode_packet(raw);
  if (!read) return;
  if (read->kind == packet_kind::offer) {
    require_sound(read->ticket);
    require(equal(raw, encode_offer(read->ticket)));
  } else if (read->kind == packet_kind::note) {
    require(equal(raw, encode_note(read->note)));
  } else {
    require(equal(raw, encode_number(read->kind, read->number)));
  }
}

/// The same bytes with the checksum made right, so that what stands behind it is reached.
void try_with_checksum(std::span<const std::byte> raw) {
  if (raw.size() < weir::share_ticket_bytes) return;
  std::vector<std::byte> sealed{raw.begin(), raw.begin() + weir::share_ticket_bytes};
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (std::size_t i = 0; i + 8 < sealed.size(); ++i)
    hash = (hash ^ std::to_integer<std::uint64_t>(sealed[i])) * 0x100'0000'01b3;
  for (std::size_t i = 0; i < 8; ++i)
    sealed[sealed.size() - 8 + i] = static_cast<std::byte>(hash >> (8 * i) & 0xff);
  try_ticket(sealed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto raw = std::as_bytes(std::span{data, size});
  try_ticket(raw);
  try_with_checksum(raw);
  try_packet(raw);
  return 0;
}
