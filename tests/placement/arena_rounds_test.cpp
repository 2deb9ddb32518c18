// SPDX-License-Identifier: Apache-2.0
// An arena whose requests repeat: its blocks come to lie where they can stay.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "placement/arena.hpp"
#include "support/sizes.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement::arena_rounds_test { namespace {

using testing_support::gib;
using testing_support::mib;

/// An arena that moves before it grows, in handles of single slots.
class repeating_arenas : public ::testing::Test {
 protected:
  repeating_arenas() {
    for (int i = 0; i < 2; ++i) {
      streams.push_back(stream::create(gpu).value());
      slots.push_back(known.slot_of(streams.back(), bound).value());
    }
    store = arena::create(shared, pool_id{}, rules(), bound).value();
    free(ask(272 * mib));  // somewhat more than a comb needs
    rest();
  }
  void TearDown() override {
    EXPECT_EQ(store->check(), "");
    EXPECT_TRUE(store->close(bound));
  }
  static growth_rules rules() {
    growth_rules chosen = growth_rules::of(placement_policy::compact);
    chosen.slack = 0;
    chosen.headroom = 0;
    chosen.largest_handle = 2 * mib;
    return chosen;
  }
  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options chosen;
    chosen.devices = {
        sim::device_spec{.capacity = bytes{8 * gib}, .context_overhead = bytes{64 * mib}}};
    chosen.mode = sim::progress::manual;
    return sim::machine::create(chosen).value();
  }
  block_index ask(std::uint64_t size, std::size_t stream = 0) {
    const request wanted{static_cast<std::uint32_t>(size / unit), 1, slots[stream]};
    block_index room = store->fit(wanted);
    if (room == no_block)
      room = store->rearrange(wanted, backing_store::reach::usable, bound).value();
    if (room == no_block) room = store->grow(wanted, bound).value();
    EXPECT_NE(room, no_block);
    return room;
  }
  void free(block_index which, std::size_t stream = 0) {
    store->free(which, known.now(slots[stream]));
  }
  /// All work is done and known to be.
  void rest() {
    for (const stream_slot each : slots) {
      EXPECT_TRUE(known.close(each, bound));
      EXPECT_TRUE(known.poll(bound));
      store->retire(each);
    }
  }
  /// Blocks of so many mebibytes; then every other one goes, a large one comes into what they left,
  /// and the rest goes. Returns where all of them lay.
  std::vector<std::uint64_t> comb(const std::vector<std::uint64_t>& teeth, std::uint64_t large) {
    std::vector<std::uint64_t> places;
    std::vector<block_index> live;
    for (const std::uint64_t each : teeth) {
      live.push_back(ask(each * mib));
      places.push_back(blocks[live.back()].address);
    }
    for (std::size_t i = 0; i < live.size(); i += 2) free(live[i]);
    rest();
    const block_index across = ask(large * mib);
    places.push_back(blocks[across].address);
    for (std::size_t i = 1; i < live.size(); i += 2) free(live[i]);
    // Something else, so that the large block does not lie where all was free.
    const block_index other = ask((large + 2) * mib);
    places.push_back(blocks[other].address);
    free(across);
    free(other);
    rest();
    EXPECT_EQ(store->check(), "");
    return places;
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
  std::vector<stream> streams;
  std::vector<stream_slot> slots;
  std::unique_ptr<backing_store> store;
  const std::vector<std::uint64_t> teeth = {20, 22, 24, 18, 26, 20, 28, 22, 30, 24};
};

TEST_F(repeating_arenas, rounds_that_move_get_places_where_nothing_moves) {
  std::vector<std::vector<std::uint64_t>> places;
  std::vector<std::uint64_t> moved;
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t before = shared.handles_moved;
    places.push_back(comb(teeth, 120));
    moved.push_back(shared.handles_moved - before);
  }
  EXPECT_GT(moved[1] + moved[2], 20u);
  // With handles that lie where they should moved last; in any other order it is more.
  EXPECT_EQ(std::accumulate(moved.begin(), moved.end(), std::uint64_t{0}), 321u);
  EXPECT_EQ(moved[10], 0u);
  EXPECT_EQ(moved[11], 0u);
  EXPECT_EQ(places[11], places[10]);
  EXPECT_NE(places[11], places[1]);
}

TEST_F(repeating_arenas, what_leaves_the_round_is_served_and_the_round_goes_on) {
  for (int i = 0; i < 12; ++i) comb(teeth, 120);
  const std::vector<std::uint64_t> places = comb(teeth, 120);
  for (int i = 0; i < 6; ++i) comb({30, 40, 50, 20}, 70);
  for (int i = 0; i < 3; ++i) comb(teeth, 120);
  const std::uint64_t before = shared.handles_moved;
  EXPECT_EQ(comb(teeth, 120), places);
  EXPECT_EQ(comb(teeth, 120), places);
  EXPECT_EQ(shared.handles_moved, before);
}

