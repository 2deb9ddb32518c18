// SPDX-License-Identifier: Apache-2.0
// An arena whose memory goes away and comes back: places, contents, books, and failures half-way.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "placement/arena.hpp"
#include "support/sizes.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement { namespace {

using testing_support::gib;
using testing_support::mib;

/// An empty arena in handles of 2 MiB on a device of 1 GiB, and one stream.
class suspended_arenas : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(store->check(), "");
    EXPECT_TRUE(store->close(bound));
    EXPECT_EQ(machine->used(device_id{0}), bytes{64 * mib}) << "what the context takes";
  }
  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options chosen;
    chosen.devices = {
        sim::device_spec{.capacity = bytes{1024 * mib}, .context_overhead = bytes{64 * mib}}};
    chosen.mode = sim::progress::manual;
    return sim::machine::create(chosen).value();
  }
  block_index allocate(std::uint64_t size) {
    const request wanted{static_cast<std::uint32_t>(size / unit), 1, slot};
    const block_index fitting = store->fit(wanted);
    return fitting != no_block ? fitting : store->grow(wanted, bound).value();
  }
  void free(block_index index) { store->free(index, known.now(slot)); }
  [[nodiscard]] bytes used() const { return machine->used(device_id{0}) - bytes{64 * mib}; }

  suspension suspend() {
    suspension plan = store->plan_suspend().value();
    EXPECT_TRUE(unmap_places(plan, shared.rights, bound));
    EXPECT_TRUE(release_places(plan, bound));
    store->apply(plan, true);
    EXPECT_EQ(store->check(), "");
    return plan;
  }
  void resume() {
    suspension plan = store->plan_resume().value();
    EXPECT_EQ(store->check(), "") << "before the driver is asked";
    for (suspended_place& each : plan.places)
      EXPECT_TRUE(fill_place(each, plan.properties, shared.rights, bound));
    store->apply(plan, false);
    EXPECT_EQ(store->check(), "");
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
  stream on = stream::create(gpu).value();
  stream_slot slot = known.slot_of(on, bound).value();
  std::unique_ptr<backing_store> store =
      arena::create(shared, pool_id{1}, growth_rules::of(placement_policy::compact), bound).value();
};

TEST_F(suspended_arenas, gives_everything_back_and_takes_what_blocks_need) {
  const block_index low = allocate(4 * mib);
  const block_index middle = allocate(6 * mib);
  const block_index high = allocate(mib);
  free(middle);
  const std::uint64_t address = blocks[high].address;
  EXPECT_EQ(store->reserved(), 12 * mib);
  EXPECT_EQ(store->suspended_bytes(), 0u);

  const suspension plan = suspend();
  EXPECT_TRUE(store->is_suspended());
  EXPECT_EQ(plan.places.size(), 6u);
  ASSERT_EQ(plan.contents.size(), 2u);
  EXPECT_EQ(plan.contents[0].address, blocks[low].address);
  EXPECT_EQ(plan.contents[0].size, 4 * mib);
  EXPECT_EQ(plan.contents[1].address, address);
  EXPECT_EQ(plan.contents[1].size, mib);
  EXPECT_EQ(store->reserved(), 0u);
  EXPECT_EQ(shared.reserved, 0u);
  EXPECT_EQ(shared.handles_released, 6u);
  EXPECT_EQ(store->handed_out(), 5 * mib);
  EXPECT_EQ(store->suspended_bytes(), 6 * mib) << "without the handles that are free";
  EXPECT_EQ(used(), bytes{0});

  resume();
  EXPECT_FALSE(store->is_suspended());
  EXPECT_EQ(store->reserved(), 6 * mib);
  EXPECT_EQ(used(), bytes{6 * mib});
  EXPECT_EQ(shared.handles_created, 9u);
  EXPECT_EQ(blocks[high].address, address);
  EXPECT_EQ(blocks[low].is(), block_kind::live);
  // What is beside the block in its handle is free, where the others were is a hole.
  EXPECT_EQ(blocks[allocate(mib)].address, address + mib);
  pool_snapshot seen;
  store->describe(seen);
  ASSERT_EQ(seen.blocks.size(), 6u);
  for (const std::size_t i : {1u, 2u, 3u}) {
    EXPECT_EQ(seen.blocks[i].state, block_state::hole);
    EXPECT_EQ(seen.blocks[i].size, bytes{2 * mib});
  }
}

