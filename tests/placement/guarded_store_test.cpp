// SPDX-License-Identifier: Apache-2.0
// The debug policy's store by itself: where blocks lie, what is found, when memory goes.
#include "placement/guarded_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "support/sizes.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing_support::gib;
using testing_support::kib;
using testing_support::mib;

// --- Where blocks lie ----------------------------------------------------------------------------

TEST(guarded_places, a_block_alone_ends_where_its_memory_does) {
  EXPECT_EQ(place_alone({.units = 2, .waste = 24}, 8 * mib, 10 * mib),
            (fenced_block{10 * mib - 1024 - 16 * kib, 10 * mib - 1024, 1000, 10 * mib}));
  EXPECT_EQ(place_alone({.units = 4096}, 8 * mib, 10 * mib),
            (fenced_block{8 * mib, 8 * mib, 2 * mib, 10 * mib}))
      << "no room for a zone: the guards are beside it";
  EXPECT_EQ(place_alone({.units = 4095}, 8 * mib, 10 * mib),
            (fenced_block{8 * mib, 8 * mib + 512, 2 * mib - 512, 10 * mib}));
  EXPECT_EQ(place_alone({.units = 1, .alignment = 4096}, 8 * mib, 10 * mib),
            (fenced_block{8 * mib, 8 * mib, 512, 8 * mib + 512 + 16 * kib}))
      << "where its alignment wants it, with a zone behind";
}

TEST(guarded_places, a_block_beside_others_has_a_zone_on_each_side) {
  EXPECT_EQ(place_beside({.units = 1, .waste = 511}, 8 * mib),
            (fenced_block{8 * mib, 8 * mib + 512, 1, 8 * mib + 1536}));
  EXPECT_EQ(place_beside({.units = 128}, 8 * mib),
            (fenced_block{8 * mib, 8 * mib + 8 * kib, 64 * kib, 8 * mib + 80 * kib}))
      << "an eighth";
  EXPECT_EQ(place_beside({.units = 1024}, 8 * mib),
            (fenced_block{8 * mib, 8 * mib + 16 * kib, 512 * kib, 8 * mib + 544 * kib}))
      << "at most 16 KiB";
  EXPECT_EQ(
      place_beside({.units = 1, .alignment = 256}, 8 * mib),
      (fenced_block{8 * mib + 112 * kib, 8 * mib + 128 * kib, 512, 8 * mib + 128 * kib + kib}));
}

TEST(damage_search, tells_the_first_the_last_and_what_stands_there) {
  std::array<std::byte, 16> bytes{};
  damage_search search{0};
  search.look(1000, bytes);
  EXPECT_FALSE(search.any());
  bytes[3] = std::byte{7};
  bytes[9] = std::byte{9};
  search.look(1016, bytes);
  bytes.fill({});
  bytes[0] = std::byte{1};
  search.look(1032, bytes);
  EXPECT_EQ(search.found().first, 1019u);
  EXPECT_EQ(search.found().last, 1032u);
  EXPECT_EQ(search.found().count, 3u);
  EXPECT_EQ(search.found().seen_count, 8u);
  EXPECT_THAT(search.found().seen, ElementsAre(7, 0, 0, 0, 0, 0, 9, 0));
}

TEST(damage_search, knows_of_no_place_and_no_block_where_it_found_nothing) {
  damage_search search{7};
  search.look(1000, std::vector(16, std::byte{7}));
  EXPECT_EQ(search.found().block, 0u);
  EXPECT_EQ(search.found().requested, 0u);
  EXPECT_EQ(search.found().first, 0u);
  EXPECT_EQ(search.found().last, 0u);
  EXPECT_EQ(search.found().count, 0u);
  EXPECT_EQ(search.found().expected, 7u);
  EXPECT_EQ(search.found().seen_count, 0u);
  EXPECT_FALSE(search.found().after_free);
}

// --- The store -----------------------------------------------------------------------------------

class damages final : public damage_sink {
 public:
  void on_damage(const damage& found) noexcept override { all.push_back(found); }
  std::vector<damage> all;
};