TEST_F(repeating_arenas, notes_and_plans_are_counted_among_its_records) {
  const std::size_t without = store->footprint();
  for (int i = 0; i < 4; ++i) comb(teeth, 120);
  EXPECT_GT(store->footprint(), without + 4096 * 40);
}

TEST_F(repeating_arenas, a_plan_bears_that_the_arena_grows_by_a_slot) {
  for (int i = 0; i < 13; ++i) comb(teeth, 120);
  const std::vector<std::uint64_t> places = comb(teeth, 120);
  const std::uint64_t held = store->reserved();
  std::vector<block_index> small;
  while (store->reserved() == held) small.push_back(ask(mib / 2));
  EXPECT_EQ(store->reserved(), held + 2 * mib);
  for (const block_index each : small) free(each);
  rest();
  const std::uint64_t before = shared.handles_moved;
  EXPECT_EQ(comb(teeth, 120), places);
  EXPECT_EQ(shared.handles_moved, before);
}

TEST_F(repeating_arenas, a_plan_that_has_no_room_beside_something_new_is_dropped) {
  for (int i = 0; i < 13; ++i) comb(teeth, 120);
  const std::uint64_t held = store->reserved();
  const block_index fresh = ask(50 * mib);
  for (int i = 0; i < 3; ++i) comb(teeth, 120);
  free(fresh);
  rest();
  // As much as all of it takes, and not the plan's places as well.
  EXPECT_LE(store->reserved(), held + 50 * mib);
}

TEST_F(repeating_arenas, a_place_that_is_taken_is_left_to_who_has_it) {
  for (int i = 0; i < 12; ++i) comb(teeth, 120);
  const std::vector<std::uint64_t> places = comb(teeth, 120);
  // Lives where the first of the round should lie.
  const request there{static_cast<std::uint32_t>(20 * mib / unit), 1, slots[0]};
  const block_index squatter = store->fit_at(places[0], there).value();
  EXPECT_EQ(blocks[squatter].address, places[0]);
  for (int i = 0; i < 8; ++i) {
    for (const std::uint64_t each : comb(teeth, 120))
      EXPECT_TRUE(each >= blocks[squatter].end() || each < places[0]);
  }
  free(squatter);
}

TEST_F(repeating_arenas, a_release_ends_the_plan) {
  for (int i = 0; i < 13; ++i) comb(teeth, 120);
  const std::uint64_t held = store->reserved();
  EXPECT_EQ(store->release(bytes::max(), bound).value().count(), held);
  EXPECT_EQ(store->check(), "");
  const std::uint64_t before = shared.handles_moved;
  for (int i = 0; i < 2; ++i) comb(teeth, 120);
  EXPECT_GT(shared.handles_moved, before);
  EXPECT_LE(store->reserved(), held);
}

TEST_F(repeating_arenas, another_streams_memory_is_not_taken_for_a_planned_block) {
  for (int i = 0; i < 12; ++i) comb(teeth, 120);
  const std::vector<std::uint64_t> places = comb(teeth, 120);
  const request there{static_cast<std::uint32_t>(20 * mib / unit), 1, slots[1]};
  const block_index others = store->fit_at(places[0], there).value();
  free(others, 1);  // the other stream may still use it
  const block_index first = ask(20 * mib);
  EXPECT_NE(blocks[first].address, places[0]);
  free(first);
  rest();
}

/// Random rounds, repeated, and left now and then.
TEST_F(repeating_arenas, whatever_repeats_the_books_agree) {
  std::mt19937_64 random{11};
  std::size_t at_rest = 0;
  for (int program = 0; program < 12; ++program) {
    const std::size_t count = 8 + random() % 24;
    std::vector<std::pair<std::uint64_t, std::size_t>> round;  // size, and how long it lives
    for (std::size_t i = 0; i < count; ++i)
      round.emplace_back(mib + unit * (1 + random() % 40'000), 1 + random() % count);
    std::vector<block_index> live(count, no_block);
    std::vector<std::size_t> until(count, 0);
    std::size_t time = 0;
    std::uint64_t moved = 0;
    for (int i = 0; i < 16; ++i) {
      const std::uint64_t before = shared.handles_moved;
      for (std::size_t j = 0; j < count; ++j, ++time) {
        for (std::size_t k = 0; k < count; ++k) {
          if (live[k] == no_block || until[k] > time) continue;
          free(live[k]);
          live[k] = no_block;
        }
        if (i == 9 && random() % 5 == 0) {  // leaves the round
          const block_index odd = ask(3 * mib + unit * (random() % 9'000), random() % 2);
          free(odd);
        }
        ASSERT_EQ(live[j], no_block);
        live[j] = ask(round[j].first);
        until[j] = time + round[j].second;
        if (random() % 3 == 0) rest();
        ASSERT_EQ(store->check(), "");
      }
      moved = shared.handles_moved - before;
    }
    if (moved == 0) ++at_rest;
    for (const block_index each : live)
      if (each != no_block) free(each);
    rest();
  }
  EXPECT_GE(at_rest, 6u);
}

}  // namespace
}  // namespace weir::placement::arena_rounds_test
