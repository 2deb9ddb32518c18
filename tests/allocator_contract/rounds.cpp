// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: a program that makes the same requests round after round keeps its
// data, and moves no memory for ever.
#include <algorithm>
#include <utility>
#include <vector>

#include "allocator_contract/allocator_test.hpp"

namespace weir::testing_support { namespace {

class rounds_that_repeat : public allocator_test {
 protected:
  /// Tables that are freed before the forward pass and taken back between activations of which
  /// every other one goes first; some of those are read on another stream as well.
  void play(const lane& on, const lane& reader, std::size_t count) {
    for (const auto& each : std::exchange(tables_, {})) finish(each, on);
    std::vector<filled_block> live;
    for (std::size_t i = 0; i < count; ++i) {
      live.push_back(make(1_MiB + bytes{(i * i * 37 % 61 + 3) * 131'072}, on));
      if (i % 7 != 0) continue;
      reader.wait_for(on);
      reader.check(live.back().memory, live.back().size, live.back().value);
      EXPECT_TRUE(memory().record_stream(live.back().memory, reader));
    }
    for (std::size_t i = 0; i < count; i += 2) finish(live[i], on);
    for (std::size_t i = 1; i < count; i += 2) {
      if (i == count / 2 / 2 * 2 + 1) {
        tables_.push_back(make(96_MiB, on));
        tables_.push_back(make(38_MiB, on));
      }
      finish(live[i], on);
    }
  }

  std::vector<filled_block> tables_;
};
WEIR_ALLOCATOR_CONTRACT(rounds_that_repeat);

TEST_P(rounds_that_repeat, their_blocks_keep_what_was_written_and_come_to_rest) {
  lane& on = new_lane();
  lane& reader = new_lane();
  std::vector<filled_block> weights;
  for (int i = 0; i < 4; ++i) weights.push_back(make(8_MiB, on));
  std::vector<std::uint64_t> moved;
  for (int round = 0; round < 24; ++round) {
    const std::uint64_t before = memory().stats().handles_moved;
    play(on, reader, 40);
    WEIR_OK(cu->ctx_synchronize());
    moved.push_back(memory().stats().handles_moved - before);
    expect_books();
    if (round % 6 == 0) expect_snapshot();
  }
  // Handles of throughput are too large for the places of single blocks.
  if (policy() != placement_policy::throughput && checks_under_test() == debug_checks::off) {
    // A block that the other stream uses may come back later than planned, in any single round.
    EXPECT_EQ(*std::min_element(moved.end() - 6, moved.end()), 0U);
  }
  for (const auto& each : tables_) finish(each, on);
  for (const auto& each : weights) finish(each, on);
}

/// The rounds change in the middle, and streams go on as they like.
TEST_P(rounds_that_repeat, other_rounds_in_between_cost_no_data) {
  lane& on = new_lane();
  lane& reader = new_lane();
  for (int round = 0; round < 24; ++round) {
    play(on, reader, round / 8 == 1 ? 22 : 40);
    expect_books();
  }
  for (const auto& each : tables_) finish(each, on);
  expect_snapshot();
}

}  // namespace
}  // namespace weir::testing_support