class guarded_stores : public ::testing::Test {
 protected:
  guarded_stores() {
    shared.damaged = &damaged;
    slot = known.slot_of(stream, bound).value();
  }
  void TearDown() override {
    EXPECT_EQ(store->check(), "");
    EXPECT_TRUE(store->close(bound));
    EXPECT_EQ(shared.reserved, 0u);
    EXPECT_THAT(damaged.all, IsEmpty());
    EXPECT_THAT(machine->hazards(), IsEmpty());
    EXPECT_EQ(gpu.memory_info().value().free, free_before);
  }
  void make(guard_rules rules) {
    auto made = guarded_store::create(shared, pool_id{}, rules, bound);
    store.reset(static_cast<guarded_store*>(made.value().release()));
  }
  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options chosen;
    chosen.devices = {
        sim::device_spec{.capacity = bytes{1024 * mib}, .context_overhead = bytes{64 * mib}}};
    chosen.mode = sim::progress::manual;
    return sim::machine::create(chosen).value();
  }
  [[nodiscard]] request asks(std::uint64_t size, std::uint32_t alignment = 1) const {
    const std::uint64_t units = units_for(bytes{size});
    return {.units = static_cast<std::uint32_t>(units),
            .alignment = alignment,
            .stream = slot,
            .waste = static_cast<std::uint32_t>(units * unit - size)};
  }
  block_index grow(std::uint64_t size, std::uint32_t alignment = 1) {
    const block_index made = store->grow(asks(size, alignment), bound).value();
    EXPECT_NE(made, no_block);
    EXPECT_EQ(store->check(), "");
    return made;
  }
  /// Freed, and the stream has come past it.
  void free(block_index index) {
    store->free(index, known.now(slot));
    EXPECT_TRUE(known.close(slot, bound));
    EXPECT_TRUE(known.poll(bound));
    EXPECT_EQ(store->check(), "");
  }
  static std::uint8_t& byte_at(std::uint64_t address) {
    return *reinterpret_cast<std::uint8_t*>(address);  // device addresses are host addresses here
  }

  std::shared_ptr<sim::machine> machine = make_machine();
  std::shared_ptr<runtime> simulated = runtime::open_simulated(machine).value();
  device gpu = simulated->device(device_id{0}).value();
  context_scope bound{gpu};
  block_store blocks;
  order::stream_order known{gpu};
  placement_context shared{.device = gpu,
                           .blocks = blocks,
                           .order = known,
                           .supply = placement::memory_supply{gpu, 1024 * gib}};
  weir::stream stream = stream::create(gpu).value();
  stream_slot slot = 0;
  bytes free_before = gpu.memory_info().value().free;
  damages damaged;
  std::unique_ptr<guarded_store> store;
};

TEST_F(guarded_stores, a_block_alone_is_filled_mapped_and_known_from_its_guards) {
  make({.quarantine = gib});
  const block_index index = grow(1000);
  const std::uint64_t p = blocks[index].address;
  EXPECT_EQ((p + 1024) % (2 * mib), 0u);
  EXPECT_EQ(store->reserved(), 2 * mib);
  EXPECT_EQ(store->handed_out(), 1024u);
  EXPECT_EQ(store->fragments(), 2 * mib - 1024);
  EXPECT_EQ(byte_at(p - 16 * kib), red_byte);
  EXPECT_EQ(byte_at(p - 16 * kib - 1), 0);
  EXPECT_EQ(byte_at(p - 1), red_byte);
  EXPECT_EQ(byte_at(p), fresh_byte);
  EXPECT_EQ(byte_at(p + 999), fresh_byte);
  EXPECT_EQ(byte_at(p + 1000), red_byte);
  EXPECT_EQ(byte_at(p + 1023), red_byte);
  EXPECT_EQ(store->block_over(p + 1023), index);
  EXPECT_EQ(store->block_over(p + 1024), no_block);
  EXPECT_EQ(store->block_over(p - 1), no_block);
  for (const std::uint64_t address : {p + 1024, p + 1024 + 2 * mib - 1, p, p - 4 * mib + 1024}) {
    const auto near = store->block_near(address);
    ASSERT_TRUE(near) << address - p;
    EXPECT_EQ(near->address, p);
    EXPECT_EQ(near->requested, 1000u);
    EXPECT_TRUE(near->is_live);
  }
  EXPECT_FALSE(store->block_near(p + 1024 + 2 * mib));
  EXPECT_FALSE(store->block_near(p - 4 * mib + 1023));
  pool_snapshot seen;
  store->describe(seen);
  ASSERT_EQ(seen.blocks.size(), 2u);
  EXPECT_EQ(seen.blocks[0].address, p + 1024 - 2 * mib);
  EXPECT_EQ(seen.blocks[0].size, bytes{2 * mib - 1024});
  EXPECT_EQ(seen.blocks[0].state, block_state::free);
  EXPECT_EQ(seen.blocks[1].address, p);
  EXPECT_EQ(seen.blocks[1].requested, bytes{1000});
  EXPECT_EQ(seen.blocks[1].state, block_state::live);
  ASSERT_EQ(seen.physical.size(), 1u);
  EXPECT_EQ(seen.physical[0].size, bytes{2 * mib});
}

