// SPDX-License-Identifier: Apache-2.0
// What can be asked about an arena's records, and what the check of them finds.
#include "placement/arena_inspector.hpp"

#include <string>
#include <tuple>

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

class inspectors : public arena_records {
 protected:
  class figures_of_tests final : public arena_host {
   public:
    [[nodiscard]] arena_figures figures() const noexcept override { return held; }
    void count_created(std::uint64_t /*size*/) noexcept override {}
    void count_released(std::uint64_t /*size*/) noexcept override {}
    void moved(std::uint64_t /*slots*/) noexcept override {}
    void hand_out(block_index /*index*/, const request& /*wanted*/) noexcept override {}
    arena_figures held;
  };
  /// A live block of 4 MiB, 3 MiB that are everybody's, 3 of a stream, a hole of 2, and 4 MiB live.
  void lay_out() {
    live(4 * mib);
    run(3 * mib);
    run(3 * mib, known.now(stream_slots[1]));
    hole(2 * mib);
    handle_slots = 2;
    live(4 * mib);
    host.held = {.reserved = 14 * mib, .handed_out = 8 * mib};
  }
  [[nodiscard]] std::string check(bool suspended = false) const { return part.check(suspended); }

  figures_of_tests host;
  arena_inspector part{core, host};
};

TEST_F(inspectors, free_bytes_under_handles_in_use_are_fragments) {
  live(3 * mib);
  run(4 * mib);  // the handle from 4 to 6 MiB is wholly free
  live(mib);
  run(mib, known.now(stream_slots[0]));
  run(3 * mib);  // two handles that are free for different streams
  handle_slots = 2;
  run(3 * mib);
  live(mib);
  host.held = {.reserved = 16 * mib, .handed_out = 5 * mib};
  EXPECT_EQ(part.fragments(), 11 * mib - 2 * mib - 4 * mib);
}

TEST_F(inspectors, a_snapshot_has_blocks_and_handles_by_address) {
  lay_out();
  blocks[runs.last()].become(block_kind::pending);
  pool_snapshot seen;
  part.describe(seen, /*suspended=*/false);
  using piece = std::tuple<std::uint64_t, std::uint64_t, block_state>;
  std::vector<piece> pieces;
  for (const block_info& each : seen.blocks)
    pieces.emplace_back((each.address - base) / mib, each.size.count() / mib, each.state);
  EXPECT_EQ(pieces, (std::vector<piece>{{0, 4, block_state::live},
                                        {4, 3, block_state::free},
                                        {7, 3, block_state::stream_bound},
                                        {10, 2, block_state::hole},
                                        {12, 4, block_state::pending}}));
  EXPECT_EQ(seen.blocks[2].stream, known.id(stream_slots[1]));
  EXPECT_FALSE(seen.blocks[0].suspended);
  ASSERT_EQ(seen.physical.size(), 6u);
  EXPECT_EQ(seen.physical[4].address, at(8 * mib));
  EXPECT_EQ(seen.physical[5].address, at(12 * mib));
  EXPECT_EQ(seen.physical[5].size, bytes{4 * mib});
  EXPECT_TRUE(seen.suspended.empty());
}

TEST_F(inspectors, of_a_suspended_arena_runs_are_holes) {
  lay_out();
  slots.set_memory(6, {}, /*away=*/true);
  pool_snapshot seen;
  part.describe(seen, /*suspended=*/true);
  EXPECT_EQ(seen.blocks[1].state, block_state::hole);
  EXPECT_FALSE(seen.blocks[1].suspended);
  EXPECT_TRUE(seen.blocks[0].suspended);
  ASSERT_EQ(seen.suspended.size(), 1u);
  EXPECT_EQ(seen.suspended[0].address, at(12 * mib));
  EXPECT_EQ(seen.suspended[0].size, bytes{4 * mib});
  EXPECT_EQ(seen.physical.size(), 5u);
}

TEST_F(inspectors, handles_are_not_shown_unless_they_can_be_exported) {
  lay_out();
  EXPECT_EQ(part.handles_under(runs.first()).code(), errc::not_supported);
  arena_core exportable{.shared = shared,
                        .pool = pool_id{},
                        .rules = {},
                        .properties = {.posix_descriptor = true},
                        .slots = slots,
                        .runs = {blocks, known, base}};
  const arena_inspector other{exportable, host};
  block& part_of = blocks[runs.first()];
  part_of.address += mib;  // from 1 to 5 MiB
  const block_handles under = other.handles_under(runs.first()).value();
  EXPECT_EQ(under.offset, bytes{mib});
  ASSERT_EQ(under.handles.size(), 3u);
  EXPECT_EQ(under.handles[0].handle, 1u);
  EXPECT_EQ(under.handles[2].handle, 3u);
  part_of.address -= mib;
}

