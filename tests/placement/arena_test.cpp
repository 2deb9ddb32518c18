// An arena by itself: which room it chooses, and whose memory it takes for it.
#include "placement/arena.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

/// An arena of 64 MiB in handles of 2 MiB, all of it free for everybody; three streams on which
/// nothing happens by itself. Ends with books that agree.
class arenas : public ::testing::Test {
 protected:
  using reach = backing_store::reach;

  arenas() {
    for (int i = 0; i < 3; ++i) {
      streams.push_back(stream::create(gpu).value());
      slots.push_back(known.slot_of(streams.back(), bound).value());
    }
    store = arena::create(shared, pool_id{}, growth_rules::of(placement_policy::compact), bound)
                .value();
    const block_index all = store->grow(asks(64 * mib), bound).value();
    begin = blocks[all].address;
    store->free(all, known.now(slots[0]));
    EXPECT_TRUE(known.close(slots[0], bound));
    EXPECT_TRUE(known.poll(bound));
    store->retire(slots[0]);
    EXPECT_EQ(store->bound_to(slots[0]), 0u);
    EXPECT_EQ(store->longest_fit(slots[1]), 64 * mib);
  }
  void TearDown() override {
    EXPECT_EQ(store->check(), "");
    EXPECT_TRUE(store->close(bound));
  }

  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options chosen;
    chosen.devices = {
        sim::device_spec{.capacity = bytes{1024 * mib}, .context_overhead = bytes{64 * mib}}};
    chosen.mode = sim::progress::manual;
    return sim::machine::create(chosen).value();
  }
  [[nodiscard]] request asks(std::uint64_t size, std::size_t stream = 0) const {
    return {static_cast<std::uint32_t>(size / unit), 1, slots[stream]};
  }
  /// Blocks one behind the other, from the arena's begin on.
  std::vector<block_index> lay_out(const std::vector<std::uint64_t>& mebibytes) {
    std::vector<block_index> made;
    std::uint64_t expected = begin;
    for (const std::uint64_t each : mebibytes) {
      made.push_back(store->fit(asks(each * mib)));
      EXPECT_EQ(blocks[made.back()].address, expected);
      expected += each * mib;
    }
    return made;
  }
  void free(block_index which, std::size_t stream) { store->free(which, known.now(slots[stream])); }

  std::shared_ptr<sim::machine> machine = make_machine();
  std::shared_ptr<runtime> simulated = runtime::open_simulated(machine).value();
  device gpu = simulated->device(device_id{0}).value();
  context_scope bound{gpu};
  block_store blocks;
  order::stream_order known{gpu};
  placement_context shared{.device = gpu, .blocks = blocks, .order = known};
  std::vector<stream> streams;
  std::vector<stream_slot> slots;
  std::unique_ptr<backing_store> store;
  std::uint64_t begin = 0;
};

TEST_F(arenas, runs_of_two_streams_that_are_just_long_enough_together_are_used_as_they_lie) {
  const auto laid = lay_out({4, 6, 4, 50});
  free(laid[1], 0);
  free(laid[2], 1);
  ASSERT_TRUE(known.close(slots[1], bound));
  const std::uint64_t created = shared.handles_created;
  EXPECT_EQ(store->rearrange(asks(10 * mib), reach::usable, bound).value(), no_block)
      << "not without a wait";
  EXPECT_EQ(store->rearrange(asks(10 * mib + unit), reach::behind_wait, bound).value(), no_block);
  const block_index room = store->rearrange(asks(10 * mib), reach::behind_wait, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 4 * mib);
  EXPECT_EQ(blocks[room].size(), 10 * mib);
  EXPECT_EQ(blocks[room].stream, slots[0]);
  EXPECT_EQ(shared.handles_moved, 0u);
  EXPECT_EQ(shared.handles_created, created);
  EXPECT_EQ(known.waits_queued(), 2u) << "for both of the other streams";
  EXPECT_EQ(store->handed_out(), 64 * mib);
}

/// A capture may take the third stream, so that no epoch that ends from then on can be waited for.
TEST_F(arenas, what_cannot_be_waited_for_stands_in_no_ones_way) {
  const auto laid = lay_out({4, 6, 4, 2, 4, 6, 38});
  free(laid[5], 1);
  ASSERT_TRUE(known.close(slots[1], bound));
  known.expect_capture(slots[2], true);
  free(laid[1], 0);
  free(laid[2], 1);  // lower, and as long together with its neighbour
  free(laid[4], 0);
  const block_index room = store->rearrange(asks(10 * mib), reach::behind_wait, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 16 * mib);
  EXPECT_EQ(shared.handles_moved, 0u);
  EXPECT_EQ(store->rearrange(asks(10 * mib), reach::behind_wait, bound).value(), no_block);
  known.expect_capture(slots[2], false);
}

TEST_F(arenas, anothers_run_that_cannot_be_waited_for_is_not_borrowed) {
  const auto laid = lay_out({4, 8, 2, 6, 44});
  free(laid[1], 1);
  ASSERT_TRUE(known.close(slots[1], bound));
  known.expect_capture(slots[2], true);
  free(laid[3], 1);
  const block_index room = store->rearrange(asks(6 * mib), reach::behind_wait, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 4 * mib) << "not the 6 MiB, which would be closer";
  EXPECT_EQ(store->bound_to(slots[1]), 8 * mib);
  known.expect_capture(slots[2], false);
}

TEST_F(arenas, free_memory_under_handles_that_are_in_use_is_fragments) {
  EXPECT_EQ(store->fragments(), 0u);
  const auto laid = lay_out({3, 4, 1, 7, 49});
  EXPECT_EQ(store->fragments(), 0u) << "nothing is free";
  free(laid[1], 0);  // from 3 to 7 MiB: the handle from 4 to 6 is free
  EXPECT_EQ(store->fragments(), 2 * mib);
  free(laid[3], 1);  // from 8 to 15: three handles are free
  EXPECT_EQ(store->fragments(), 3 * mib);
  free(laid[0], 0);  // from 0 to 7
  EXPECT_EQ(store->fragments(), 2 * mib);
  free(laid[2], 1);  // from 0 to 15
  EXPECT_EQ(store->fragments(), 1 * mib);
  free(laid[4], 2);
  EXPECT_EQ(store->fragments(), 0u);
  EXPECT_EQ(store->handed_out(), 0u);
}

}  // namespace
}  // namespace weir::placement