TEST_F(guarded_stores, only_memory_that_was_to_be_exported_shows_its_handles) {
  make({.quarantine = gib});
  EXPECT_EQ(store->handles_under(grow(1000)).code(), errc::not_supported);
}

TEST_F(guarded_stores, a_freed_block_is_inspected_and_unmapped_when_its_stream_is_past_it) {
  make({.quarantine = gib});
  EXPECT_TRUE(store->inspects());
  const block_index index = grow(3 * mib);
  const std::uint64_t p = blocks[index].address;
  store->free(index, known.now(slot));
  EXPECT_EQ(store->handed_out(), 0u);
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 4 * mib) << "the stream may still use it";
  ASSERT_TRUE(known.close(slot, bound));
  ASSERT_TRUE(known.poll(bound));
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 0u);
  EXPECT_EQ(store->quarantined(), 8 * mib);
  EXPECT_EQ(shared.handles_created, 1u);
  EXPECT_EQ(shared.handles_released, 1u);
  const auto near = store->block_near(p + 5);
  ASSERT_TRUE(near);
  EXPECT_EQ(near->address, p);
  EXPECT_FALSE(near->is_live);
}

TEST_F(guarded_stores, damage_on_either_side_is_told_to_the_byte) {
  make({.quarantine = gib});
  const block_index index = grow(1000);
  const std::uint64_t p = blocks[index].address;
  byte_at(p - 4) = 1;
  byte_at(p - 2) = 2;
  byte_at(p + 1000) = 3;
  free(index);
  ASSERT_TRUE(store->inspect(bound));
  ASSERT_EQ(damaged.all.size(), 2u);
  const damage& before = damaged.all[0];
  EXPECT_EQ(before.block, p);
  EXPECT_EQ(before.requested, 1000u);
  EXPECT_EQ(before.first, p - 4);
  EXPECT_EQ(before.last, p - 2);
  EXPECT_EQ(before.count, 2u);
  EXPECT_EQ(before.expected, red_byte);
  EXPECT_EQ(before.seen_count, 4u);
  EXPECT_EQ(before.seen[0], 1u);
  EXPECT_EQ(before.seen[1], red_byte);
  EXPECT_FALSE(before.after_free);
  EXPECT_EQ(damaged.all[1].first, p + 1000);
  EXPECT_EQ(damaged.all[1].last, p + 1000);
  EXPECT_EQ(store->reserved(), 0u) << "it is given back all the same";
  damaged.all.clear();
}

