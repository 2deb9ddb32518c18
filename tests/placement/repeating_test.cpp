// SPDX-License-Identifier: Apache-2.0
// Programs that make the same requests in every step, through the whole allocator on a simulated
// H200: what moves at first must not move for ever.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/replay.hpp"
#include "support/sizes.hpp"

namespace weir::testing_support { namespace {

using namespace std::chrono_literals;

/// A trace that is written step by step, a millisecond for every request.
class writer {
 public:
  std::uint32_t allocate(std::uint64_t size, std::uint32_t stream = 0) {
    const auto block = static_cast<std::uint32_t>(written_.blocks++);
    written_.streams = std::max<std::size_t>(written_.streams, stream + 1);
    add(trace::event_kind::allocate, block, size, stream);
    now_ += 1000;
    return block;
  }
  void free(std::uint32_t block, std::uint32_t stream = 0) {
    add(trace::event_kind::free, block, 0, stream);
    add(trace::event_kind::reusable, block, 0, stream);
  }
  [[nodiscard]] const trace& written() const { return written_; }

 private:
  void add(trace::event_kind kind, std::uint32_t block, std::uint64_t size, std::uint32_t stream) {
    written_.events.push_back({kind, stream, block, size, now_});
  }
  trace written_;
  std::uint64_t now_ = 0;
};

/// Weights that stay; two tables that are freed before the forward pass and taken back in the
/// backward pass; activations in between, of which every other one goes first.
trace combs(std::size_t rounds, double scale = 1) {
  const std::vector<std::uint64_t> activations = {
      59, 63, 15, 43, 72, 61, 48, 71, 55, 37, 74, 27, 46, 27, 22, 42, 28, 49, 22, 19, 52, 70,
      22, 55, 65, 50, 36, 71, 66, 43, 17, 11, 21, 61, 10, 73, 52, 41, 51, 18, 34, 38, 40, 28};
  const auto scaled = [&](std::uint64_t mebibytes) {
    return static_cast<std::uint64_t>(scale * static_cast<double>(mebibytes * mib)) / 512 * 512;
  };
  writer made;
  for (int i = 0; i < 16; ++i) made.allocate(scaled(64));
  std::vector<std::uint32_t> tables = {made.allocate(scaled(1280)), made.allocate(scaled(512))};
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const std::uint32_t each : tables) made.free(each);
    tables.clear();
    std::vector<std::uint32_t> live;
    for (const std::uint64_t each : activations) live.push_back(made.allocate(scaled(each)));
    for (std::size_t i = 0; i < live.size(); i += 2) made.free(live[i]);
    for (std::size_t i = 1; i < live.size(); i += 2) {
      if (i == 23) tables = {made.allocate(scaled(1280)), made.allocate(scaled(512))};
      made.free(live[i]);
    }
  }
  return made.written();
}

struct repeated {
  placement_policy policy;
  double scale;
  std::uint64_t moves;  // until it rests
  friend void PrintTo(const repeated& program, std::ostream* out) {
    *out << "policy " << static_cast<int>(program.policy) << ", sizes times " << program.scale;
  }
};

class repeating : public ::testing::TestWithParam<repeated> {};

TEST_P(repeating, a_program_with_holes_like_a_comb_comes_to_rest) {
  const auto play = [&](std::size_t rounds) {
    replay_settings settings;
    settings.heap.policy = GetParam().policy;
    return replay(combs(rounds, GetParam().scale), settings);
  };
  const replay_outcome first = play(3);
  const replay_outcome some = play(40);
  const replay_outcome many = play(60);
  EXPECT_GT(first.stats.handles_moved, 20u);  // it would go on like that
  EXPECT_EQ(many.stats.handles_moved, some.stats.handles_moved);
  // More where handles that lie in their planned places are moved before others.
  EXPECT_LE(many.stats.handles_moved, GetParam().moves);
  EXPECT_EQ(many.stats.handles_created, some.stats.handles_created);
  EXPECT_EQ(many.reserved_peak, some.reserved_peak);
  EXPECT_LE(static_cast<double>(many.reserved_peak),
            1.02 * static_cast<double>(first.reserved_peak));
}

INSTANTIATE_TEST_SUITE_P(Programs, repeating,
                         ::testing::Values(repeated{placement_policy::balanced, 1, 1121},
                                           repeated{placement_policy::balanced, 0.7, 339},
                                           repeated{placement_policy::balanced, 1.25, 521},
                                           repeated{placement_policy::compact, 1, 833},
                                           repeated{placement_policy::compact, 0.85, 1188}));

/// Rounds in which sizes differ are no rounds: nothing is planned, and all is as if there were no
/// plans at all.
TEST(repeating, a_program_that_never_repeats_holds_little_more_than_is_live) {
  writer made;
  std::vector<std::uint32_t> live;
  for (std::uint64_t i = 0; i < 600; ++i) {
    if (live.size() == 24) {
      for (std::size_t j = 0; j < 24; j += 2) made.free(live[j]);
      for (std::size_t j = 1; j < 24; j += 2) made.free(live[j]);
      live.clear();
    }
    live.push_back(made.allocate((3 + i * i % 61) * mib + i * 4096));
  }
  const replay_outcome outcome = replay(made.written(), {});
  EXPECT_LE(outcome.ratio(), 1.05);
}

}  // namespace
}  // namespace weir::testing_support
