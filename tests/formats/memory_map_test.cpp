// SPDX-License-Identifier: Apache-2.0
// What is reserved and live after each event of a recording.
#include "formats/memory_map.hpp"

#include <tuple>

#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using change = std::pair<std::uint64_t, std::int64_t>;

/// What each event did to reserved memory: addresses, and sizes with their sign.
std::vector<std::vector<change>> changes_in(const recording& recorded) {
  formats::memory_map map{recorded};
  std::vector<std::vector<change>> all;
  for (const trace_event& each : recorded.events) {
    map.apply(each);
    all.emplace_back();
    for (const auto& one : map.changes()) {
      const auto size = static_cast<std::int64_t>(one.size);
      all.back().emplace_back(one.address, one.reserved ? size : -size);
    }
  }
  return all;
}

TEST(memory_map, memory_that_was_reserved_before_the_recording_appears_with_its_first_block) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {0};
  recorded.events = {
      {.address = 0x1000, .size = 0x1000, .kind = reserve},
      {.address = 0x800, .size = 0x1800, .extra = 0x2000, .kind = allocate},  // both sides missing
      {.address = 0x800, .size = 0x1800, .kind = deallocate},
      {.address = 0x900, .size = 0x200, .extra = 0x200, .kind = allocate},  // known by now
      {.address = 0x0, .size = 0x1200, .kind = reserve},                    // half of it known
      {.address = 0x2400, .size = 0x1000, .kind = release},                 // most of it unknown
      {.address = 0x9000, .size = 0x1000, .extra = 0x1000, .kind = move},
  };
  using list = std::vector<std::vector<change>>;
  EXPECT_EQ(changes_in(recorded), (list{{{0x1000, 0x1000}},
                                        {{0x800, 0x800}, {0x2000, 0x800}},
                                        {},
                                        {},
                                        {{0x0, 0x800}},
                                        {{0x2400, -0x400}},
                                        {{0x1000, -0x1000}, {0x9000, 0x1000}}}));
}

TEST(memory_map, memory_comes_and_goes_with_blocks_where_no_reservation_is_recorded) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {0};
  recorded.events = {{.address = 0x1000, .size = 100, .kind = allocate},
                     {.address = 0x1200, .size = 513, .kind = allocate},
                     {.address = 0x1000, .size = 100, .kind = deallocate},
                     {.address = 0x1200, .size = 513, .kind = deallocate}};
  using list = std::vector<std::vector<change>>;
  EXPECT_EQ(changes_in(recorded),
            (list{{{0x1000, 512}}, {{0x1200, 1024}}, {{0x1000, -512}}, {{0x1200, -1024}}}));
  // What lies below stays.
  std::swap(recorded.events[2], recorded.events[3]);
  EXPECT_EQ(changes_in(recorded),
            (list{{{0x1000, 512}}, {{0x1200, 1024}}, {{0x1200, -1024}}, {{0x1000, -512}}}));
  // Freed in two steps, it stays until the second.
  recorded.real_addresses = false;
  recorded.events[2] = {.address = 0x1000, .size = 100, .kind = deallocate};
  recorded.events[3] = {.address = 0x1000, .size = 100, .kind = reusable};
  const std::uint64_t first = std::uint64_t{1} << 40;
  EXPECT_EQ(changes_in(recorded),
            (list{{{first, 512}}, {{first + 512, 1024}}, {}, {{first, -512}}}));
}

TEST(memory_map, knows_blocks_and_what_is_reserved) {
  using enum trace_kind;
  recording recorded;
  recorded.events = {
      {.address = 0x1000, .size = 0x1000, .kind = reserve},
      {.address = 0x1200, .size = 500, .extra = 512, .stream = 1, .other = 4, .kind = allocate},
      {.address = 0x1600, .size = 100, .extra = 512, .kind = allocate},
      {.address = 0x1600, .size = 100, .kind = deallocate},
      {.address = 0x1800, .size = 200, .extra = 512, .kind = allocate},
      {.address = 0x1800, .size = 200, .kind = deallocate},
      {.address = 0x1800, .size = 200, .kind = reusable},
      {.address = 0x1f00, .size = 0x100, .kind = trace_kind::release}};
  formats::memory_map map{recorded};
  std::vector<bool> waits;
  for (const trace_event& each : recorded.events) {
    EXPECT_EQ(map.apply(each), each);
    if (each.kind == deallocate) waits.push_back(map.is_pending_free());
  }
  EXPECT_EQ(waits, (std::vector<bool>{false, true}));
  ASSERT_EQ(map.blocks().size(), 1u);
  const auto& live = map.blocks().at(0x1200);
  EXPECT_EQ(live.size, 500u);
  EXPECT_EQ(live.rounded, 512u);
  EXPECT_EQ(live.stream, 1u);
  EXPECT_EQ(live.stack, 4u);
  EXPECT_FALSE(live.pending);
  EXPECT_EQ(map.reserved(), (std::map<std::uint64_t, std::uint64_t>{{0x1000, 0x1f00}}));
}

