// SPDX-License-Identifier: Apache-2.0
// The packets of a link: a header with version and kind, and a body of one of five forms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/share/ticket.hpp"

namespace weir { inline namespace v0 { namespace sharing {

enum class packet_kind : std::uint16_t {
  hello = 1,   // the sender's own_number()
  offer = 2,   // a ticket
  note = 3,    // the user's bytes
  revoke = 4,  // the grant that is to be released
  closed = 5,  // the grant that was released
};

inline constexpr std::uint16_t packet_version = 1;

struct packet {
  packet_kind kind{};
  std::uint64_t number = 0;           // of hello, revoke and closed; never 0
  share_ticket ticket{};              // of offer
  std::span<const std::byte> note{};  // of note; in the bytes it was decoded from
};

[[nodiscard]] std::vector<std::byte> encode_number(packet_kind kind, std::uint64_t number);
[[nodiscard]] std::vector<std::byte> encode_offer(const share_ticket& ticket);
[[nodiscard]] std::vector<std::byte> encode_note(std::span<const std::byte> text);

/// bad_version: the other side speaks another; invalid_argument: no packet of weir's.
[[nodiscard]] result<packet> decode_packet(std::span<const std::byte> from);

}}}  // namespace weir::v0::sharing
