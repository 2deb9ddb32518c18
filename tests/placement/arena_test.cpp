// SPDX-License-Identifier: Apache-2.0
// An arena by itself: which room it chooses, and whose memory it takes for it.
#include "placement/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/sizes.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement { namespace {

using testing_support::gib;
using testing_support::mib;

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
  /// What the stream freed becomes everybody's.
  void rest(backing_store& in, std::size_t stream) {
    EXPECT_TRUE(known.close(slots[stream], bound));
    EXPECT_TRUE(known.poll(bound));
    in.retire(slots[stream]);
    EXPECT_EQ(in.bound_to(slots[stream]), 0u);
  }
  /// These become a hole that nothing is mapped to.
  void take_away(backing_store& in, const std::vector<block_index>& which) {
    std::uint64_t size = 0;
    for (const block_index each : which) {
      size += blocks[each].size();
      in.free(each, known.now(slots[0]));
    }
    rest(in, 0);
    EXPECT_EQ(in.release(bytes{1024 * mib}, bound).value().count(), size);
  }
  /// An arena with addresses for twice the device's memory, which is 1024 MiB and one slot more.
  [[nodiscard]] std::unique_ptr<backing_store> make_private(growth_rules rules) {
    return arena::create(shared, pool_id{1}, rules, bound).value();
  }
  static constexpr std::uint64_t private_addresses = 2 * (1024 + 2) * mib;
  /// The fixture's own arena out of the way, so that the device's memory is there for another.
  void empty() { EXPECT_EQ(store->release(bytes{64 * mib}, bound).value(), bytes{64 * mib}); }

  std::shared_ptr<sim::machine> machine = make_machine();
  std::shared_ptr<runtime> simulated = runtime::open_simulated(machine).value();
  device gpu = simulated->device(device_id{0}).value();
  context_scope bound{gpu};
  block_store blocks;
  order::stream_order known{gpu};
  // Placed as where there is plenty: tests/limits is about the end of memory.
  placement_context shared{.device = gpu,
                           .blocks = blocks,
                           .order = known,
                           .supply = placement::memory_supply{gpu, 1024 * gib}};
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
  EXPECT_EQ(known.waits_queued(), 4u) << "for both of the other streams, and they for each other";
  EXPECT_EQ(store->handed_out(), 64 * mib);
}

/// The third stream is lost, so that no epoch that ends from then on can be waited for.
TEST_F(arenas, what_cannot_be_waited_for_stands_in_no_ones_way) {
  const auto laid = lay_out({4, 6, 4, 2, 4, 6, 38});
  free(laid[5], 1);
  ASSERT_TRUE(known.close(slots[1], bound));
  known.lose(slots[2]);
  free(laid[1], 0);
  free(laid[2], 1);  // lower, and as long together with its neighbour
  free(laid[4], 0);
  const block_index room = store->rearrange(asks(10 * mib), reach::behind_wait, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 16 * mib);
  EXPECT_EQ(shared.handles_moved, 0u);
  EXPECT_EQ(store->rearrange(asks(10 * mib), reach::behind_wait, bound).value(), no_block);
}