TEST_F(guarded_stores, small_blocks_share_a_granule_and_no_byte_is_given_twice) {
  make({.shares_memory = true, .quarantine = gib});
  const block_index first = grow(1);
  const std::uint64_t a = blocks[first].address;
  const std::uint64_t b = blocks[grow(1000)].address;
  EXPECT_EQ(a % (2 * mib), 512u);
  EXPECT_EQ(b - a, 512u + 512 + 512) << "its unit, its zone, the zone of the next";
  EXPECT_EQ(store->reserved(), 2 * mib);
  free(first);
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 2 * mib);
  EXPECT_EQ(byte_at(a), freed_byte);
  EXPECT_EQ(byte_at(a - 512), freed_byte);
  EXPECT_EQ(byte_at(a + 1023), freed_byte);
  EXPECT_EQ(byte_at(a + 1024), red_byte) << "the next block's";
  const std::uint64_t c = blocks[grow(1)].address;
  EXPECT_EQ(c - b, 1024u + 512 + 512);
  EXPECT_FALSE(store->block_near(a)->is_live);
  EXPECT_EQ(store->block_near(b - 1)->address, b);
  EXPECT_EQ(store->block_near(b - 513)->address, a);
  EXPECT_EQ(store->block_near(a - 1024)->address, a) << "the guard in front";
  EXPECT_EQ(store->block_near(c + mib)->address, c);
}

TEST_F(guarded_stores, a_freed_block_is_described_as_free_with_what_is_beside_it) {
  make({.shares_memory = true, .quarantine = gib});
  const block_index first = grow(1);
  const std::uint64_t start = blocks[first].address - 512;
  const std::uint64_t b = blocks[grow(1000)].address;
  free(first);
  for (const char* when : {"before it was inspected", "afterwards"}) {
    SCOPED_TRACE(when);
    pool_snapshot seen;
    store->describe(seen);
    ASSERT_EQ(seen.blocks.size(), 3u);
    EXPECT_EQ(seen.blocks[0].address, start);
    EXPECT_EQ(seen.blocks[0].size, bytes{b - start});
    EXPECT_EQ(seen.blocks[0].state, block_state::free);
    EXPECT_EQ(seen.blocks[1].address, b);
    EXPECT_EQ(seen.blocks[1].size, bytes{1024});
    EXPECT_EQ(seen.blocks[1].state, block_state::live);
    EXPECT_EQ(seen.blocks[2].address, b + 1024);
    EXPECT_EQ(seen.blocks[2].size, bytes{start + 2 * mib - (b + 1024)});
    EXPECT_EQ(seen.blocks[2].state, block_state::free);
    ASSERT_TRUE(store->inspect(bound));
  }
}

TEST_F(guarded_stores, large_blocks_never_share) {
  make({.shares_memory = true, .quarantine = gib});
  // With 16 KiB of zone on either side half a granule holds 992 KiB.
  static_cast<void>(grow(992 * kib));
  EXPECT_EQ(blocks[grow(992 * kib)].address % (2 * mib), 1024 * kib + 16 * kib);
  EXPECT_EQ(store->reserved(), 2 * mib);
  EXPECT_EQ((blocks[grow(992 * kib + 1)].address + 992 * kib + 512) % (2 * mib), 0u);
  EXPECT_EQ(store->reserved(), 4 * mib);
}

TEST_F(guarded_stores, a_write_after_the_free_is_told_when_the_granule_goes) {
  make({.shares_memory = true, .quarantine = gib});
  const block_index first = grow(100);
  const block_index second = grow(100);
  const std::uint64_t a = blocks[first].address;
  free(first);
  ASSERT_TRUE(store->inspect(bound));
  byte_at(a + 7) = 42;
  free(second);
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 2 * mib) << "it takes blocks yet";
  EXPECT_THAT(damaged.all, IsEmpty());
  EXPECT_EQ(store->release(bytes::max(), bound).value(), bytes{2 * mib});
  ASSERT_EQ(damaged.all.size(), 1u);
  EXPECT_EQ(damaged.all[0].block, a);
  EXPECT_EQ(damaged.all[0].first, a + 7);
  EXPECT_EQ(damaged.all[0].expected, freed_byte);
  EXPECT_TRUE(damaged.all[0].after_free);
  EXPECT_FALSE(store->block_near(a)->is_live);
  damaged.all.clear();
}

