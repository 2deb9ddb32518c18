// SPDX-License-Identifier: Apache-2.0
// Which store its traits stand for, and what all stores of an allocator share.
#include "placement/backing_store.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "placement/store_fixture.hpp"
#include "support/sizes.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement { namespace {

using testing_support::gib;
using testing_support::mib;

/// A gigabyte of simulated device, and two streams on which nothing happens by itself.
class backing_stores : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<backing_store> make(const store_traits& traits) {
    return make_backing_store(shared, pool_id{1}, traits, bound).value();
  }
  block_index grow(backing_store& in, std::uint64_t size) {
    const block_index room =
        in.grow({.units = static_cast<std::uint32_t>(size / unit), .stream = slot}, bound).value();
    EXPECT_NE(room, no_block);
    return room;
  }

  std::shared_ptr<sim::machine> machine = make_small_machine();
  std::shared_ptr<runtime> simulated = runtime::open_simulated(machine).value();
  device gpu = simulated->device(device_id{0}).value();
  context_scope bound{gpu};
  block_store blocks;
  order::stream_order known{gpu};
  kept_events told;
  placement_context shared{.device = gpu,
                           .blocks = blocks,
                           .order = known,
                           .supply = placement::memory_supply{gpu, 1024 * gib},
                           .observer = &told};
  stream on = stream::create(gpu).value();
  stream beside = stream::create(gpu).value();
  stream_slot slot = known.slot_of(on, bound).value();
  stream_slot other = known.slot_of(beside, bound).value();
};

TEST_F(backing_stores, memory_is_short_below_a_gibibyte_or_an_eighth_of_any_bound) {
  const auto is_short = [&](std::uint64_t reserved) {
    shared.reserved = reserved;
    return shared.is_short();
  };
  shared.reserved_limit = 4 * gib;
  EXPECT_FALSE(is_short(3 * gib)) << "a gibibyte is left";
  EXPECT_TRUE(is_short(3 * gib + 512));
  shared.reserved_limit = 16 * gib;
  EXPECT_FALSE(is_short(14 * gib)) << "an eighth is left";
  EXPECT_TRUE(is_short(14 * gib + 512));
  shared.reserved = 4 * gib;
  shared.note_refusal();
  EXPECT_FALSE(is_short(3 * gib));
  EXPECT_TRUE(is_short(3 * gib + 512)) << "the driver gave no more";
}

TEST_F(backing_stores, small_blocks_between_red_zones_share_memory_and_before_guard_pages_do_not) {
  const auto zones = make({.checks = debug_checks::red_zones});
  const auto pages = make({.checks = debug_checks::guard_pages});
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(grow(*zones, unit));
    static_cast<void>(grow(*pages, unit));
  }
  EXPECT_EQ(zones->reserved(), 2 * mib);
  EXPECT_EQ(pages->reserved(), 4 * mib);
  EXPECT_TRUE(zones->close(bound));
  EXPECT_TRUE(pages->close(bound));
}

TEST_F(backing_stores, of_the_classic_policies_are_arenas_where_memory_is_exported) {
  for (const auto policy : {placement_policy::classic, placement_policy::classic_expandable}) {
    const auto exported = make({.policy = policy, .exportable = true});
    const block_index room = grow(*exported, 2 * mib);
    const auto under = exported->handles_under(room);
    ASSERT_TRUE(under);
    EXPECT_EQ(under->handles.size(), 1u);
    EXPECT_TRUE(exported->can_be_suspended());
    EXPECT_TRUE(exported->close(bound));
    // Handles of one slot alone make no arena.
    const auto segments = make({.policy = policy, .one_slot_handles = true});
    EXPECT_EQ(segments->handles_under(grow(*segments, 2 * mib)).code(), errc::not_supported);
    EXPECT_FALSE(segments->can_be_suspended());
    EXPECT_TRUE(segments->close(bound));
  }
}

TEST_F(backing_stores, take_what_another_stream_freed_behind_a_wait_unless_told_otherwise) {
  for (const bool told_otherwise : {false, true}) {
    SCOPED_TRACE(told_otherwise);
    if (told_otherwise) shared.queues_waits = false;
    const auto store = make({.policy = placement_policy::compact});
    const block_index freed = grow(*store, 32 * mib);
    const std::uint64_t begin = blocks[freed].address;
    static_cast<void>(grow(*store, 32 * mib));
    store->free(freed, known.now(other));
    ASSERT_TRUE(known.close(other, bound));
    const std::uint64_t before = known.waits_queued();
    const block_index room = grow(*store, 32 * mib);
    EXPECT_EQ(blocks[room].address, told_otherwise ? begin + 64 * mib : begin);
    EXPECT_EQ(store->reserved(), told_otherwise ? 96 * mib : 64 * mib);
    EXPECT_EQ(known.waits_queued() - before, told_otherwise ? 0u : 1u);
    EXPECT_EQ(store->check(), "");
    EXPECT_TRUE(store->close(bound));
  }
}

TEST_F(backing_stores, a_wait_that_is_queued_is_told_once_with_who_waits_for_whom) {
  const stamp used = known.now(other);
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(shared.wait_for_stream(slot, used, bound).value());
    ASSERT_EQ(told.all.size(), 1u);
    EXPECT_EQ(told.all[0].kind, memory_event_kind::wait);
    EXPECT_EQ(told.all[0].stream, known.id(slot));
    EXPECT_EQ(told.all[0].other, known.id(other));
  }
  EXPECT_TRUE(shared.wait(slot, known.now(other), bound).value());
  ASSERT_EQ(told.all.size(), 2u);
  EXPECT_EQ(told.all[1].stream, known.id(slot));
}

}  // namespace
}  // namespace weir::placement