TEST(memory_map, ends_blocks_that_a_later_one_overlaps) {
  using enum trace_kind;
  recording recorded;
  recorded.events = {{.address = 0x1000, .size = 512, .kind = allocate},
                     {.address = 0x1200, .size = 512, .kind = allocate},
                     {.address = 0x1400, .size = 512, .kind = allocate},
                     {.address = 0x1100, .size = 512, .kind = allocate}};  // frees were dropped
  formats::memory_map map{recorded};
  for (const trace_event& each : recorded.events) map.apply(each);
  std::vector<std::uint64_t> addresses;
  for (const auto& [address, block] : map.blocks()) addresses.push_back(address);
  EXPECT_EQ(addresses, (std::vector<std::uint64_t>{0x1100, 0x1400}));
}

TEST(memory_map, knows_which_blocks_have_memory) {
  using enum trace_kind;
  recording recorded;
  recorded.events = {{.address = 0x1000, .size = 0x400, .kind = reserve},
                     {.address = 0x1000, .size = 512, .kind = allocate},
                     {.address = 0x1200, .size = 512, .kind = allocate},
                     {.address = 0x1200, .size = 0x200, .kind = trace_kind::release}};  // suspended
  formats::memory_map map{recorded};
  for (const trace_event& each : recorded.events) map.apply(each);
  EXPECT_EQ(map.blocks().size(), 2u);
  EXPECT_TRUE(map.has_memory(0x1000));
  EXPECT_TRUE(map.has_memory(0x11ff));
  EXPECT_FALSE(map.has_memory(0x1200));
  EXPECT_FALSE(map.has_memory(0xfff));
}

TEST(memory_map, rounds_sizes_that_are_not_recorded) {
  using enum trace_kind;
  recording recorded;
  const std::tuple<std::uint64_t, std::uint64_t, std::uint64_t> sizes[] = {
      {0, 0, 512},
      {1, 0, 512},
      {512, 0, 512},
      {513, 0, 1024},
      {100, 99, 512},
      {100, 100, 100},
      {100, 4096, 4096},
      {UINT64_MAX, 0, UINT64_MAX},
      {UINT64_MAX - 511, 0, UINT64_MAX - 511}};
  for (const auto& [size, recorded_size, rounded] : sizes) {
    formats::memory_map map{recorded};
    map.apply({.address = 0, .size = size, .extra = recorded_size, .kind = allocate});
    EXPECT_EQ(map.blocks().at(0).rounded, rounded) << size;
    EXPECT_EQ(map.reserved(), (std::map<std::uint64_t, std::uint64_t>{{0, rounded}}));
  }
}

TEST(memory_map, joins_and_splits_what_is_reserved) {
  using enum trace_kind;
  recording recorded;
  recorded.events = {{.kind = reserve}};
  formats::memory_map map{recorded};
  using ranges = std::map<std::uint64_t, std::uint64_t>;
  const auto after = [&](trace_kind kind, std::uint64_t address, std::uint64_t size) {
    map.apply({.address = address, .size = size, .kind = kind});
    return map.reserved();
  };
  constexpr auto freed = trace_kind::release;
  EXPECT_EQ(after(reserve, 100, 0), ranges{});
  EXPECT_EQ(after(reserve, 100, 100), (ranges{{100, 200}}));
  EXPECT_EQ(after(reserve, 300, 100), (ranges{{100, 200}, {300, 400}}));
  EXPECT_EQ(after(reserve, 201, 98), (ranges{{100, 200}, {201, 299}, {300, 400}}));
  EXPECT_EQ(after(reserve, 200, 1), (ranges{{100, 299}, {300, 400}}));  // it touches both sides
  EXPECT_EQ(after(reserve, 150, 160), (ranges{{100, 400}}));
  EXPECT_EQ(after(freed, 400, 50), (ranges{{100, 400}}));
  EXPECT_EQ(after(freed, 50, 50), (ranges{{100, 400}}));
  EXPECT_EQ(after(freed, 200, 50), (ranges{{100, 200}, {250, 400}}));
  EXPECT_EQ(after(freed, 390, 50), (ranges{{100, 200}, {250, 390}}));
  EXPECT_EQ(after(freed, 50, 60), (ranges{{110, 200}, {250, 390}}));
  EXPECT_EQ(after(freed, 190, 70), (ranges{{110, 190}, {260, 390}}));
  EXPECT_EQ(after(freed, 110, 20), (ranges{{130, 190}, {260, 390}}));  // from a range's begin
  EXPECT_EQ(after(freed, 380, 10), (ranges{{130, 190}, {260, 380}}));  // up to its end
  EXPECT_EQ(after(freed, 260, 120), (ranges{{130, 190}}));             // all of it
  EXPECT_EQ(after(reserve, 260, 120), (ranges{{130, 190}, {260, 380}}));
  EXPECT_EQ(after(freed, 0, UINT64_MAX), ranges{});
  EXPECT_EQ(after(reserve, UINT64_MAX - 10, 100), (ranges{{UINT64_MAX - 10, UINT64_MAX}}));
}