TEST_F(suspended_arenas, a_block_that_is_freed_meanwhile_does_not_come_back) {
  const block_index low = allocate(4 * mib);
  const block_index high = allocate(4 * mib);
  suspend();
  free(high);
  EXPECT_EQ(store->check(), "");
  EXPECT_EQ(store->handed_out(), 4 * mib);
  EXPECT_EQ(store->suspended_bytes(), 4 * mib);
  resume();
  EXPECT_EQ(store->reserved(), 4 * mib);
  EXPECT_EQ(blocks[low].after, no_block) << "the arena became shorter";
  suspend();
  free(low);
  EXPECT_EQ(store->suspended_bytes(), 0u);
  resume();
  EXPECT_EQ(store->reserved(), 0u);
}

TEST_F(suspended_arenas, what_two_streams_freed_in_one_handle_does_not_come_back) {
  const stream second = stream::create(gpu).value();
  const stream_slot other = known.slot_of(second, bound).value();
  const block_index low = allocate(mib);
  const block_index across = allocate(3 * mib);
  const block_index kept = allocate(2 * mib);
  const std::uint64_t begin = blocks[low].address;
  ASSERT_EQ(blocks[across].address, begin + mib);
  ASSERT_EQ(blocks[kept].address, begin + 4 * mib);
  free(low);
  store->free(across, known.now(other));
  suspend();
  resume();
  EXPECT_EQ(store->reserved(), 2 * mib);
  for (const std::uint64_t at : {begin, begin + 2 * mib}) {
    const block& hole = blocks[store->block_over(at)];
    EXPECT_EQ(hole.is(), block_kind::hole);
    EXPECT_EQ(hole.address, at);
    EXPECT_EQ(hole.size(), 2 * mib);
  }
}

TEST_F(suspended_arenas, live_bytes_that_lie_close_are_saved_together) {
  std::vector<block_index> made;
  for (int i = 0; i < 8; ++i) made.push_back(allocate(256 * 1024 - unit));
  const block_index far = allocate(256 * 1024);
  free(made[1]);  // a gap that is copied, too
  free(made[3]);
  free(made[4]);  // one that is not
  const suspension plan = store->plan_suspend().value();
  ASSERT_EQ(plan.contents.size(), 2u);
  EXPECT_EQ(plan.contents[0].address, blocks[made[0]].address);
  EXPECT_EQ(plan.contents[0].size, 3 * (256 * 1024 - unit));
  EXPECT_EQ(plan.contents[1].address, blocks[made[5]].address);
  EXPECT_EQ(plan.contents[1].address + plan.contents[1].size, blocks[far].end());
}

