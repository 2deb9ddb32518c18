// SPDX-License-Identifier: Apache-2.0
// Tickets and packets as bytes: what is written is read back, and nothing else is.
#include <algorithm>
#include <cstring>

#include "sharing/packet.hpp"
#include "sharing/sharing_fixture.hpp"

namespace weir::testing_support { namespace {

/// Each part of the range is bounded by one rule alone: two handles of which the first and the last
/// megabyte are not granted.
share_ticket good() {
  return {.kind = share_kind::memory,
          .rights = access_rights::read,
          .device = {1, 2, 3},
          .exporter = 77,
          .object = 5,
          .grant = 6,
          .size = 2_MiB,
          .offset = 1_MiB,
          .piece = 2_MiB,
          .first = 4,
          .pieces = 2};
}

share_ticket plain(share_kind kind, bytes size, std::uint32_t pieces) {
  return {.kind = kind, .exporter = 1, .object = 1, .grant = 1, .size = size, .pieces = pieces};
}
/// A kind that carries the driver's bytes.
share_ticket with_payload(share_kind kind, bytes size) {
  share_ticket ticket = plain(kind, size, 0);
  for (std::size_t i = 0; i < ticket.payload.size(); ++i)
    ticket.payload[i] = static_cast<std::byte>(200 - i);
  return ticket;
}

/// The number at an offset, little-endian.
std::uint64_t number_at(std::span<const std::byte> raw, std::size_t offset, std::size_t size) {
  std::uint64_t number = 0;
  for (std::size_t i = size; i-- > 0;)
    number = number << 8 | std::to_integer<std::uint64_t>(raw[offset + i]);
  return number;
}

/// The ticket with a byte changed and the checksum (FNV-1a) made good.
std::vector<std::byte> forged(const share_ticket& ticket, std::size_t offset, std::byte value) {
  const auto honest = encode(ticket);
  std::vector<std::byte> raw{honest.begin(), honest.end()};
  raw[offset] = value;
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (std::size_t i = 0; i < 152; ++i)
    hash = (hash ^ std::to_integer<std::uint64_t>(raw[i])) * 0x100'0000'01b3;
  for (std::size_t i = 0; i < 8; ++i) raw[152 + i] = static_cast<std::byte>(hash >> 8 * i);
  return raw;
}

TEST(tickets, read_back_as_written) {
  share_ticket first = good();
  first.device = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  for (const auto& each :
       {first, with_payload(share_kind::legacy_memory, 1_MiB), plain(share_kind::pool, {}, 1),
        with_payload(share_kind::pool_pointer, 1_B), with_payload(share_kind::event, {})}) {
    const auto read = decode_share_ticket(encode(each));
    ASSERT_EQ(reason_of(read), "") << name(each.kind);
    EXPECT_EQ(*read, each);
  }
}

// The layout is what two versions of weir on one machine agree about.
TEST(tickets, have_a_fixed_layout) {
  share_ticket ticket{.kind = share_kind::pool,
                      .rights = access_rights::read_write,
                      .exporter = 0x0102'0304'0506'0708,
                      .object = 0x1112'1314'1516'1718,
                      .grant = 0x2122'2324'2526'2728,
                      .size = bytes{0x3132'3334'3536'3738},
                      .offset = bytes{0x4142'4344'4546'4748},
                      .piece = bytes{0x5152'5354'5556'5758},
                      .first = 0x6162'6364,
                      .pieces = 0x7172'7374};
  for (std::size_t i = 0; i < 16; ++i) ticket.device[i] = static_cast<std::uint8_t>(0x80 + i);
  for (std::size_t i = 0; i < 64; ++i) ticket.payload[i] = static_cast<std::byte>(0x90 + i);
  const auto raw = encode(ticket);
  ASSERT_EQ(raw.size(), 160u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(raw.data()), 8), "weirtket");
  EXPECT_EQ(number_at(raw, 8, 2), 1u);   // version
  EXPECT_EQ(number_at(raw, 10, 1), 3u);  // kind
  EXPECT_EQ(number_at(raw, 11, 1), 2u);  // rights
  EXPECT_EQ(number_at(raw, 12, 4), ticket.pieces);
  EXPECT_EQ(std::memcmp(&raw[16], ticket.device.data(), 16), 0);
  EXPECT_EQ(number_at(raw, 32, 8), ticket.exporter);
  EXPECT_EQ(number_at(raw, 40, 8), ticket.object);
  EXPECT_EQ(number_at(raw, 48, 8), ticket.grant);
  EXPECT_EQ(number_at(raw, 56, 8), ticket.size.count());
  EXPECT_EQ(number_at(raw, 64, 8), ticket.offset.count());
  EXPECT_EQ(number_at(raw, 72, 8), ticket.piece.count());
  EXPECT_EQ(number_at(raw, 80, 4), ticket.first);
  EXPECT_EQ(number_at(raw, 84, 4), 0u);  // reserved
  EXPECT_EQ(std::memcmp(&raw[88], ticket.payload.data(), 64), 0);
  EXPECT_EQ(std::vector(raw.begin(), raw.end()), forged(ticket, 10, raw[10]));  // the checksum
}

TEST(tickets, have_a_text) {
  EXPECT_EQ(to_string(good()),
            "grant 6 of object 5: memory, read, 2 MiB at 1 MiB in 2 handles of 2 MiB");
  EXPECT_EQ(to_string(plain(share_kind::legacy_memory, 1_MiB, 0)),
            "grant 1 of object 1: legacy_memory, 1 MiB");
  EXPECT_EQ(to_string(plain(share_kind::pool, {}, 1)), "grant 1 of object 1: pool");
  EXPECT_EQ(to_string(plain(share_kind::pool_pointer, 1_B, 0)),
            "grant 1 of object 1: pool_pointer, 1 B");
  EXPECT_EQ(to_string(plain(share_kind::event, {}, 0)), "grant 1 of object 1: event");
  EXPECT_EQ(to_string(static_cast<share_kind>(0)), "unknown");
}

TEST(tickets, of_another_version_are_told_apart_from_damage) {
  auto raw = encode(good());
  raw[8] = std::byte{2};  // nothing else is read, not even the checksum
  EXPECT_EQ(reason_of(decode_share_ticket(raw)), "bad_version: ticket version 2");
  EXPECT_EQ(reason_of(decode_share_ticket(std::span{raw}.first(10))),
            "bad_version: ticket version 2");
  raw[9] = std::byte{1};
  EXPECT_EQ(reason_of(decode_share_ticket(raw)), "bad_version: ticket version 258");
  EXPECT_EQ(reason_of(decode_share_ticket(std::span{raw}.first(9))), "invalid_argument: cut off");
}

TEST(tickets, that_were_damaged_are_refused) {
  const auto raw = encode(good());
  for (std::size_t length = 0; length < raw.size(); ++length) {
    EXPECT_EQ(reason_of(decode_share_ticket(std::span{raw}.first(length))),
              length < 10 ? "invalid_argument: cut off" : "invalid_argument: the length");
  }
  std::vector<std::byte> longer{raw.begin(), raw.end()};
  longer.push_back({});
  EXPECT_EQ(reason_of(decode_share_ticket(longer)), "invalid_argument: the length");
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (i == 8 || i == 9) continue;  // the version
    for (const int bend : {0x01, 0x80, 0xff}) {
      auto bent = raw;
      bent[i] ^= static_cast<std::byte>(bend);
      EXPECT_EQ(reason_of(decode_share_ticket(bent)),
                i < 8 ? "invalid_argument: no ticket" : "invalid_argument: the checksum")
          << i;
    }
  }
}

/// Why a ticket is refused that differs from a good one in what `change` changes.
template <class Change>
std::string refusal(share_ticket ticket, const Change& change) {
  EXPECT_EQ(reason_of(decode_share_ticket(encode(ticket))), "");
  change(ticket);
  return reason_of(decode_share_ticket(encode(ticket)));
}

TEST(tickets, of_a_range_that_contradicts_itself_are_refused) {
  const std::string count = "invalid_argument: invalid number of handles";
  const std::string overflow = "invalid_argument: a size does not fit in the address space";
  const std::string range = "invalid_argument: the range exceeds the handles";
  const auto why = [](auto change) { return refusal(good(), change); };
  EXPECT_EQ(why([](auto& t) { t.size = 3_MiB; }), "");  // up to the end of the last handle
  EXPECT_EQ(why([](auto& t) { t.size = 3_MiB + 1_B; }), range);
  EXPECT_EQ(why([](auto& t) { t.size = 1_MiB + 1_B; }), "");  // one byte in the last handle
  EXPECT_EQ(why([](auto& t) { t.size = 1_MiB; }), range);     // none
  EXPECT_EQ(why([](auto& t) { t.size = bytes::max(); }), overflow);
  EXPECT_EQ(why([](auto& t) { t.offset = 2_MiB - 1_B; }), "");  // one byte in the first handle
  EXPECT_EQ(why([](auto& t) { t.offset = 2_MiB; }), range);     // none
  EXPECT_EQ(why([](auto& t) { t.offset = 1_B; }), "");
  EXPECT_EQ(why([](auto& t) { t.offset = {}; }), range);
  EXPECT_EQ(why([](auto& t) { t.offset = bytes::max(); }), overflow);
  EXPECT_EQ(why([](auto& t) { t.piece = {}; }), "invalid_argument: the handles have size zero");
  EXPECT_EQ(why([](auto& t) { t.piece = bytes::max(); }), overflow);
  EXPECT_EQ(why([](auto& t) { t.pieces = 0; }), count);
  EXPECT_EQ(why([](auto& t) { t.pieces = 3; }), range);
  EXPECT_EQ(why([](auto& t) { t.pieces = 1; }), range);
  EXPECT_EQ(why([](auto& t) { t.first = 0xffff'fffd; }), "");
  EXPECT_EQ(why([](auto& t) { t.first = 0xffff'fffe; }), count);
  EXPECT_EQ(why([](auto& t) { t.payload[0] = std::byte{1}; }),
            "invalid_argument: unexpected payload");
  EXPECT_EQ(why([](auto& t) { t.payload[63] = std::byte{1}; }),
            "invalid_argument: unexpected payload");

  share_ticket one = good();  // of one handle even nothing ends in the last one
  one.pieces = 1;
  one.size = 1_MiB;
  EXPECT_EQ(refusal(one, [](auto& t) { t.size = {}; }), range);

  share_ticket most = good();
  most.pieces = 240;
  most.size = 2_MiB * 240 - 1_MiB;
  EXPECT_EQ(refusal(most,
                    [](auto& t) {
                      t.pieces = 241;
                      t.size += 2_MiB;
                    }),
            count);
}

TEST(tickets, with_rights_and_numbers_that_there_are_not_are_refused) {
  const auto why = [](auto change) { return refusal(good(), change); };
  EXPECT_EQ(why([](auto& t) { t.rights = access_rights::read_write; }), "");
  EXPECT_EQ(why([](auto& t) { t.rights = access_rights::none; }),
            "invalid_argument: access rights");
  EXPECT_EQ(why([](auto& t) { t.rights = static_cast<access_rights>(3); }),
            "invalid_argument: access rights");
  EXPECT_EQ(why([](auto& t) { t.exporter = 0; }), "invalid_argument: a number");
  EXPECT_EQ(why([](auto& t) { t.object = 0; }), "invalid_argument: a number");
  EXPECT_EQ(why([](auto& t) { t.grant = 0; }), "invalid_argument: a number");
  EXPECT_EQ(reason_of(decode_share_ticket(forged(good(), 84, std::byte{1}))),
            "invalid_argument: a reserved field is not zero");
  EXPECT_EQ(reason_of(decode_share_ticket(forged(good(), 87, std::byte{1}))),
            "invalid_argument: a reserved field is not zero");
}

TEST(tickets, of_kinds_without_a_range_are_refused_one) {
  const share_ticket legacy = with_payload(share_kind::legacy_memory, 1_MiB);
  const share_ticket pointer = with_payload(share_kind::pool_pointer, 1_B);
  const share_ticket event = with_payload(share_kind::event, {});
  const share_ticket pool = plain(share_kind::pool, {}, 1);
  for (const share_ticket& each : {legacy, pointer, event, pool}) {
    SCOPED_TRACE(name(each.kind));
    const auto why = [&](auto change) { return refusal(each, change); };
    EXPECT_EQ(why([](auto& t) { t.rights = access_rights::read; }),
              "invalid_argument: access rights");
    EXPECT_EQ(why([](auto& t) { t.offset = 1_B; }), "invalid_argument: unexpected handles");
    EXPECT_EQ(why([](auto& t) { t.piece = 1_B; }), "invalid_argument: unexpected handles");
    EXPECT_EQ(why([](auto& t) { t.first = 1; }), "invalid_argument: unexpected handles");
    EXPECT_EQ(why([](auto& t) { t.kind = static_cast<share_kind>(0); }),
              "invalid_argument: unknown kind");
    EXPECT_EQ(why([](auto& t) { t.kind = static_cast<share_kind>(6); }),
              "invalid_argument: unknown kind");
    EXPECT_EQ(why([](auto& t) { ++t.pieces; }), "invalid_argument: a size");
  }
  EXPECT_EQ(refusal(legacy, [](auto& t) { t.size = {}; }), "invalid_argument: a size");
  EXPECT_EQ(refusal(pointer, [](auto& t) { t.size = {}; }), "invalid_argument: a size");
  EXPECT_EQ(refusal(event, [](auto& t) { t.size = 1_B; }), "invalid_argument: a size");
  EXPECT_EQ(refusal(pool, [](auto& t) { t.size = 1_B; }), "invalid_argument: a size");
  EXPECT_EQ(refusal(pool, [](auto& t) { t.pieces = 0; }), "invalid_argument: a size");
  EXPECT_EQ(refusal(pool, [](auto& t) { t.payload[31] = std::byte{1}; }),
            "invalid_argument: unexpected payload");
}

TEST(packets, have_a_fixed_layout) {
  using namespace sharing;
  const auto number = encode_number(packet_kind::revoke, 0x0102'0304'0506'0708);
  ASSERT_EQ(number.size(), 16u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(number.data()), 4), "weir");
  EXPECT_EQ(number_at(number, 4, 2), 1u);  // version
  EXPECT_EQ(number_at(number, 6, 2), 4u);  // kind
  EXPECT_EQ(number_at(number, 8, 8), 0x0102'0304'0506'0708u);

  const auto offer = encode_offer(good());
  const auto ticket = encode(good());
  ASSERT_EQ(offer.size(), 8u + 160u);
  EXPECT_EQ(number_at(offer, 6, 2), 2u);
  EXPECT_TRUE(std::equal(ticket.begin(), ticket.end(), offer.begin() + 8));

  const auto note = encode_note(as_note("hi"));
  ASSERT_EQ(note.size(), 10u);
  EXPECT_EQ(number_at(note, 6, 2), 3u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(note.data()) + 8, 2), "hi");

  EXPECT_EQ(number_at(encode_number(packet_kind::hello, 1), 6, 2), 1u);
  EXPECT_EQ(number_at(encode_number(packet_kind::closed, 1), 6, 2), 5u);
}

TEST(packets, read_back_as_written) {
  using namespace sharing;
  for (const auto kind : {packet_kind::hello, packet_kind::revoke, packet_kind::closed}) {
    const auto raw = encode_number(kind, 0x99'0000'0001);
    const auto read = decode_packet(raw);
    ASSERT_EQ(reason_of(read), "");
    EXPECT_EQ(read->kind, kind);
    EXPECT_EQ(read->number, 0x99'0000'0001u);
  }
  const auto offer = encode_offer(good());
  EXPECT_EQ(decode_packet(offer).value().kind, packet_kind::offer);
  EXPECT_EQ(decode_packet(offer).value().ticket, good());
  const auto note = encode_note(as_note("hi"));
  const auto read = decode_packet(note).value();
  EXPECT_EQ(read.kind, packet_kind::note);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read.note.data()), read.note.size()), "hi");
  EXPECT_TRUE(decode_packet(encode_note({})).value().note.empty());
}

TEST(packets, that_are_none_are_refused) {
  using namespace sharing;
  const auto good_one = encode_number(packet_kind::closed, 99);
  const auto why = [&](auto change) {
    auto raw = good_one;
    change(raw);
    return reason_of(decode_packet(raw));
  };
  const std::string length = "invalid_argument: the received message has a wrong length";
  EXPECT_EQ(why([](auto&) {}), "");
  EXPECT_EQ(why([](auto& raw) { raw.clear(); }),
            "invalid_argument: the received message is incomplete");
  EXPECT_EQ(why([](auto& raw) { raw.resize(7); }),
            "invalid_argument: the received message is incomplete");
  EXPECT_EQ(why([](auto& raw) { raw.resize(8); }), length);
  EXPECT_EQ(why([](auto& raw) { raw.resize(15); }), length);
  EXPECT_EQ(why([](auto& raw) { raw.resize(17); }), length);
  EXPECT_EQ(why([](auto& raw) { raw[8] = {}; }),
            "invalid_argument: the received message names no object");
  EXPECT_EQ(why([](auto& raw) { raw[6] = {}; }),
            "invalid_argument: the received message is of an unknown kind");
  EXPECT_EQ(why([](auto& raw) { raw[6] = std::byte{6}; }),
            "invalid_argument: the received message is of an unknown kind");
  EXPECT_EQ(why([](auto& raw) { raw[3] = {}; }),
            "invalid_argument: the received data is not a message of weir");
  EXPECT_EQ(why([](auto& raw) { raw[4] = std::byte{9}; }), "bad_version: link version 9");
  EXPECT_EQ(why([](auto& raw) {
              raw[4] = std::byte{9};
              raw[0] = {};
            }),
            "invalid_argument: the received data is not a message of weir");
  const auto offer = encode_offer(good());
  EXPECT_EQ(reason_of(decode_packet(std::span{offer}.first(8 + 159))),
            "invalid_argument: the length");
}

}  // namespace
}  // namespace weir::testing_support
