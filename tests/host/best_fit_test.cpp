// SPDX-License-Identifier: Apache-2.0
// best_fit: splitting, joining, alignment, and segments that come and go.
#include "host/best_fit.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace weir::host_test { namespace {

using host::best_fit;
using host::block;
using host::block_state;
using host::pinned_memory;
using host::segment;

/// A place that nobody reads or writes.
pinned_memory memory_at(std::uint64_t address, std::uint64_t size) {
  return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)), size,
          host::memory_origin::registered};
}

TEST(BestFit, blocks_are_cut_from_the_low_end_and_joined_again) {
  best_fit fit;
  const segment& home = fit.add(memory_at(0x10000, 4096));
  block* const a = fit.take(64, 64);
  block* const b = fit.take(128, 64);
  block* const c = fit.take(256, 64);
  EXPECT_EQ(a->address, 0x10000u);
  EXPECT_EQ(b->address, 0x10040u);
  EXPECT_EQ(c->address, 0x100c0u);
  EXPECT_EQ(fit.free_bytes(), 4096u - 448);
  EXPECT_EQ(fit.check(), "");
  fit.give(*a);
  fit.give(*c);
  EXPECT_EQ(fit.check(), "");
  EXPECT_FALSE(home.is_idle());
  fit.give(*b);
  EXPECT_EQ(fit.check(), "");
  EXPECT_TRUE(home.is_idle());
  EXPECT_EQ(fit.largest_free(), 4096u);
}

TEST(BestFit, the_smallest_hole_that_fits_is_taken) {
  best_fit fit;
  fit.add(memory_at(0x10000, 4096));
  block* const wide = fit.take(512, 64);
  block* const wall = fit.take(64, 64);
  block* const narrow = fit.take(128, 64);
  block* const end = fit.take(64, 64);
  const std::uint64_t wide_at = wide->address;
  const std::uint64_t narrow_at = narrow->address;
  fit.give(*wide);
  fit.give(*narrow);
  EXPECT_EQ(fit.take(128, 64)->address, narrow_at);
  EXPECT_EQ(fit.take(192, 64)->address, wide_at);
  EXPECT_EQ(fit.check(), "");
  EXPECT_EQ(wall->state, block_state::live);
  EXPECT_EQ(end->state, block_state::live);
}

TEST(BestFit, no_block_spans_two_segments_that_adjoin) {
  best_fit fit;
  fit.add(memory_at(0x10000, 4096));
  fit.add(memory_at(0x11000, 4096));
  EXPECT_EQ(fit.take(4160, 64), nullptr);
  EXPECT_TRUE(fit.fits(4096, 64));
  block* const one = fit.take(4096, 64);
  block* const two = fit.take(4096, 64);
  fit.give(*one);
  fit.give(*two);
  EXPECT_EQ(fit.largest_free(), 4096u);
  EXPECT_EQ(fit.check(), "");
}

TEST(BestFit, alignment_leaves_the_memory_before_it_free) {
  best_fit fit;
  fit.add(memory_at(0x10000, 1 << 16));
  block* const first = fit.take(64, 64);
  block* const aligned = fit.take(64, 4096);
  EXPECT_EQ(aligned->address, 0x11000u);
  EXPECT_EQ(fit.take(64, 64)->address, 0x10040u);
  EXPECT_EQ(fit.check(), "");
  fit.give(*aligned);
  EXPECT_EQ(fit.check(), "");
  EXPECT_EQ(first->state, block_state::live);
  EXPECT_EQ(fit.take(1 << 16, 4096), nullptr);
}

TEST(BestFit, a_segment_can_leave_and_serve_again) {
  best_fit fit;
  segment& home = fit.add(memory_at(0x10000, 4096));
  fit.set_serves(home, false);
  EXPECT_EQ(fit.free_bytes(), 0u);
  EXPECT_EQ(fit.take(64, 64), nullptr);
  EXPECT_EQ(fit.check(), "");
  EXPECT_EQ(fit.block_at(0x10000), nullptr);
  fit.set_serves(home, true);
  EXPECT_EQ(fit.free_bytes(), 4096u);
  EXPECT_NE(fit.block_at(0x10fff), nullptr);
  fit.set_serves(home, false);
  fit.remove(home);
  EXPECT_TRUE(fit.segments().empty());
  EXPECT_EQ(fit.check(), "");
}