TEST(memory_map, tells_each_piece_that_comes_or_goes) {
  using enum trace_kind;
  constexpr auto freed = trace_kind::release;
  recording recorded;
  recorded.events = {{.address = 100, .size = 100, .kind = reserve},
                     {.address = 300, .size = 100, .kind = reserve},
                     {.address = 500, .size = 100, .kind = reserve},
                     {.address = 150, .size = 400, .kind = freed},
                     {.address = 120, .size = 450, .kind = reserve},
                     {.address = 110, .size = 20, .kind = freed},
                     {.address = 0, .size = 1000, .kind = freed}};
  using list = std::vector<std::vector<change>>;
  EXPECT_EQ(changes_in(recorded), (list{{{100, 100}},
                                        {{300, 100}},
                                        {{500, 100}},
                                        {{150, -50}, {300, -100}, {500, -50}},
                                        {{150, 400}},
                                        {{110, -20}},
                                        {{100, -10}, {130, -470}}}));
}

TEST(memory_map, nothing_is_released_of_no_bytes) {
  using enum trace_kind;
  recording recorded;
  recorded.events = {{.address = 100, .size = 100, .kind = reserve},
                     {.address = 150, .size = 0, .kind = trace_kind::release},
                     {.address = 100, .size = 0, .kind = trace_kind::release},
                     {.address = 300, .size = 0, .extra = 150, .kind = move},
                     {.address = UINT64_MAX, .size = 5, .kind = trace_kind::release}};
  formats::memory_map map{recorded};
  for (const trace_event& each : recorded.events) {
    map.apply(each);
    EXPECT_EQ(map.reserved(), (std::map<std::uint64_t, std::uint64_t>{{100, 200}}));
    EXPECT_EQ(map.changes().size(), each.kind == reserve ? 1u : 0u);
  }
}

TEST(memory_map, gives_blocks_places_of_their_own_where_addresses_are_none) {
  using enum trace_kind;
  recording recorded;
  recorded.real_addresses = false;
  formats::memory_map map{recorded};
  const std::uint64_t first = std::uint64_t{1} << 40;
  const auto place = [&](trace_kind kind, std::uint64_t address, std::uint64_t size = 1000) {
    return map.apply({.address = address, .size = size, .kind = kind}).address;
  };
  EXPECT_EQ(place(allocate, 1), first);
  EXPECT_EQ(place(allocate, 2), first + 1024);
  EXPECT_EQ(place(record_stream, 1), first);
  EXPECT_EQ(map.blocks().size(), 2u);
  EXPECT_EQ(place(deallocate, 1), first);
  EXPECT_EQ(map.blocks().size(), 1u);
  EXPECT_EQ(place(allocate, 1), first + 2048);  // never one that was there before
  EXPECT_EQ(place(deallocate, 1), first + 2048);
}

/// A recorder that joins late begins with the blocks that are there, and then says which pools are
/// suspended.
TEST(memory_map, blocks_that_were_suspended_before_the_recording_have_no_memory) {
  using enum trace_kind;
  recording recorded;
  recorded.events = {
      {.address = 0x9000, .size = 0x1000, .kind = reserve},
      {.address = 0x1000, .size = 0x800, .extra = 0x800, .pool = 1, .kind = allocate},
      {.address = 0x5000, .size = 0x400, .extra = 0x400, .pool = 2, .kind = allocate},
      {.address = 0x9000, .size = 0x200, .extra = 0x200, .kind = allocate},
      {.size = 0x800, .pool = 1, .kind = suspended},
      {.address = 0x1000, .size = 0x1000, .pool = 1, .kind = reserve},
      {.size = 0x800, .pool = 1, .kind = resumed},
      {.address = 0x1800, .size = 0x200, .extra = 0x200, .pool = 1, .kind = allocate},
      {.address = 0x1000, .size = 0x1000, .pool = 1, .kind = trace_kind::release},
      {.size = 0xa00, .pool = 1, .kind = suspended}};
  using list = std::vector<std::vector<change>>;
  EXPECT_EQ(changes_in(recorded), (list{{{0x9000, 0x1000}},
                                        {},
                                        {{0x5000, 0x400}},  // whose pool is not suspended
                                        {},
                                        {},
                                        {{0x1000, 0x1000}},
                                        {},
                                        {},
                                        {{0x1000, -0x1000}},
                                        {}}));
  formats::memory_map map{recorded};
  for (const trace_event& each : recorded.events) map.apply(each);
  EXPECT_FALSE(map.has_memory(0x1000));
  EXPECT_TRUE(map.has_memory(0x5000));
  EXPECT_TRUE(map.blocks().contains(0x1000)) << "it is live";
}

}  // namespace
}  // namespace weir::testing_support