TEST_F(inspectors, records_that_agree_have_nothing_wrong) {
  EXPECT_EQ(check(), "");
  lay_out();
  EXPECT_EQ(check(), "");
}

TEST_F(inspectors, wrong_sums_are_noticed) {
  lay_out();
  host.held.handed_out += unit;
  EXPECT_EQ(check(), "a wrong sum of what is handed out at +16777216\n");
  host.held.handed_out -= unit;
  host.held.reserved += unit;
  EXPECT_EQ(check(),
            "handed out + free is not reserved at +16777216\n"
            "a wrong sum of handles at +16777216\n");
}

TEST_F(inspectors, wrong_blocks_are_noticed) {
  lay_out();
  block& second = blocks[runs[runs.first()].after];
  const block_index kept = std::exchange(second.before, no_block);
  EXPECT_EQ(check(), "a broken link at +4194304\n");
  second.before = kept;
  second.stream = stream_slot{17};
  EXPECT_EQ(check(),
            "a run of an unknown owner at +4194304\n"
            "a wrong sum of an owner's runs at +16777216\n");
  second.stream = no_stream;
  second.become(block_kind::unused);
  EXPECT_EQ(check(),
            "a recycled record at +4194304\n"
            "handed out + free is not reserved at +16777216\n"
            "a wrong sum of an owner's runs at +16777216\n");
  second.become(block_kind::run);
  EXPECT_EQ(check(), "");
}

TEST_F(inspectors, blocks_and_slots_that_do_not_agree_are_noticed) {
  lay_out();
  const block_index last = runs.last();
  blocks[last].become(block_kind::stuck);
  EXPECT_EQ(check(),
            "a hole over memory at +12582912\n"
            "a hole over memory at +12582912\n"
            "a wrong count of holes at +16777216\n"
            "a wrong sum of what is handed out at +16777216\n"
            "handed out + free is not reserved at +16777216\n");
  blocks[last].become(block_kind::live);
  slots.resize(9);
  EXPECT_EQ(check(), "an end that is not the slots' end at +16777216\n");
  slots.resize(8);
}

TEST_F(inspectors, two_runs_of_everybody_side_by_side_are_noticed) {
  run(2 * mib);
  run(2 * mib);
  host.held.reserved = 4 * mib;
  EXPECT_EQ(check(), "two runs that should be one at +0\n");
}

TEST_F(inspectors, a_broken_queue_is_noticed) {
  const stamp first = known.now(stream_slots[0]);
  const block_index low = run(2 * mib, first);
  live(2 * mib);
  keep_busy(0);
  EXPECT_TRUE(known.close(stream_slots[0], bound));
  const block_index high = run(2 * mib, known.now(stream_slots[0]));
  host.held = {.reserved = 6 * mib, .handed_out = 2 * mib};
  EXPECT_EQ(check(), "");
  std::swap(blocks[low].in.freed, blocks[high].in.freed);
  EXPECT_EQ(check(), "a queue out of order at +4194304\n");
  std::swap(blocks[low].in.freed, blocks[high].in.freed);
  blocks[high].in.older = high;
  EXPECT_EQ(check(), "a broken queue at +4194304\n");
  blocks[high].in.older = low;
  blocks[low].in.newer = no_block;
  EXPECT_EQ(check(),
            "a wrong end of a queue at +6291456\n"
            "a queue that misses runs at +6291456\n");
  blocks[low].in.newer = high;
}

TEST_F(inspectors, handles_that_are_away_are_so_while_the_arena_is_suspended) {
  live(2 * mib);
  host.held = {.reserved = 2 * mib, .handed_out = 2 * mib};
  const vmm::physical memory = slots.handle(1).memory;
  slots.set_memory(1, memory, /*away=*/true);
  EXPECT_EQ(check(/*suspended=*/true), "");
  EXPECT_EQ(check(), "a handle is away from a store that is not at +2097152\n");
  host.held.reserved = 0;
  slots.set_memory(1, {}, /*away=*/true);
  EXPECT_EQ(check(/*suspended=*/true), "");
  slots.set_memory(1, {}, /*away=*/false);
  EXPECT_EQ(check(/*suspended=*/true), "a handle without memory at +0\n");
}

}  // namespace
}  // namespace weir::placement