TEST_F(guarded_stores, every_byte_of_a_granule_is_compared_and_told_of_once) {
  make({.shares_memory = true, .quarantine = gib});
  const block_index index = grow(60 * kib);
  const std::uint64_t p = blocks[index].address;
  free(index);
  ASSERT_TRUE(store->inspect(bound));
  for (const std::uint64_t offset : {20 * kib, 50 * kib}) byte_at(p + offset) = 1;
  for (const auto call : {driver::call::mem_release, driver::call::mem_unmap}) {
    machine->fail(call, 1, driver::CUDA_ERROR_UNKNOWN);
    EXPECT_FALSE(store->release(bytes::max(), bound));
    EXPECT_EQ(store->check(), "");
    EXPECT_EQ(store->reserved(), 2 * mib) << "it is tried again";
  }
  EXPECT_EQ(store->release(bytes::max(), bound).value(), bytes{2 * mib});
  ASSERT_EQ(damaged.all.size(), 1u);
  EXPECT_EQ(damaged.all[0].first, p + 20 * kib);
  EXPECT_EQ(damaged.all[0].last, p + 50 * kib);
  EXPECT_EQ(damaged.all[0].count, 2u);
  damaged.all.clear();
}

TEST_F(guarded_stores, addresses_in_quarantine_do_where_there_are_no_others) {
  make({.quarantine = gib});
  free(grow(512));
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->quarantined(), 6 * mib);
  machine->fail(driver::call::mem_address_reserve, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  static_cast<void>(grow(512));
  EXPECT_EQ(store->quarantined(), 0u);
  EXPECT_EQ(store->reserved(), 2 * mib);
  machine->fail(driver::call::mem_address_reserve, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(store->grow(asks(512), bound).code(), errc::out_of_memory) << "there are none";
}

TEST_F(guarded_stores, a_full_granule_goes_with_its_last_block) {
  make({.shares_memory = true, .quarantine = gib});
  const block_index a = grow(900 * kib);
  const block_index b = grow(900 * kib);
  const block_index c = grow(900 * kib);  // the third opens the next granule
  EXPECT_EQ(store->reserved(), 4 * mib);
  free(a);
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 4 * mib);
  free(b);
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 2 * mib);
  free(c);
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 2 * mib) << "there is room in it";
  static_cast<void>(grow(900 * kib));
  static_cast<void>(grow(900 * kib));
  EXPECT_EQ(store->reserved(), 4 * mib);
}

TEST_F(guarded_stores, the_oldest_addresses_leave_quarantine_first) {
  make({.quarantine = 12 * mib});  // two blocks of one granule
  std::vector<std::uint64_t> at;
  for (int i = 0; i < 3; ++i) {
    const block_index index = grow(512);
    at.push_back(blocks[index].address);
    free(index);
    ASSERT_TRUE(store->inspect(bound));
    EXPECT_EQ(store->quarantined(), std::min(i + 1, 2) * 6 * mib);
  }
  EXPECT_FALSE(store->block_near(at[0]));
  EXPECT_TRUE(store->block_near(at[1]));
  EXPECT_TRUE(store->block_near(at[2]));
}

TEST_F(guarded_stores, without_a_quarantine_addresses_go_at_once) {
  make({});
  for (int i = 0; i < 3; ++i) {
    const block_index index = grow(512);
    const std::uint64_t p = blocks[index].address;
    free(index);
    ASSERT_TRUE(store->inspect(bound));
    EXPECT_FALSE(store->block_near(p));
    EXPECT_EQ(store->quarantined(), 0u);
  }
}

TEST_F(guarded_stores, alignments_are_kept) {
  make({.shares_memory = true, .quarantine = gib});
  for (const std::uint32_t alignment : {1u, 2u, 64u, 1024u, 4096u})
    EXPECT_EQ(blocks[grow(700, alignment)].address % (alignment * unit), 0u) << alignment;
}

TEST_F(guarded_stores, a_free_takes_no_memory_of_the_host) {
  make({.shares_memory = true, .quarantine = gib});
  std::vector<block_index> made;
  for (int i = 0; i < 10; ++i) made.push_back(grow(512));
  const std::size_t footprint = store->footprint();
  for (const block_index each : made) {
    free(each);
    EXPECT_EQ(store->footprint(), footprint);
  }
}