TEST_F(suspended_arenas, mappings_that_were_left_behind_go_first) {
  const block_index low = allocate(4 * mib);
  const block_index kept = allocate(2 * mib);
  free(low);
  EXPECT_TRUE(known.close(slot, bound));
  EXPECT_TRUE(known.poll(bound));
  store->retire(slot);
  const request wanted{static_cast<std::uint32_t>(6 * mib / unit), 1, slot};
  const block_index moved = store->grow(wanted, bound).value();
  ASSERT_NE(moved, no_block);
  ASSERT_NE(shared.handles_moved, 0u);
  suspension failing = store->plan_suspend().value();
  EXPECT_EQ(failing.left.size(), 2u);
  machine->fail(driver::call::mem_unmap, 2, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(unmap_places(failing, shared.rights, bound));
  store->apply(failing, false);
  EXPECT_EQ(store->check(), "");
  const suspension plan = suspend();
  ASSERT_EQ(plan.left.size(), 1u) << "the other one went before the failure";
  EXPECT_EQ(plan.left[0].address, failing.left[1].address);
  EXPECT_EQ(used(), bytes{0});
  EXPECT_TRUE(store->plan_suspend().value().left.empty());
  resume();
  EXPECT_EQ(used(), bytes{store->reserved()});
  EXPECT_EQ(blocks[kept].is(), block_kind::live);
}

TEST_F(suspended_arenas, a_mapping_that_got_stuck_is_nothing_to_come_back) {
  static_cast<void>(allocate(4 * mib));
  const request wanted{static_cast<std::uint32_t>(2 * mib / unit), 1, slot};
  machine->fail(driver::call::mem_set_access, 1, driver::CUDA_ERROR_UNKNOWN);
  machine->fail(driver::call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  ASSERT_FALSE(store->grow(wanted, bound));
  machine->fail(driver::call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);  // and it stays so
  const block_index behind = allocate(2 * mib);
  const block_index stuck = blocks[behind].before;
  ASSERT_EQ(blocks[stuck].is(), block_kind::stuck);
  ASSERT_EQ(blocks[stuck].size(), 2 * mib);
  const suspension plan = suspend();
  EXPECT_EQ(plan.places.size(), 3u);
  EXPECT_EQ(store->suspended_bytes(), 6 * mib);
  EXPECT_EQ(used(), bytes{2 * mib}) << "what is stuck keeps its memory";
  resume();
  EXPECT_EQ(store->reserved(), 6 * mib);
  EXPECT_EQ(blocks[stuck].is(), block_kind::stuck);
}

/// Every driver call of the way there fails once, and the one after it, too.
TEST_F(suspended_arenas, an_unmap_that_fails_leaves_all_mapped) {
  for (int i = 0; i < 4; ++i) static_cast<void>(allocate(2 * mib));
  for (std::uint64_t nth = 1; nth <= 4; ++nth) {
    SCOPED_TRACE(nth);
    suspension plan = store->plan_suspend().value();
    machine->fail(driver::call::mem_unmap, nth, driver::CUDA_ERROR_UNKNOWN);
    EXPECT_FALSE(unmap_places(plan, shared.rights, bound));
    machine->clear_faults();
    for (const suspended_place& each : plan.places) EXPECT_TRUE(each.mapped);
    store->apply(plan, false);
    EXPECT_EQ(store->check(), "");
    EXPECT_EQ(store->reserved(), 8 * mib);
  }
}

TEST_F(suspended_arenas, mapping_again_says_whether_all_is_mapped) {
  for (int i = 0; i < 3; ++i) static_cast<void>(allocate(2 * mib));
  suspension plan = store->plan_suspend().value();
  ASSERT_TRUE(unmap_places(plan, shared.rights, bound));
  machine->fail(driver::call::mem_map, 2, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(map_places(plan, shared.rights, bound));
  EXPECT_TRUE(plan.places[0].mapped);
  EXPECT_FALSE(plan.places[1].mapped);
  EXPECT_TRUE(plan.places[2].mapped) << "the others all the same";
  EXPECT_TRUE(map_places(plan, shared.rights, bound));
  EXPECT_TRUE(plan.places[1].mapped);
  EXPECT_TRUE(map_places(plan, shared.rights, bound)) << "there is nothing to do";
  store->apply(plan, false);
}

TEST_F(suspended_arenas, what_cannot_be_mapped_again_keeps_its_memory_and_comes_back_later) {
  for (int i = 0; i < 4; ++i) static_cast<void>(allocate(2 * mib));
  suspension plan = store->plan_suspend().value();
  machine->fail(driver::call::mem_unmap, 3, driver::CUDA_ERROR_UNKNOWN);
  machine->fail(driver::call::mem_map, 2, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(unmap_places(plan, shared.rights, bound));
  machine->clear_faults();
  EXPECT_TRUE(plan.places[0].mapped);
  EXPECT_FALSE(plan.places[1].mapped);
  EXPECT_TRUE(plan.places[1].has_memory());
  store->apply(plan, true);
  EXPECT_EQ(store->check(), "");
  EXPECT_EQ(store->reserved(), 8 * mib);
  EXPECT_EQ(store->suspended_bytes(), 0u);
  resume();
  EXPECT_EQ(used(), bytes{8 * mib});
}

TEST_F(suspended_arenas, a_release_that_fails_is_tried_again_and_then_kept) {
  for (int i = 0; i < 4; ++i) static_cast<void>(allocate(2 * mib));
  suspension plan = store->plan_suspend().value();
  ASSERT_TRUE(unmap_places(plan, shared.rights, bound));
  machine->fail(driver::call::mem_release, 2, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(release_places(plan, bound)) << "the second time";
  store->apply(plan, true);
  EXPECT_EQ(used(), bytes{0});
  resume();
  plan = store->plan_suspend().value();
  ASSERT_TRUE(unmap_places(plan, shared.rights, bound));
  machine->fail(driver::call::mem_release, 2, driver::CUDA_ERROR_UNKNOWN);
  machine->fail(driver::call::mem_release, 4, driver::CUDA_ERROR_UNKNOWN);  // behind the first
  EXPECT_FALSE(release_places(plan, bound));
  store->apply(plan, true);
  EXPECT_EQ(store->check(), "");
  EXPECT_EQ(store->reserved(), 2 * mib) << "it is still ours";
  EXPECT_EQ(store->suspended_bytes(), 6 * mib);
  resume();
  EXPECT_EQ(used(), bytes{8 * mib});
}

TEST_F(suspended_arenas, a_place_that_cannot_be_filled_is_as_it_was) {
  static_cast<void>(allocate(2 * mib));
  suspend();
  for (const auto call :
       {driver::call::mem_create, driver::call::mem_map, driver::call::mem_set_access}) {
    suspension plan = store->plan_resume().value();
    machine->fail(call, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
    const auto filled = fill_place(plan.places[0], plan.properties, shared.rights, bound);
    ASSERT_FALSE(filled);
    EXPECT_EQ(filled.code(), errc::out_of_memory);
    EXPECT_FALSE(plan.places[0].mapped);
    EXPECT_FALSE(plan.places[0].has_memory());
    EXPECT_EQ(used(), bytes{0});
  }
  machine->clear_faults();
  resume();
}

TEST_F(suspended_arenas, segments_cannot_be_suspended) {
  const auto segments =
      make_backing_store(shared, pool_id{2}, {.policy = placement_policy::classic}, bound).value();
  EXPECT_FALSE(segments->can_be_suspended());
  EXPECT_EQ(segments->plan_suspend().code(), errc::not_supported);
  EXPECT_EQ(segments->plan_resume().code(), errc::not_supported);
  EXPECT_FALSE(segments->is_suspended());
  EXPECT_TRUE(store->can_be_suspended());
}

/// Captured graphs may write to it.
TEST_F(suspended_arenas, of_a_store_of_graphs_what_is_free_comes_back_as_well) {
  store = make_backing_store(shared, pool_id{2},
                             {.policy = placement_policy::compact, .of_graphs = true}, bound)
              .value();
  static_cast<void>(allocate(4 * mib));
  free(allocate(6 * mib));
  suspend();
  EXPECT_EQ(store->suspended_bytes(), 10 * mib);
  resume();
  EXPECT_EQ(store->reserved(), 10 * mib);
  EXPECT_EQ(used(), bytes{10 * mib});
}

TEST_F(suspended_arenas, of_a_store_that_is_made_for_it_a_request_has_one_handle) {
  store = make_backing_store(shared, pool_id{2},
                             {.policy = placement_policy::balanced, .suspendable = true}, bound)
              .value();
  static_cast<void>(allocate(64 * mib));
  EXPECT_EQ(shared.handles_created, 1u);
  static_cast<void>(allocate(128 * mib));
  EXPECT_EQ(shared.handles_created, 3u);
}

}  // namespace
}  // namespace weir::placement
