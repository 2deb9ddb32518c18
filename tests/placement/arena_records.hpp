// SPDX-License-Identifier: Apache-2.0
// What the tests of an arena's parts share: its records, laid out by hand, without an arena.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "placement/arena_core.hpp"
#include "placement/backing_store.hpp"
#include "placement/store_fixture.hpp"
#include "support/sizes.hpp"
#include "weir/device/runtime.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Blocks, slots and handles of an arena, which grow as blocks are appended; two streams on which
/// nothing happens by itself. There are addresses for 1,000 slots; what is appended is not mapped.
class arena_records : public ::testing::Test {
 protected:
  static constexpr std::uint64_t slot = std::uint64_t{2} << 20;

  explicit arena_records(growth_rules rules = growth_rules::of(placement_policy::compact))
      : core{.shared = shared,
             .pool = pool_id{},
             .rules = rules,
             .properties = {},
             .slots = {base, 1000 * slot, slot},
             .runs = {blocks, known, base}} {
    for (int i = 0; i < 2; ++i) {
      streams.push_back(stream::create(gpu).value());
      stream_slots.push_back(known.slot_of(streams.back(), bound).value());
      runs.prepare_owner(stream_slots.back());
    }
    EXPECT_TRUE(blocks.prepare(100));
    slots.prepare(100, 1000);
  }
  /// A block behind all others. Where no slot is yet there will be handles, unless it is a hole.
  block_index append(std::uint64_t size, block_kind kind, stamp freed = {}) {
    const block_index fresh = blocks.make();
    block& made = blocks[fresh];
    made.address = end;
    made.units = static_cast<std::uint32_t>(size / unit);
    made.stream = freed.stream;
    made.become(kind);
    made.in = {};
    made.in.freed = freed.epoch;
    end += size;
    runs.link_after(runs.last(), fresh);
    if (kind == block_kind::run) runs.add_run(fresh);
    if (kind == block_kind::hole) runs.note_hole(fresh);
    while (slots.end_address() < end) {
      const std::uint64_t first = slots.count();
      slots.resize(first + (kind == block_kind::hole ? 1 : handle_slots));
      if (kind == block_kind::hole) continue;
      const handle_number number =
          slots.add({.handle = ++memory, .size = bytes{handle_slots * slot}});
      slots.enter(number, static_cast<std::uint32_t>(first), /*returns=*/false);
    }
    return fresh;
  }
  /// A block of the first stream.
  block_index live(std::uint64_t size) {
    const block_index made = append(size, block_kind::live);
    blocks[made].stream = stream_slots[0];
    return made;
  }
  /// Free for everybody, unless it was freed on a stream.
  block_index run(std::uint64_t size, stamp freed = {}) {
    return append(size, block_kind::run, freed);
  }
  block_index hole(std::uint64_t size, stamp used = {}) {
    return append(size, block_kind::hole, used);
  }
  /// All that was freed on the stream so far is completed.
  void complete(std::size_t stream) {
    EXPECT_TRUE(known.close(stream_slots[stream], bound));
    EXPECT_TRUE(known.poll(bound));
  }
  /// The stream has work to do, so that its epochs are not completed before it is done.
  void keep_busy(std::size_t stream) {
    EXPECT_TRUE(machine->launch(streams[stream].handle(), "work", {}));
  }
  [[nodiscard]] request asks(std::uint64_t size, std::size_t stream = 0) const {
    return {.units = static_cast<std::uint32_t>(size / unit), .stream = stream_slots[stream]};
  }
  [[nodiscard]] std::uint64_t at(std::uint64_t offset) const { return base + offset; }

  std::shared_ptr<sim::machine> machine = make_small_machine();
  std::shared_ptr<runtime> simulated = runtime::open_simulated(machine).value();
  device gpu = simulated->device(device_id{0}).value();
  context_scope bound{gpu};
  address_range range =
      address_range::reserve(gpu, bytes{1000 * slot}, bytes{std::uint64_t{1} << 30}).value();
  const std::uint64_t base = range.base();
  block_store blocks;
  order::stream_order known{gpu};
  kept_events told;
  // Placed as where there is plenty of memory; a limit makes it short.
  placement_context shared{.device = gpu,
                           .blocks = blocks,
                           .order = known,
                           .supply = memory_supply{gpu, std::uint64_t{1} << 50},
                           .observer = &told};
  std::vector<stream> streams;
  std::vector<stream_slot> stream_slots;
  arena_core core;
  arena_runs& runs = core.runs;
  arena_slots& slots = core.slots;
  std::uint32_t handle_slots = 1;  // of the handles of what is appended next
  std::uint64_t memory = 0;        // handles made
  std::uint64_t end = base;
};

}}}  // namespace weir::v0::placement