TEST(BestFit, a_segment_that_holds_a_block_can_stop_serving) {
  best_fit fit;
  segment& home = fit.add(memory_at(0x10000, 4096));
  block* const below = fit.take(64, 64);
  block* const live = fit.take(64, 64);
  fit.give(*below);
  fit.set_serves(home, false);
  EXPECT_EQ(fit.free_bytes(), 0u);
  EXPECT_EQ(fit.take(64, 64), nullptr);
  EXPECT_EQ(fit.check(), "");
  fit.set_serves(home, true);
  EXPECT_EQ(fit.free_bytes(), 4032u);
  EXPECT_EQ(fit.check(), "");
  fit.set_serves(home, false);
  fit.give(*live);
  EXPECT_TRUE(home.is_idle());
  fit.remove(home);
  EXPECT_EQ(fit.check(), "");
}

TEST(BestFit, a_segment_of_one_block_serves_nobody_else) {
  best_fit fit;
  block& live = fit.add_live(memory_at(0x10040, 16384), 100 * 64, 4096);
  EXPECT_EQ(live.address % 4096, 0u);
  EXPECT_EQ(live.size, 6400u);
  EXPECT_EQ(fit.free_bytes(), 0u);
  EXPECT_EQ(fit.take(64, 64), nullptr);
  EXPECT_EQ(fit.check(), "");
  segment& home = *live.home;
  fit.give(live);
  EXPECT_TRUE(home.is_idle());
  EXPECT_EQ(fit.check(), "");
  fit.remove(home);
  EXPECT_TRUE(fit.segments().empty());
}

TEST(BestFit, blocks_are_found_by_any_address_inside) {
  best_fit fit;
  fit.add(memory_at(0x10000, 4096));
  const block* const a = fit.take(64, 64);
  const block* const b = fit.take(640, 64);
  EXPECT_EQ(fit.block_at(0x1003f), a);
  EXPECT_EQ(fit.block_at(0x10040), b);
  EXPECT_EQ(fit.block_at(0x11000), nullptr);
  EXPECT_EQ(fit.block_at(0xffff), nullptr);
}

TEST(BestFit, random_requests_keep_every_invariant_and_waste_nothing) {
  best_fit fit;
  for (std::uint64_t i = 0; i < 4; ++i) fit.add(memory_at(0x100000 * (i + 1), 1 << 18));
  std::mt19937 random{3};
  std::vector<block*> live;
  std::uint64_t used = 0;
  for (int step = 0; step < 4000; ++step) {
    if (live.empty() || random() % 5 < 3) {
      const std::uint64_t size = 64 * (1 + random() % 200);
      const std::uint64_t alignment = std::uint64_t{64} << random() % 7;
      block* const taken = fit.take(size, alignment);
      if (taken == nullptr) continue;
      ASSERT_EQ(taken->size, size) << "not a byte more";
      ASSERT_EQ(taken->address % alignment, 0u);
      used += size;
      live.push_back(taken);
    } else {
      const std::size_t at = random() % live.size();
      used -= live[at]->size;
      fit.give(*live[at]);
      live[at] = live.back();
      live.pop_back();
    }
    ASSERT_EQ(fit.free_bytes(), (4 << 18) - used);
    if (step % 50 == 0) {
      ASSERT_EQ(fit.check(), "");
    }
  }
  for (block* const each : live) fit.give(*each);
  for (const auto& each : fit.segments()) EXPECT_TRUE(each->is_idle());
  EXPECT_EQ(fit.check(), "");
}

}  // namespace
}  // namespace weir::host_test