TEST_F(arenas, anothers_run_that_cannot_be_waited_for_is_not_borrowed) {
  const auto laid = lay_out({4, 8, 2, 6, 44});
  free(laid[1], 1);
  ASSERT_TRUE(known.close(slots[1], bound));
  known.lose(slots[2]);
  free(laid[3], 1);
  const block_index room = store->rearrange(asks(6 * mib), reach::behind_wait, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 4 * mib) << "not the 6 MiB, which would be closer";
  EXPECT_EQ(store->bound_to(slots[1]), 8 * mib);
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

TEST_F(arenas, what_is_everybodys_is_moved_for_any_stream) {
  const auto laid = lay_out({4, 2, 4, 54});
  free(laid[0], 0);
  free(laid[2], 0);
  EXPECT_EQ(store->rearrange(asks(8 * mib, 1), reach::usable, bound).value(), no_block)
      << "it is the first stream's";
  rest(*store, 0);
  const std::uint64_t created = shared.handles_created;
  EXPECT_EQ(store->rearrange(asks(8 * mib, 1), reach::behind_wait, bound).value(), no_block)
      << "there is no one to wait for";
  EXPECT_EQ(store->rearrange(asks(8 * mib + unit, 1), reach::usable, bound).value(), no_block);
  EXPECT_EQ(shared.handles_moved, 0u);
  const block_index room = store->rearrange(asks(8 * mib, 1), reach::usable, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 64 * mib);
  EXPECT_EQ(blocks[room].size(), 8 * mib);
  EXPECT_EQ(blocks[room].stream, slots[1]);
  EXPECT_EQ(shared.handles_moved, 4u);
  EXPECT_EQ(shared.handles_created, created);
  EXPECT_EQ(known.waits_queued(), 0u);
  EXPECT_EQ(store->reserved(), 64 * mib);
}

/// The handle is the first that was made, and the only thing of another stream's in the room.
TEST_F(arenas, a_handle_of_anothers_is_moved_behind_a_wait_or_not_at_all) {
  const auto laid = lay_out({2, 2, 4, 2, 54});
  take_away(*store, {laid[3]});
  free(laid[0], 1);
  ASSERT_TRUE(known.close(slots[1], bound));
  free(laid[2], 0);
  known.pause();
  EXPECT_EQ(store->rearrange(asks(6 * mib), reach::behind_wait, bound).value(), no_block)
      << "nobody can be waited for now";
  EXPECT_EQ(shared.handles_moved, 0u);
  EXPECT_EQ(store->bound_to(slots[1]), 2 * mib);
  known.resume();
  EXPECT_EQ(known.waits_queued(), 0u);
  const block_index room = store->rearrange(asks(6 * mib), reach::behind_wait, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 4 * mib);
  EXPECT_EQ(shared.handles_moved, 1u);
  EXPECT_EQ(known.waits_queued(), 4u) << "for both of the other streams, and they for each other";
  EXPECT_EQ(store->bound_to(slots[1]), 0u);
}

/// What is left of a handle that was moved is as new as the move, also where an older run lies
/// beside it: all of that leaves its stream with the newer one.
TEST_F(arenas, what_is_left_of_a_move_joins_an_older_run_and_stays_as_long_as_the_newer) {
  const auto laid = lay_out({4, 2, 1, 1, 2, 54});
  take_away(*store, {laid[1]});
  ASSERT_TRUE(machine->launch(streams[0].handle(), "work", {}));
  for (const std::size_t each : {0, 2, 4}) free(laid[each], 0);
  const stamp older = known.now(slots[0]);
  ASSERT_TRUE(known.close(slots[0], bound));
  ASSERT_TRUE(machine->launch(streams[0].handle(), "more work", {}));
  const stamp newer = known.now(slots[0]);
  ASSERT_NE(newer.epoch, older.epoch);
  const block_index room = store->rearrange(asks(5 * mib), reach::usable, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin);
  EXPECT_EQ(shared.handles_moved, 1u);
  const block_index joined = blocks[room].after;
  EXPECT_EQ(blocks[joined].address, begin + 5 * mib);
  EXPECT_EQ(blocks[joined].size(), 2 * mib) << "with the run behind it";
  EXPECT_EQ(blocks[joined].in.freed, newer.epoch);
  while (!known.completed(older)) {
    ASSERT_TRUE(machine->step());
    ASSERT_TRUE(known.poll(bound));
  }
  ASSERT_FALSE(known.completed(newer));
  store->retire(slots[0]);
  EXPECT_EQ(store->bound_to(slots[0]), 2 * mib);
  machine->run_until_idle();
  ASSERT_TRUE(known.poll(bound));
  store->retire(slots[0]);
  EXPECT_EQ(store->bound_to(slots[0]), 0u);
}

/// The lower row begins with a hole that no window may begin in: the next address of the alignment
/// lies beyond it. That hole counts for nothing.
TEST_F(arenas, a_window_counts_the_holes_that_it_covers) {
  const std::uint64_t first = 2 + (8 * mib - begin % (8 * mib)) % (8 * mib) / mib;
  const std::uint64_t aligned = begin + (first - 2) * mib;
  const auto laid = lay_out({first, 2, 4, 4, 2, 2, 8, 2, 4, 36 - first});
  take_away(*store, {laid[1], laid[3], laid[7]});
  for (const std::size_t each : {2, 4, 8}) free(laid[each], 0);
  const request wanted{static_cast<std::uint32_t>(6 * mib / unit),
                       static_cast<std::uint32_t>(8 * mib / unit), slots[0]};
  const block_index room = store->rearrange(wanted, reach::usable, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, aligned + 24 * mib) << "one slot to map, and not two";
  EXPECT_EQ(blocks[room].size(), 6 * mib);
  EXPECT_EQ(shared.handles_moved, 1u);
  EXPECT_EQ(blocks[store->block_over(aligned + 12 * mib)].is(), block_kind::hole)
      << "of the shortest stretch";
}

TEST_F(arenas, an_arena_ends_where_its_addresses_do) {
  empty();
  const auto other = make_private(growth_rules::of(placement_policy::compact));
  const block_index low = other->grow(asks(500 * mib), bound).value();
  const std::uint64_t base = blocks[low].address;
  ASSERT_NE(other->grow(asks(2 * mib), bound).value(), no_block);
  take_away(*other, {low});
  const block_index high = other->grow(asks(600 * mib), bound).value();
  EXPECT_EQ(blocks[high].address, base + 502 * mib);
  ASSERT_NE(other->grow(asks(2 * mib), bound).value(), no_block);
  take_away(*other, {high});
  const std::uint64_t left = private_addresses - 1104 * mib;
  EXPECT_EQ(other->grow(asks(left + unit), bound).value(), no_block);
  EXPECT_EQ(other->reserved(), 4 * mib);
  const block_index last = other->grow(asks(left), bound).value();
  ASSERT_NE(last, no_block);
  EXPECT_EQ(blocks[last].address, base + 1104 * mib);
  EXPECT_EQ(blocks[last].end(), base + private_addresses);
  EXPECT_EQ(other->check(), "");
  EXPECT_TRUE(other->close(bound));
}

TEST_F(arenas, where_addresses_are_short_an_arena_makes_do_with_fewer_of_them) {
  const auto rules = growth_rules::of(placement_policy::compact);
  // As much as the device has, at least: eight times that for the first pool, twice for others.
  for (const auto& [pool, sizes] : {std::pair{pool_id{}, 4u}, std::pair{pool_id{1}, 2u}}) {
    SCOPED_TRACE(sizes);
    for (unsigned refused = 0; refused <= sizes; ++refused) {
      const std::uint64_t before = machine->calls(driver::call::mem_address_reserve);
      for (unsigned i = 0; i < refused; ++i)  // one after the other
        machine->fail(driver::call::mem_address_reserve, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
      const auto made = arena::create(shared, pool, rules, bound);
      EXPECT_EQ(machine->calls(driver::call::mem_address_reserve) - before,
                std::min(refused + 1, sizes));
      ASSERT_EQ(static_cast<bool>(made), refused < sizes);
      if (made) {
        EXPECT_TRUE((*made)->close(bound));
      } else {
        EXPECT_EQ(made.code(), errc::out_of_memory);
      }
    }
  }
}

/// A handle of two slots is all there is for the one that is missing, and there are addresses for
/// `beyond` more behind that one.
TEST_F(arenas, a_handle_may_stick_out_as_far_as_there_are_addresses) {
  empty();
  for (const std::uint64_t beyond : {2 * mib, std::uint64_t{0}}) {
    const auto other = make_private({.handle_scale = 1,
                                     .largest_handle = 4 * mib,
                                     .reserved_share = 1,
                                     .request_share = 1,
                                     .unit_share = 0,
                                     .slack = 0,
                                     .headroom = 0});
    const auto grows = [&](std::uint64_t size) { return other->grow(asks(size), bound).value(); };
    const block_index low = grows(500 * mib);
    const std::uint64_t base = blocks[low].address;
    static_cast<void>(grows(2 * mib));
    const block_index pair = grows(4 * mib);
    EXPECT_EQ(blocks[pair].address, base + 502 * mib);
    static_cast<void>(grows(2 * mib));
    take_away(*other, {low});
    const block_index high = grows(600 * mib);
    static_cast<void>(grows(2 * mib));
    take_away(*other, {high});
    const std::uint64_t end = private_addresses - 2 * mib - beyond;
    const block_index last = grows(end - 1110 * mib);
    ASSERT_EQ(blocks[last].end(), base + end);
    other->free(last, known.now(slots[0]));
    const block_index most = other->fit(asks(end - 1114 * mib));
    ASSERT_EQ(blocks[most].end(), base + end - 4 * mib);
    other->free(pair, known.now(slots[0]));
    const std::uint64_t moved = shared.handles_moved;
    const block_index room = other->rearrange(asks(6 * mib), reach::usable, bound).value();
    if (beyond == 0) {
      EXPECT_EQ(room, no_block);
      EXPECT_EQ(shared.handles_moved, moved);
    } else {
      ASSERT_NE(room, no_block);
      EXPECT_EQ(blocks[room].address, base + end - 4 * mib);
      EXPECT_EQ(shared.handles_moved, moved + 1);
      EXPECT_EQ(blocks[blocks[room].after].size(), 2 * mib) << "what sticks out is free";
    }
    EXPECT_EQ(other->check(), "");
    EXPECT_TRUE(other->close(bound));
  }
}

/// Where memory is short a block of whole slots begins with one, as long as there is other room.
TEST_F(arenas, at_the_limit_a_block_of_whole_slots_lies_wherever_there_is_room) {
  const auto laid = lay_out({3, 12, 49});
  free(laid[1], 0);
  shared.reserved_limit = 64 * mib;
  ASSERT_TRUE(shared.is_short());
  EXPECT_EQ(store->fit(asks(12 * mib)), no_block) << "it would begin in the middle of a slot";
  const block_index room = store->grow(asks(12 * mib), bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, begin + 3 * mib);
  EXPECT_EQ(blocks[room].size(), 12 * mib);
  EXPECT_EQ(store->reserved(), 64 * mib);
}

/// A block that fills its slots but for an eighth of one counts as if it did.
TEST_F(arenas, at_the_limit_a_block_that_nearly_fills_its_slots_begins_with_one) {
  const auto laid = lay_out({3, 9, 52});
  free(laid[1], 0);
  shared.reserved_limit = 64 * mib;
  ASSERT_TRUE(shared.is_short());
  constexpr std::uint64_t eighth = 256 << 10;
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> cases{
      {2 * mib, 4 * mib},       {2 * mib - unit, 3 * mib},          {4 * mib - eighth, 4 * mib},
      {4 * mib, 4 * mib},       {4 * mib - eighth - unit, 3 * mib}, {3 * mib, 3 * mib},
      {4 * mib + unit, 3 * mib}};
  for (const auto& [size, start] : cases) {
    const block_index block = store->fit(asks(size));
    EXPECT_EQ(blocks[block].address, begin + start) << size;
    free(block, 0);
  }
}

/// Two handles of two slots for three that are missing: the second covers what the first leaves.
TEST_F(arenas, a_handle_that_sticks_out_is_not_one_that_was_chosen_already) {
  empty();
  const auto other = make_private({.handle_scale = 1,
                                   .largest_handle = 4 * mib,
                                   .reserved_share = 1,
                                   .request_share = 1,
                                   .unit_share = 0,
                                   .slack = 0,
                                   .headroom = 0});
  std::vector<block_index> made;
  for (const std::uint64_t size : {4 * mib, 2 * mib, 4 * mib, 2 * mib})
    made.push_back(other->grow(asks(size), bound).value());
  const std::uint64_t base = blocks[made[0]].address;
  ASSERT_EQ(blocks[made[3]].end(), base + 12 * mib);
  for (const std::size_t each : {0, 2}) other->free(made[each], known.now(slots[0]));
  const block_index room = other->rearrange(asks(6 * mib), reach::usable, bound).value();
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, base + 12 * mib);
  EXPECT_EQ(shared.handles_moved, 2u);
  EXPECT_EQ(blocks[blocks[room].after].size(), 2 * mib) << "what sticks out is free";
  EXPECT_EQ(other->reserved(), 12 * mib);
  EXPECT_EQ(other->check(), "");
  EXPECT_TRUE(other->close(bound));
}

TEST_F(arenas, a_place_is_given_only_where_all_of_it_is_free_for_the_stream_without_a_wait) {
  const auto laid = lay_out({4, 6, 4, 50});
  free(laid[1], 0);
  free(laid[2], 1);
  ASSERT_TRUE(known.close(slots[1], bound));
  const std::uint64_t place = begin + 4 * mib;
  EXPECT_EQ(store->fit_at(begin + 64 * mib, asks(mib)).code(), errc::foreign_pointer);
  EXPECT_EQ(store->fit_at(begin, asks(mib)).code(), errc::not_ready) << "it is live";
  EXPECT_EQ(store->fit_at(place, asks(10 * mib)).code(), errc::not_ready)
      << "the end is another stream's";
  EXPECT_EQ(store->fit_at(place, asks(6 * mib + unit)).code(), errc::not_ready);
  EXPECT_EQ(store->fit_at(place, asks(6 * mib, 1)).code(), errc::not_ready);
  const block_index room = store->fit_at(place + mib, asks(5 * mib)).value();
  EXPECT_EQ(blocks[room].address, place + mib);
  EXPECT_EQ(blocks[room].size(), 5 * mib);
  EXPECT_EQ(store->bound_to(slots[0]), mib) << "what lies before it";
  EXPECT_EQ(known.waits_queued(), 0u);
}

/// 512 MiB are held, so that growth comes in 8 MiB and handles have 4.
TEST_F(arenas, growth_and_its_surplus_share_handles_only_where_nothing_moves) {
  empty();
  for (const bool moves : {false, true}) {
    growth_rules rules = growth_rules::of(placement_policy::never_move);
    rules.moves = moves;
    const auto other = make_private(rules);
    const std::uint64_t base = blocks[other->grow(asks(512 * mib), bound).value()].address;
    ASSERT_EQ(other->reserved(), 512 * mib);
    const block_index added = other->grow(asks(2 * mib), bound).value();
    EXPECT_EQ(blocks[added].address, base + 512 * mib);
    EXPECT_EQ(other->reserved(), 520 * mib);
    EXPECT_EQ(other->longest_fit(slots[1]), 6 * mib);
    pool_snapshot now;
    other->describe(now);
    std::vector<std::uint64_t> handles;
    for (const auto& each : now.physical)
      if (each.address >= base + 512 * mib) handles.push_back(each.size.count() / mib);
    EXPECT_EQ(handles,
              moves ? (std::vector<std::uint64_t>{2, 4, 2}) : (std::vector<std::uint64_t>{4, 4}));
    EXPECT_EQ(other->check(), "");
    EXPECT_TRUE(other->close(bound));
  }
}

/// Growth comes in 8 MiB, and of the 2052 MiB of addresses as many are left, or 2 MiB less.
TEST_F(arenas, growth_has_a_surplus_as_far_as_there_are_addresses) {
  empty();
  for (const std::uint64_t shift : {std::uint64_t{0}, 2 * mib}) {
    SCOPED_TRACE(shift);
    const auto other = make_private({.handle_scale = 1,
                                     .largest_handle = 8 * mib,
                                     .reserved_share = 1,
                                     .request_share = 1,
                                     .unit_share = 1,
                                     .slack = 0,
                                     .headroom = 0,
                                     .moves = false});
    const auto give_back = [&](block_index freed) {
      other->free(freed, known.now(slots[0]));
      rest(*other, 0);
      EXPECT_TRUE(other->release(bytes{1024 * mib}, bound));
    };
    const block_index low = other->grow(asks(900 * mib + shift), bound).value();
    const std::uint64_t base = blocks[low].address + shift;
    EXPECT_EQ(blocks[other->grow(asks(4 * mib), bound).value()].address, base + 900 * mib);
    EXPECT_EQ(other->reserved(), 908 * mib + shift);
    give_back(low);
    // Longer than the hole: it begins with what is free at the end.
    const block_index high = other->grow(asks(912 * mib), bound).value();
    EXPECT_EQ(blocks[high].address, base + 904 * mib);
    EXPECT_EQ(other->reserved(), 920 * mib);
    EXPECT_EQ(blocks[other->fit(asks(2 * mib))].address, base + 1816 * mib);
    give_back(high);
    EXPECT_EQ(other->reserved(), 16 * mib);
    for (const std::uint64_t free : {904 * mib, 1812 * mib})
      EXPECT_EQ(blocks[other->fit(asks(4 * mib))].address, base + free);
    // With what is free at the end it takes less than in a hole.
    const block_index next = other->grow(asks(226 * mib), bound).value();
    EXPECT_EQ(blocks[next].end(), base + 2044 * mib);
    EXPECT_EQ(other->reserved(), 240 * mib);
    EXPECT_EQ(blocks[other->grow(asks(2 * mib), bound).value()].address, base + 2044 * mib);
    EXPECT_EQ(other->reserved(), shift == 0 ? 248 * mib : 242 * mib);
    EXPECT_EQ(other->check(), "");
    EXPECT_TRUE(other->close(bound));
  }
}

/// Growth comes in 8 MiB, and that much is left under the limit, or one unit less.
TEST_F(arenas, growth_has_a_surplus_as_far_as_the_limit_goes) {
  empty();
  shared.reserved_limit = 8 * gib;
  for (const std::uint64_t missing : {std::uint64_t{0}, unit}) {
    SCOPED_TRACE(missing);
    const auto other = make_private({.handle_scale = 1,
                                     .largest_handle = 8 * mib,
                                     .reserved_share = 1,
                                     .request_share = 1,
                                     .unit_share = 1,
                                     .slack = 0,
                                     .headroom = 0,
                                     .moves = false});
    const block_index low = other->grow(asks(8 * mib), bound).value();
    ASSERT_EQ(other->reserved(), 8 * mib);
    shared.pledged = shared.reserved_limit - shared.reserved - (8 * mib - missing);
    ASSERT_FALSE(shared.is_short()) << "what is pledged is not held yet";
    const block_index high = other->grow(asks(2 * mib), bound).value();
    ASSERT_NE(high, no_block);
    EXPECT_EQ(blocks[high].address, blocks[low].end());
    EXPECT_EQ(other->reserved(), missing == 0 ? 16 * mib : 10 * mib);
    shared.pledged = 0;
    EXPECT_EQ(other->check(), "");
    EXPECT_TRUE(other->close(bound));
  }
}

/// Up to 64.32 MiB are preferred to moving while the most that was handed out is 64 MiB.
TEST_F(arenas, what_was_held_before_a_release_is_no_measure_any_more) {
  const auto laid = lay_out({8, 24, 32});
  free(laid[2], 0);
  EXPECT_EQ(store->release(bytes{1024 * mib}, bound).value(), bytes{}) << "the stream may use it";
  EXPECT_TRUE(store->prefers_growth(asks(mib / 4))) << "nothing went, and the measure stays";
  EXPECT_FALSE(store->prefers_growth(asks(mib / 2)));
  free(laid[1], 0);
  rest(*store, 0);
  EXPECT_EQ(store->release(bytes{32 * mib}, bound).value(), bytes{32 * mib});
  EXPECT_EQ(store->reserved(), 32 * mib);
  EXPECT_FALSE(store->prefers_growth(asks(2 * mib))) << "8 MiB are handed out, 32 are held";
  EXPECT_EQ(store->release(bytes{1024 * mib}, bound).value(), bytes{24 * mib});
  EXPECT_EQ(store->reserved(), 8 * mib);
  EXPECT_FALSE(store->prefers_growth(asks(2 * mib)));
  EXPECT_TRUE(store->prefers_growth(asks(32 * 1024))) << "up to 8.04 MiB";
}

/// Three handles of 2 MiB lie apart, and two new ones of 8 MiB serve the request better; that takes
/// headroom for all of it.
TEST_F(arenas, room_is_made_of_new_memory_where_there_is_headroom_for_it) {
  empty();
  for (const double headroom : {1.0, 0.99}) {
    SCOPED_TRACE(headroom);
    const auto other = make_private({.handle_scale = 1,
                                     .largest_handle = 8 * mib,
                                     .reserved_share = 1,
                                     .request_share = 1,
                                     .unit_share = 0,
                                     .slack = 0,
                                     .headroom = headroom});
    std::vector<block_index> made;
    for (int i = 0; i < 8; ++i) made.push_back(other->grow(asks(2 * mib), bound).value());
    const std::uint64_t base = blocks[made[0]].address;
    ASSERT_EQ(blocks[made[7]].end(), base + 16 * mib);
    for (const std::size_t each : {1, 3, 5}) other->free(made[each], known.now(slots[0]));
    const std::uint64_t created = shared.handles_created;
    const std::uint64_t moved = shared.handles_moved;
    const block_index room = other->rearrange(asks(16 * mib), reach::usable, bound).value();
    EXPECT_EQ(shared.handles_moved, moved);
    if (headroom < 1) {
      EXPECT_EQ(room, no_block);
      EXPECT_EQ(shared.handles_created, created);
      EXPECT_EQ(other->reserved(), 16 * mib);
    } else {
      ASSERT_NE(room, no_block);
      EXPECT_EQ(blocks[room].address, base + 16 * mib);
      EXPECT_EQ(blocks[room].size(), 16 * mib);
      EXPECT_EQ(shared.handles_created, created + 2);
      EXPECT_EQ(other->reserved(), 32 * mib);
    }
    EXPECT_EQ(other->check(), "");
    EXPECT_TRUE(other->close(bound));
  }
}

TEST_F(arenas, a_closed_arena_has_nothing_whatever_was_handed_out) {
  const bytes used = machine->used(device_id{0});
  const std::size_t records = blocks.in_use();
  const auto other = make_private(growth_rules::of(placement_policy::compact));
  const block_index low = other->grow(asks(4 * mib), bound).value();
  ASSERT_NE(other->grow(asks(6 * mib), bound).value(), no_block);
  take_away(*other, {low});
  EXPECT_EQ(other->handed_out(), 6 * mib);
  EXPECT_EQ(other->reserved(), 6 * mib);
  EXPECT_EQ(shared.reserved, 70 * mib);
  EXPECT_TRUE(other->close(bound));
  EXPECT_EQ(other->handed_out(), 0u);
  EXPECT_EQ(other->reserved(), 0u);
  EXPECT_EQ(shared.reserved, 64 * mib);
  EXPECT_EQ(other->longest_fit(slots[0]), 0u);
  EXPECT_EQ(other->fragments(), 0u);
  EXPECT_EQ(other->check(), "");
  EXPECT_EQ(blocks.in_use(), records);
  EXPECT_EQ(machine->used(device_id{0}), used);
}

TEST_F(arenas, a_mapping_that_got_stuck_goes_with_the_arena) {
  const bytes before = machine->used(device_id{0});
  const auto other = make_private(growth_rules::of(placement_policy::compact));
  machine->fail(driver::call::mem_set_access, 1, driver::CUDA_ERROR_UNKNOWN);
  machine->fail(driver::call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(other->grow(asks(2 * mib), bound));
  pool_snapshot stuck;
  other->describe(stuck);
  ASSERT_EQ(stuck.blocks.size(), 1u);
  EXPECT_EQ(stuck.blocks[0].state, block_state::hole);
  EXPECT_EQ(stuck.blocks[0].size, bytes{2 * mib});
  EXPECT_EQ(other->check(), "");
  const std::uint64_t unmapped = machine->calls(driver::call::mem_unmap);
  EXPECT_TRUE(other->close(bound));
  EXPECT_EQ(machine->calls(driver::call::mem_unmap), unmapped + 1);
  EXPECT_EQ(machine->used(device_id{0}), before);
}

TEST_F(arenas, a_hole_at_the_begin_is_described_without_memory) {
  const auto laid = lay_out({4, 60});
  take_away(*store, {laid[0]});
  pool_snapshot seen;
  store->describe(seen);
  ASSERT_EQ(seen.blocks.size(), 3u);
  EXPECT_EQ(seen.blocks[0].state, block_state::hole);
  EXPECT_EQ(seen.physical.size(), 30u);
  EXPECT_TRUE(seen.suspended.empty());
}

TEST_F(arenas, a_run_that_is_missing_in_its_streams_queue_is_noticed) {
  const auto laid = lay_out({4, 4, 4, 4, 4, 44});
  for (const std::size_t each : {0, 2, 4}) free(laid[each], 1);
  ASSERT_EQ(blocks[laid[0]].in.newer, laid[2]);
  ASSERT_EQ(blocks[laid[4]].in.older, laid[2]);
  blocks[laid[0]].in.newer = laid[4];
  blocks[laid[4]].in.older = laid[0];
  EXPECT_EQ(store->check(), "a queue that misses runs at +67108864\n");
  blocks[laid[0]].in.newer = blocks[laid[4]].in.older = laid[2];
}

TEST_F(arenas, what_is_no_hole_is_noticed_among_the_holes) {
  const auto laid = lay_out({4, 2, 4, 2, 52});
  take_away(*store, {laid[1], laid[3]});
  free(laid[0], 1);
  const block_index low = store->block_over(begin + 4 * mib);
  const block_index high = store->block_over(begin + 10 * mib);
  const block_index first = blocks[low].in.newer == high ? low : high;
  const block_index last = std::exchange(blocks[first].in.newer, laid[0]);
  ASSERT_EQ(last, first == low ? high : low);
  ASSERT_EQ(blocks[laid[0]].in.newer, no_block) << "as many as there are holes";
  EXPECT_EQ(store->check(), "no hole among the holes at +0\n");
  blocks[first].in.newer = last;
}

TEST_F(arenas, a_hole_that_begins_inside_a_slot_is_noticed) {
  const auto laid = lay_out({4, 2, 58});
  take_away(*store, {laid[1]});
  block& hole = blocks[store->block_over(begin + 4 * mib)];
  block& below = blocks[laid[0]];
  block& above = blocks[laid[2]];
  constexpr std::uint32_t shift = mib / unit;
  below.units += shift;
  hole.address += mib;
  above.address += mib;
  above.units -= shift;
  EXPECT_EQ(store->check(),
            "a block over no memory at +0\n"
            "a hole over memory at +5242880\n"
            "a hole that is not of whole slots at +5242880\n");
  below.units -= shift;
  hole.address -= mib;
  above.address -= mib;
  above.units += shift;
}

/// It is missing among everybody's, too.
TEST_F(arenas, a_run_of_the_first_stream_that_owns_nothing_is_noticed) {
  const auto laid = lay_out({4, 60});
  free(laid[0], 0);
  rest(*store, 0);
  ASSERT_EQ(slots[1], slots[0] + 1) << "the first stream alone is known to the arena";
  block& run = blocks[store->block_over(begin)];
  ASSERT_EQ(run.stream, no_stream);
  run.stream = slots[1];
  EXPECT_EQ(store->check(),
            "a run of an unknown owner at +0\n"
            "a wrong sum of an owner's runs at +67108864\n");
  run.stream = no_stream;
}

/// A handle of two slots leaves its mapping behind and goes while that hole is hidden. The next
/// handle of its number has one slot: with that, only half of the old mapping is forgotten.
TEST_F(arenas, a_mapping_that_was_left_behind_is_noticed_under_a_block) {
  const auto other = make_private({.handle_scale = 1,
                                   .largest_handle = 4 * mib,
                                   .reserved_share = 1,
                                   .request_share = 1,
                                   .unit_share = 0,
                                   .slack = 0,
                                   .headroom = 0});
  const auto grows = [&](std::uint64_t size) { return other->grow(asks(size), bound).value(); };
  const block_index pair = grows(4 * mib);
  const std::uint64_t base = blocks[pair].address;
  ASSERT_EQ(blocks[grows(2 * mib)].address, base + 4 * mib);
  other->free(pair, known.now(slots[0]));
  rest(*other, 0);
  const block_index moved = grows(6 * mib);
  ASSERT_EQ(shared.handles_moved, 1u);
  block& hole = blocks[other->block_over(base)];
  ASSERT_EQ(hole.is(), block_kind::hole);
  ASSERT_EQ(hole.size(), 4 * mib);
  hole.become(block_kind::stuck);
  take_away(*other, {moved});
  hole.become(block_kind::hole);
  ASSERT_TRUE(vmm::unmap(bound, base, bytes{4 * mib}));
  ASSERT_EQ(blocks[grows(2 * mib)].address, base + 6 * mib);
  ASSERT_EQ(blocks[grows(4 * mib)].address, base);
  EXPECT_EQ(other->check(),
            "a block over a mapping left behind at +0\n"
            "a wrong count of mappings at +6291456\n");
  EXPECT_TRUE(other->close(bound));
}

TEST_F(arenas, what_is_handed_out_says_nothing_of_the_run_that_it_was) {
  const auto laid = lay_out({4, 60});
  free(laid[0], 1);
  ASSERT_NE(blocks[laid[0]].in.freed, 0u);
  ASSERT_EQ(store->fit(asks(4 * mib, 1)), laid[0]);
  EXPECT_EQ(blocks[laid[0]].out.waste, 0u);
  EXPECT_EQ(blocks[laid[0]].out.next, no_block);
  EXPECT_EQ(blocks[laid[0]].out.ahead, no_block);
  EXPECT_EQ(blocks[laid[0]].out.home, 0u);
}

TEST_F(arenas, the_footprint_is_that_of_all_its_records) {
  struct slot_record {
    std::uint32_t current, retained, retained_offset;
  };
  struct handle_record {
    vmm::physical memory;
    std::uint32_t slot, slots, retained;
  };
  struct owner_record {
    fit_index runs;
    block_index oldest, newest;
  };
  const auto other = make_private(growth_rules::of(placement_policy::compact));
  const std::size_t nobody = sizeof(owner_record) + fit_index{blocks, begin}.footprint();
  EXPECT_EQ(other->footprint(), sizeof(handle_record) + nobody);
  const auto unused = make_private(growth_rules::of(placement_policy::compact));
  EXPECT_TRUE(unused->close(bound));
  EXPECT_EQ(unused->footprint(), other->footprint()) << "as before it was closed";
  ASSERT_NE(other->grow(asks(2 * mib), bound).value(), no_block);
  const std::size_t one = other->footprint();
  ASSERT_NE(other->grow(asks(2 * mib), bound).value(), no_block);
  EXPECT_EQ(other->footprint() - one,
            2 * (sizeof(handle_record) + sizeof(std::uint32_t)) + sizeof(slot_record))
      << "there is room for twice as many now";
  EXPECT_EQ(other->check(), "");
  EXPECT_TRUE(other->close(bound));
}

TEST_F(arenas, whoever_is_given_new_memory_can_free_it_without_more_of_the_hosts) {
  const auto other = make_private(growth_rules::of(placement_policy::compact));
  ASSERT_NE(other->grow(asks(2 * mib, 2), bound).value(), no_block);
  const std::size_t grown = other->footprint();
  other->prepare_free(slots[2]);
  EXPECT_EQ(other->footprint(), grown) << "it is prepared";
  EXPECT_TRUE(other->close(bound));
}

}  // namespace
}  // namespace weir::placement
