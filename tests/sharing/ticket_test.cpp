// Tickets and packets as bytes: what is written is read back, and nothing else is.
#include "sharing/packet.hpp"
#include "sharing/sharing_fixture.hpp"

namespace weir::testing_support {
namespace {

share_ticket good() {
  return {.kind = share_kind::memory,
          .rights = access_rights::read,
          .device = {1, 2, 3},
          .exporter = 77,
          .object = 5,
          .grant = 6,
          .size = 3_MiB,
          .offset = 1_MiB,
          .piece = 2_MiB,
          .first = 4,
          .pieces = 2};
}

share_ticket plain(share_kind kind, bytes size, std::uint32_t pieces) {
  return {.kind = kind, .exporter = 1, .object = 1, .grant = 1, .size = size, .pieces = pieces};
}

TEST(tickets, read_back_as_written) {
  for (const auto& each :
       {good(), plain(share_kind::legacy_memory, 1_MiB, 0), plain(share_kind::pool, {}, 1),
        plain(share_kind::pool_pointer, 1_B, 0), plain(share_kind::event, {}, 0)}) {
    const auto read = decode_share_ticket(encode(each));
    ASSERT_EQ(code_of(read), std::nullopt) << name(each.kind);
    EXPECT_EQ(*read, each);
  }
}

// The layout is what two versions of weir on one machine agree about.
TEST(tickets, have_a_fixed_layout) {
  const auto raw = encode(good());
  ASSERT_EQ(raw.size(), 160u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(raw.data()), 8), "weirtket");
  const auto at = [&](std::size_t i) { return std::to_integer<int>(raw[i]); };
  EXPECT_EQ(at(8), 1);    // version
  EXPECT_EQ(at(10), 1);   // kind
  EXPECT_EQ(at(11), 1);   // rights
  EXPECT_EQ(at(12), 2);   // pieces
  EXPECT_EQ(at(18), 3);   // device
  EXPECT_EQ(at(32), 77);  // exporter
  EXPECT_EQ(at(40), 5);   // object
  EXPECT_EQ(at(48), 6);   // grant
  EXPECT_EQ(at(58), 48);  // size: 3 MiB
  EXPECT_EQ(at(66), 16);  // offset: 1 MiB
  EXPECT_EQ(at(74), 32);  // piece: 2 MiB
  EXPECT_EQ(at(80), 4);   // first
}

TEST(tickets, have_a_text) {
  EXPECT_EQ(to_string(good()),
            "grant 6 of object 5: memory, read, 3 MiB at 1 MiB in 2 handles of 2 MiB");
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
  EXPECT_EQ(code_of(decode_share_ticket(raw)), errc::bad_version);
  EXPECT_EQ(code_of(decode_share_ticket(std::span{raw}.first(12))), errc::bad_version);
}

TEST(tickets, that_were_damaged_are_refused) {
  const auto raw = encode(good());
  for (std::size_t length = 0; length < raw.size(); ++length) {
    EXPECT_EQ(code_of(decode_share_ticket(std::span{raw}.first(length))), errc::invalid_argument);
  }
  std::vector<std::byte> longer{raw.begin(), raw.end()};
  longer.push_back({});
  EXPECT_EQ(code_of(decode_share_ticket(longer)), errc::invalid_argument);
  for (std::size_t i = 0; i < raw.size(); ++i) {
    for (const int bend : {0x01, 0x80, 0xff}) {
      auto bent = raw;
      bent[i] ^= static_cast<std::byte>(bend);
      EXPECT_TRUE(code_of(decode_share_ticket(bent)).has_value()) << i;
    }
  }
}

TEST(tickets, that_contradict_themselves_are_refused) {
  const auto refused = [](auto change) {
    share_ticket bad = good();
    change(bad);
    return code_of(decode_share_ticket(encode(bad))) == errc::invalid_argument;
  };
  EXPECT_TRUE(refused([](auto& t) { t.size = {}; }));
  EXPECT_TRUE(refused([](auto& t) { t.size = 4_MiB; }));  // beyond the handles
  EXPECT_TRUE(refused([](auto& t) { t.size = 1_MiB; }));  // leaves the last one unused
  EXPECT_TRUE(refused([](auto& t) { t.size = bytes::max(); }));
  EXPECT_TRUE(refused([](auto& t) { t.offset = 2_MiB; }));  // leaves the first one unused
  EXPECT_TRUE(refused([](auto& t) { t.offset = bytes::max(); }));
  EXPECT_TRUE(refused([](auto& t) { t.piece = {}; }));
  EXPECT_TRUE(refused([](auto& t) { t.piece = bytes::max(); }));
  EXPECT_TRUE(refused([](auto& t) { t.pieces = 0; }));
  EXPECT_TRUE(refused([](auto& t) { t.pieces = most_share_pieces + 1; }));
  EXPECT_TRUE(refused([](auto& t) { t.first = 0xffff'ffff; }));
  EXPECT_TRUE(refused([](auto& t) { t.rights = access_rights::none; }));
  EXPECT_TRUE(refused([](auto& t) { t.rights = static_cast<access_rights>(3); }));
  EXPECT_TRUE(refused([](auto& t) { t.exporter = 0; }));
  EXPECT_TRUE(refused([](auto& t) { t.object = 0; }));
  EXPECT_TRUE(refused([](auto& t) { t.grant = 0; }));
  EXPECT_TRUE(refused([](auto& t) { t.payload[63] = std::byte{1}; }));
  EXPECT_TRUE(refused([](auto& t) { t.kind = static_cast<share_kind>(0); }));
  EXPECT_TRUE(refused([](auto& t) { t.kind = static_cast<share_kind>(6); }));
  EXPECT_TRUE(refused([](auto& t) { t = plain(share_kind::legacy_memory, {}, 0); }));
  EXPECT_TRUE(refused([](auto& t) { t = plain(share_kind::legacy_memory, 1_MiB, 1); }));
  EXPECT_TRUE(refused([](auto& t) { t = plain(share_kind::pool, {}, 0); }));
  EXPECT_TRUE(refused([](auto& t) { t = plain(share_kind::pool, 1_MiB, 1); }));
  EXPECT_TRUE(refused([](auto& t) { t = plain(share_kind::pool_pointer, {}, 0); }));
  EXPECT_TRUE(refused([](auto& t) { t = plain(share_kind::event, 1_B, 0); }));
  EXPECT_TRUE(refused([](auto& t) {
    t = plain(share_kind::event, {}, 0);
    t.rights = access_rights::read;
  }));
  EXPECT_TRUE(refused([](auto& t) {
    t = plain(share_kind::event, {}, 0);
    t.piece = 2_MiB;
  }));
  EXPECT_FALSE(refused([](auto&) {}));
}

TEST(packets, read_back_as_written) {
  using namespace sharing;
  for (const auto kind : {packet_kind::hello, packet_kind::revoke, packet_kind::closed}) {
    const auto raw = encode_number(kind, 99);
    const auto read = decode_packet(raw);
    ASSERT_EQ(code_of(read), std::nullopt);
    EXPECT_EQ(read->kind, kind);
    EXPECT_EQ(read->number, 99u);
  }
  const auto offer = encode_offer(good());
  EXPECT_EQ(decode_packet(offer).value().ticket, good());
  const auto note = encode_note(as_note("hi"));
  EXPECT_EQ(decode_packet(note).value().note.size(), 2u);
}

TEST(packets, that_are_none_are_refused) {
  using namespace sharing;
  auto raw = encode_number(packet_kind::closed, 99);
  EXPECT_EQ(code_of(decode_packet({})), errc::invalid_argument);
  EXPECT_EQ(code_of(decode_packet(std::span{raw}.first(7))), errc::invalid_argument);
  EXPECT_EQ(code_of(decode_packet(std::span{raw}.first(15))), errc::invalid_argument);
  EXPECT_EQ(code_of(decode_packet(encode_number(packet_kind::closed, 0))), errc::invalid_argument);
  EXPECT_EQ(code_of(decode_packet(encode_number(static_cast<packet_kind>(9), 1))),
            errc::invalid_argument);
  raw[4] = std::byte{9};
  EXPECT_EQ(code_of(decode_packet(raw)), errc::bad_version);
  raw[0] = std::byte{0};
  EXPECT_EQ(code_of(decode_packet(raw)), errc::invalid_argument);
}

}  // namespace
}  // namespace weir::testing_support
