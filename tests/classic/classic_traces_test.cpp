// SPDX-License-Identifier: Apache-2.0
// PyTorch's reserved peaks, reproduced from recorded traces.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "classic/classic_fixture.hpp"
#include "support/trace.hpp"

namespace weir::testing_support { namespace {

/// What a replay had reserved at most. Blocks are free for their stream at their `reusable` event.
std::uint64_t reserved_peak(const trace& recorded, bool expandable) {
  classic_bench bench{expandable, recorded.streams};
  std::vector<placement::block_index> live(recorded.blocks, placement::no_block);
  for (const trace::event& each : recorded.events) {
    placement::block_index& block = live[each.block];
    if (each.kind == trace::event_kind::allocate && each.size != 0) {
      block = bench.allocate(each.size, each.stream);
    }
    if (each.kind == trace::event_kind::reusable && block != placement::no_block) {
      bench.free(block, each.stream);
    }
  }
  EXPECT_EQ(bench.store->check(), "");
  EXPECT_EQ(bench.shared.reserved_peak, bench.store->reserved_peak());
  return bench.store->reserved_peak();
}

/// How far our peak may be from PyTorch's, as a fraction of it.
struct tolerance {
  double fixed = 0;
  double expandable = 0;
};

/// None, but for six threads that allocate at the same time: among runs of one size PyTorch chose
/// by the driver's addresses, which a trace does not have, and its expandable peak is of another
/// run, whose threads were timed differently.
tolerance tolerance_for(const std::string& program) {
  if (program == "serve_short") return {.fixed = 0.01, .expandable = 0.05};
  return {};
}

class classic_traces : public ::testing::TestWithParam<std::string> {};

TEST_P(classic_traces, reserve_what_pytorch_reserved) {
  const auto recorded = read_trace(GetParam());
  ASSERT_TRUE(recorded) << recorded.error().message();

  const std::uint64_t fixed = reserved_peak(*recorded, false);
  const std::uint64_t expandable = reserved_peak(*recorded, true);
  RecordProperty("fixed", std::to_string(fixed));
  RecordProperty("expandable", std::to_string(expandable));
  // Exact for a tolerance of 0: the numbers are far below 2^53.
  const auto expect = [](std::uint64_t ours, std::uint64_t theirs, double share) {
    const auto torchs = static_cast<double>(theirs);
    EXPECT_NEAR(static_cast<double>(ours), torchs, torchs * share);
  };
  const auto [fixed_share, expandable_share] = tolerance_for(GetParam());
  expect(fixed, recorded->fixed_reserved_peak, fixed_share);
  expect(expandable, recorded->expandable_reserved_peak, expandable_share);
}

INSTANTIATE_TEST_SUITE_P(all, classic_traces, ::testing::ValuesIn(recorded_programs()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace weir::testing_support