TEST_F(guarded_stores, a_free_takes_none_where_others_wait_for_their_inspection) {
  make({.quarantine = gib});
  const block_index a = grow(512);
  const block_index b = grow(512);
  free(a);
  free(b);
  const block_index c = grow(512);
  const std::size_t footprint = store->footprint();
  free(c);
  EXPECT_EQ(store->footprint(), footprint);
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->reserved(), 0u);
}

TEST_F(guarded_stores, nothing_is_given_again_or_rearranged) {
  make({.quarantine = gib});
  free(grow(512));
  EXPECT_EQ(store->fit(asks(512)), no_block);
  EXPECT_TRUE(store->prefers_growth(asks(512)));
  using reach = backing_store::reach;
  for (const reach whose : {reach::usable, reach::behind_wait})
    EXPECT_EQ(store->rearrange(asks(512), whose, bound).value(), no_block);
  EXPECT_EQ(store->bound_to(slot), 0u);
  EXPECT_EQ(store->longest_fit(slot), 0u);
}

/// A zone of 16 KiB before it is one copy; behind it, where it fills its units, there is none.
TEST_F(guarded_stores, only_what_is_red_is_read) {
  make({.quarantine = gib});
  for (const auto& [size, copies] : {std::pair{1024u, 1u}, std::pair{1000u, 2u}}) {
    const block_index index = grow(size);
    const std::uint64_t before = machine->calls(driver::call::memcpy_dtoh_async);
    free(index);
    ASSERT_TRUE(store->inspect(bound));
    EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async) - before, copies) << size;
  }
}

TEST_F(guarded_stores, a_stream_that_cannot_be_had_is_told_with_the_call) {
  machine->fail(driver::call::stream_create_with_priority, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto refused = guarded_store::create(shared, pool_id{}, {}, bound);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(refused.error().call(), "cuStreamCreateWithPriority");
  make({});
}

TEST_F(guarded_stores, the_limit_and_a_full_device_are_no_room) {
  make({.quarantine = gib});
  shared.reserved_limit = 4 * mib;
  EXPECT_EQ(store->grow(asks(4 * mib + 1), bound).value(), no_block);
  static_cast<void>(grow(4 * mib));
  shared.reserved_limit = gib * 1024;
  EXPECT_EQ(store->grow(asks(gib), bound).value(), no_block) << "the device has less";
  EXPECT_EQ(shared.refused_at, 4 * mib);
  EXPECT_EQ(store->quarantined(), 0u);
}

TEST_F(guarded_stores, only_a_full_device_is_no_room) {
  make({.quarantine = gib});
  for (const auto call :
       {driver::call::mem_create, driver::call::mem_map, driver::call::mem_set_access}) {
    machine->fail(call, 1, driver::CUDA_ERROR_UNKNOWN);
    const auto failed = store->grow(asks(512), bound);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().native(), driver::CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(shared.refused_at, std::numeric_limits<std::uint64_t>::max());
    machine->fail(call, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(store->grow(asks(512), bound).value(), no_block);
    EXPECT_EQ(shared.refused_at, 0u);
    shared.refused_at = std::numeric_limits<std::uint64_t>::max();
    EXPECT_EQ(gpu.memory_info().value().free, free_before);
  }
}

TEST_F(guarded_stores, of_several_failures_at_the_end_the_first_is_told) {
  make({.quarantine = gib});
  static_cast<void>(grow(512));
  static_cast<void>(grow(512));
  for (const auto each : {driver::CUDA_ERROR_UNKNOWN, driver::CUDA_ERROR_INVALID_VALUE})
    machine->fail(driver::call::memcpy_dtoh_async, 1, each);  // one after the other
  const std::uint64_t before = machine->calls(driver::call::memcpy_dtoh_async);
  const auto failed = store->close(bound);
  EXPECT_EQ(machine->calls(driver::call::memcpy_dtoh_async) - before, 2u) << "each block's first";
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(blocks.in_use(), 0u);
}

TEST_F(guarded_stores, what_ends_live_is_checked_and_given_back) {
  make({.shares_memory = true, .quarantine = gib});
  const std::uint64_t p = blocks[grow(10)].address;
  static_cast<void>(grow(3 * mib));
  byte_at(p + 10) = 0;
  ASSERT_TRUE(store->close(bound));
  ASSERT_EQ(damaged.all.size(), 1u);
  EXPECT_EQ(damaged.all[0].first, p + 10);
  EXPECT_EQ(blocks.in_use(), 0u);
  damaged.all.clear();
}

decltype(driver::table::mem_address_reserve) reserve_once = nullptr;
driver::CUdeviceptr given_already = 0;

TEST(guarded_check, notices_blocks_at_addresses_that_the_driver_gave_twice) {
  const auto machine = sim::machine::create({}).value();
  driver::table calls = machine->driver();
  reserve_once = calls.mem_address_reserve;
  calls.mem_address_reserve = [](driver::CUdeviceptr* address, std::size_t size,
                                 std::size_t alignment, driver::CUdeviceptr wish,
                                 unsigned long long flags) -> driver::CUresult {
    if (given_already == 0) reserve_once(&given_already, size, alignment, wish, flags);
    *address = given_already;
    return driver::CUDA_SUCCESS;
  };
  const auto opened = runtime::open_table(calls, "gives addresses twice", machine).value();
  const device gpu = opened->device(device_id{0}).value();
  const context_scope bound{gpu};
  block_store blocks;
  order::stream_order known{gpu};
  placement_context shared{.device = gpu, .blocks = blocks, .order = known};
  const auto store = guarded_store::create(shared, pool_id{}, {.quarantine = gib}, bound).value();
  given_already = 0;
  const block_index first = store->grow({.units = 1}, bound).value();
  const std::uint64_t address = blocks[first].address;
  store->free(first, {});
  ASSERT_TRUE(store->inspect(bound));
  EXPECT_EQ(store->check(), "") << "in quarantine, where nobody else should be";
  const block_index second = store->grow({.units = 1}, bound).value();
  EXPECT_EQ(blocks[second].address, address);
  EXPECT_EQ(store->check(), "blocks of a region overlap, or are not between their zones");
  EXPECT_TRUE(store->close(bound));
}

/// Every driver call fails once: nothing is lost, and the next attempt succeeds.
TEST_F(guarded_stores, any_call_may_fail) {
  for (const bool shares : {false, true}) {
    for (std::uint64_t nth = 1;; ++nth) {
      make({.shares_memory = shares, .quarantine = 8 * mib});
      machine->fail_any(nth, driver::CUDA_ERROR_UNKNOWN);
      const std::uint64_t before = machine->calls();
      std::vector<block_index> made;
      for (const std::uint64_t size : {std::uint64_t{100}, 900 * kib, 900 * kib, 900 * kib}) {
        const auto grown = store->grow(asks(size), bound);
        EXPECT_EQ(store->check(), "");
        if (grown) made.push_back(*grown);
      }
      for (const block_index each : made) {
        store->free(each, known.now(slot));
        static_cast<void>(known.close(slot, bound));
        static_cast<void>(known.poll(bound));
        static_cast<void>(store->inspect(bound));
        EXPECT_EQ(store->check(), "");
      }
      const bool is_over = machine->calls() - before < nth;
      machine->clear_faults();
      ASSERT_TRUE(known.close(slot, bound));
      ASSERT_TRUE(known.poll(bound));
      ASSERT_TRUE(store->inspect(bound));
      ASSERT_TRUE(store->release(bytes::max(), bound));
      EXPECT_EQ(store->check(), "");
      EXPECT_EQ(store->reserved(), 0u) << "call " << nth;
      EXPECT_THAT(damaged.all, IsEmpty());
      ASSERT_TRUE(store->close(bound));
      EXPECT_EQ(blocks.in_use(), 0u);
      EXPECT_EQ(gpu.memory_info().value().free, free_before) << "call " << nth;
      if (is_over) break;
    }
  }
}

}  // namespace
}  // namespace weir::placement
