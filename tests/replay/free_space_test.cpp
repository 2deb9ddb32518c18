// SPDX-License-Identifier: Apache-2.0
// Where free bytes are: every byte counted once, and under the right name.
#include "replay/free_space.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "replay/profile.hpp"
#include "replay/replay.hpp"
#include "replay/traces.hpp"
#include "support/sizes.hpp"

namespace weir::replay { namespace {

using testing_support::kib;
using testing_support::mib;

/// Blocks and handles of a pool, each behind the one before.
class snapshot_maker {
 public:
  explicit snapshot_maker(std::uint32_t pool = 0) { made_.id = pool_id{pool}; }

  snapshot_maker& block(block_state state, std::uint64_t size, std::uint64_t requested = 0) {
    made_.blocks.push_back({.address = next_block_,
                            .size = bytes{size},
                            .requested = bytes{requested},
                            .state = state});
    next_block_ += size;
    return *this;
  }
  snapshot_maker& live(std::uint64_t size) { return block(block_state::live, size, size); }
  snapshot_maker& handle(std::uint64_t size) {
    made_.physical.push_back({next_handle_, bytes{size}});
    next_handle_ += size;
    return *this;
  }
  /// Addresses without memory.
  snapshot_maker& no_handle(std::uint64_t size) {
    next_handle_ += size;
    return *this;
  }
  [[nodiscard]] const pool_snapshot& pool() const { return made_; }
  [[nodiscard]] free_space survey(const std::unordered_set<device_address>& long_lived = {}) const {
    allocator_snapshot whole;
    whole.pools.push_back(made_);
    return replay::survey(whole, long_lived);
  }

 private:
  pool_snapshot made_;
  device_address next_block_ = 0;
  device_address next_handle_ = 0;
};

std::uint64_t sum(const free_space& space) {
  std::uint64_t total = space.requested.bytes + space.rounding.bytes + space.thread_caches.bytes +
                        space.unfinished_uses.bytes + space.private_pools.bytes +
                        space.headroom.bytes;
  for (const space_tally& each : space.pinned) total += each.bytes;
  return total;
}

TEST(free_space, counts_what_is_taken) {
  const free_space found = snapshot_maker{}
                               .handle(2 * mib)
                               .block(block_state::live, 512 * kib, 512 * kib - 100)
                               .live(512 * kib)
                               .block(block_state::thread_cached, 256 * kib)
                               .block(block_state::thread_cached, 128 * kib)
                               .block(block_state::pending, 640 * kib)
                               .survey();
  EXPECT_EQ((space_tally{2 * mib, 1}), found.reserved);
  EXPECT_EQ((space_tally{mib - 100, 2}), found.requested);
  EXPECT_EQ((space_tally{100, 1}), found.rounding);
  EXPECT_EQ((space_tally{384 * kib, 2}), found.thread_caches);
  EXPECT_EQ((space_tally{640 * kib, 1}), found.unfinished_uses);
  EXPECT_EQ(found.reserved.bytes, sum(found));
}

TEST(free_space, tells_handles_that_can_move_from_pinned_ones) {
  // One run over half a handle, a whole one and a quarter of one of 4 MiB.
  const free_space found = snapshot_maker{}
                               .handle(2 * mib)
                               .handle(2 * mib)
                               .handle(4 * mib)
                               .live(mib)
                               .block(block_state::stream_bound, 4 * mib)
                               .live(3 * mib)
                               .survey();
  EXPECT_EQ((space_tally{8 * mib, 3}), found.reserved);
  EXPECT_EQ((space_tally{2 * mib, 1}), found.headroom);
  EXPECT_EQ((space_tally{mib, 1}), found.of(pin::small));
  EXPECT_EQ((space_tally{mib, 1}), found.of(pin::large));
  EXPECT_EQ((space_tally{4 * mib, 1}), found.stream_bound);
  EXPECT_EQ((space_tally{2 * mib, 2}), found.slivers[3]);  // what is left without the whole handle
  EXPECT_EQ(found.reserved.bytes, sum(found));
}

TEST(free_space, takes_a_piece_over_two_pinned_handles_for_one) {
  const free_space found = snapshot_maker{}
                               .handle(2 * mib)
                               .handle(2 * mib)
                               .live(mib)
                               .block(block_state::free, 2 * mib)
                               .live(mib)
                               .survey();
  EXPECT_EQ((space_tally{2 * mib, 2}), found.of(pin::small));
  EXPECT_EQ((space_tally{2 * mib, 1}), found.slivers[4]);
  EXPECT_EQ(space_tally{}, found.stream_bound);
}

TEST(free_space, names_the_pin_that_stays_longest) {
  const auto pinned_by = [](block_state one, std::uint64_t first, block_state other,
                            std::uint64_t second, bool is_long_lived = false) {
    const free_space found = snapshot_maker{}
                                 .handle(8 * mib)
                                 .block(one, first, first)
                                 .block(block_state::free, 8 * mib - first - second)
                                 .block(other, second, second)
                                 .survey(is_long_lived ? std::unordered_set<device_address>{0}
                                                       : std::unordered_set<device_address>{});
    std::vector<pin> pins;
    for (std::size_t i = 0; i < pin_count; ++i)
      if (found.pinned[i].bytes != 0) pins.push_back(static_cast<pin>(i));
    EXPECT_EQ(1u, pins.size());
    return pins.at(0);
  };
  using enum block_state;
  EXPECT_EQ(pin::long_lived, pinned_by(live, 2 * mib, live, mib, true));
  EXPECT_EQ(pin::small, pinned_by(live, 2 * mib, live, mib));
  EXPECT_EQ(pin::large, pinned_by(live, 2 * mib, live, mib + 512));
  EXPECT_EQ(pin::small, pinned_by(thread_cached, mib, live, 512));
  EXPECT_EQ(pin::thread_cache, pinned_by(pending, mib, thread_cached, 512));
  EXPECT_EQ(pin::unfinished_use, pinned_by(free, mib, pending, 512));
}

TEST(free_space, sorts_slivers_by_their_length) {
  snapshot_maker maker;
  const std::uint64_t lengths[] = {512,       4 * kib, 4 * kib + 512, 64 * kib,     256 * kib,
                                   mib - 512, mib,     2 * mib,       2 * mib + 512};
  for (const std::uint64_t each : lengths)
    maker.handle(each + 512).block(block_state::free, each).live(512);
  const free_space found = maker.survey();
  EXPECT_EQ((space_tally{4 * kib + 512, 2}), found.slivers[0]);
  EXPECT_EQ((space_tally{68 * kib + 512, 2}), found.slivers[1]);
  EXPECT_EQ((space_tally{256 * kib, 1}), found.slivers[2]);
  EXPECT_EQ((space_tally{2 * mib - 512, 2}), found.slivers[3]);
  EXPECT_EQ((space_tally{2 * mib, 1}), found.slivers[4]);
  EXPECT_EQ((space_tally{2 * mib + 512, 1}), found.slivers[5]);
}

TEST(free_space, of_addresses_without_memory_is_none) {
  const free_space found = snapshot_maker{}
                               .handle(2 * mib)
                               .no_handle(2 * mib)
                               .handle(2 * mib)
                               .live(2 * mib)
                               .block(block_state::hole, 2 * mib)
                               .block(block_state::free, 2 * mib)
                               .survey();
  EXPECT_EQ((space_tally{4 * mib, 2}), found.reserved);
  EXPECT_EQ((space_tally{2 * mib, 1}), found.headroom);
  EXPECT_EQ(4 * mib, sum(found));
}

TEST(free_space, of_private_pools_is_their_own) {
  allocator_snapshot whole;
  whole.pools.push_back(
      snapshot_maker{}.handle(2 * mib).live(mib).block(block_state::free, mib).pool());
  whole.pools.push_back(snapshot_maker{3}
                            .handle(2 * mib)
                            .handle(2 * mib)
                            .live(512 * kib)
                            .block(block_state::free, 512 * kib)
                            .block(block_state::pending, mib)
                            .block(block_state::stream_bound, 2 * mib)
                            .pool());
  const free_space found = survey(whole, {});
  EXPECT_EQ((space_tally{6 * mib, 3}), found.reserved);
  EXPECT_EQ((space_tally{2 * mib + 512 * kib, 2}), found.private_pools);
  EXPECT_EQ((space_tally{mib, 1}), found.unfinished_uses);
  EXPECT_EQ((space_tally{mib, 1}), found.of(pin::small));
  EXPECT_EQ((space_tally{mib, 1}), found.slivers[3]);
  EXPECT_EQ(space_tally{}, found.headroom);
  EXPECT_EQ((space_tally{2 * mib, 1}), found.stream_bound);
  EXPECT_EQ(6 * mib, sum(found));
}

TEST(free_space, long_lived_are_blocks_of_half_the_recording) {
  // Eight steps: block 0 lives through five of them, block 1 through three; 2 is never freed, and
  // came in time; 3 came too late.
  const script script = make_script(recording_of({
      allocate(0, 1, 512),
      allocate(1, 2, 512),
      allocate(2, 3, 512),
      event_at(3, trace_kind::record_stream, 2),
      event_at(4, trace_kind::deallocate, 2),
      event_at(5, trace_kind::deallocate, 1),
      allocate(6, 4, 512),
      allocate(7, 5, 512),
  }));
  ASSERT_EQ(8u, script.steps.size());
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
  const auto found = long_lived_blocks(script, {at(10), at(20), at(30), at(40), nullptr});
  EXPECT_EQ((std::unordered_set<device_address>{10, 30}), found);
  EXPECT_EQ((std::unordered_set<device_address>{30}),
            long_lived_blocks(script, {nullptr, nullptr, at(30), at(40), nullptr}));
}

TEST(free_space, has_names_for_everything) {
  EXPECT_EQ("long_lived", name(pin::long_lived));
  EXPECT_EQ("small", name(pin::small));
  EXPECT_EQ("large", name(pin::large));
  EXPECT_EQ("thread_cache", name(pin::thread_cache));
  EXPECT_EQ("unfinished_use", name(pin::unfinished_use));
  EXPECT_EQ("to_4_kib", sliver_name(0));
  EXPECT_EQ("to_64_kib", sliver_name(1));
  EXPECT_EQ("to_256_kib", sliver_name(2));
  EXPECT_EQ("to_1_mib", sliver_name(3));
  EXPECT_EQ("to_2_mib", sliver_name(4));
  EXPECT_EQ("longer", sliver_name(5));
}

// --- Of replays ----------------------------------------------------------------------------------

free_space peak_of(const script& script, replay::policy policy) {
  const auto played = play_profiled(script, {.policy = policy});
  EXPECT_TRUE(played) << played.error().message();
  EXPECT_TRUE(played && played->profile && played->profile->at_peak);
  if (!played || !played->profile || !played->profile->at_peak) return {};
  const free_space& found = *played->profile->at_peak;
  EXPECT_EQ(found.reserved.bytes, sum(found));
  EXPECT_EQ(played->reserved_peak, found.reserved.bytes);
  EXPECT_EQ(played->peak_steps, found.steps);
  return found;
}

/// Three blocks of 3 MiB, then 1000 bytes. The second goes, and 2 MiB get its place.
script small_script() {
  return make_script(recording_of({
      allocate(0, 1, 3 * mib),
      allocate(1 * millisecond, 2, 3 * mib),
      allocate(2 * millisecond, 3, 3 * mib),
      allocate(3 * millisecond, 4, 1000),
      event_at(4 * millisecond, trace_kind::deallocate, 2),
      allocate(5 * millisecond, 5, 2 * mib),
      allocate(6 * millisecond, 6, 40 * mib),
      event_at(7 * millisecond, trace_kind::deallocate, 6),
      event_at(8 * millisecond, trace_kind::deallocate, 1),
  }));
}

TEST(free_space, of_a_small_trace) {
  const free_space found = peak_of(small_script(), policy::balanced);
  EXPECT_EQ(7u, found.steps);
  EXPECT_EQ(6 * millisecond, found.time);
  EXPECT_EQ((space_tally{50 * mib, 25}), found.reserved);
  EXPECT_EQ((space_tally{48 * mib + 1000, 5}), found.requested);
  EXPECT_EQ((space_tally{24, 1}), found.rounding);
  EXPECT_EQ(space_tally{}, found.thread_caches);
  EXPECT_EQ(space_tally{}, found.unfinished_uses);
  EXPECT_EQ(space_tally{}, found.private_pools);
  EXPECT_EQ(space_tally{}, found.headroom);
  // 1 MiB between the blocks of 2 and 3 MiB, and the end of the last slot behind the 40 MiB.
  EXPECT_EQ((space_tally{2 * mib - 1024, 2}), found.of(pin::large));
  EXPECT_EQ((space_tally{2 * mib - 1024, 2}), found.slivers[3]);
  EXPECT_EQ((space_tally{mib, 1}), found.stream_bound);
}

TEST(free_space, of_a_small_trace_in_segments) {
  // 20 MiB for the blocks of 3 MiB, which live long; 2 MiB for the small block; and 40 MiB. PyTorch
  // does not split 1 MiB off.
  const free_space found = peak_of(small_script(), policy::torch_default);
  EXPECT_EQ((space_tally{62 * mib, 3}), found.reserved);
  EXPECT_EQ((space_tally{48 * mib + 1000, 5}), found.requested);
  EXPECT_EQ((space_tally{mib + 24, 2}), found.rounding);
  EXPECT_EQ((space_tally{13 * mib - 1024, 2}), found.of(pin::long_lived));
  EXPECT_EQ((space_tally{2 * mib - 1024, 1}), found.slivers[4]);
  EXPECT_EQ((space_tally{11 * mib, 1}), found.slivers[5]);
  EXPECT_EQ((space_tally{13 * mib - 1024, 2}), found.stream_bound);
}

TEST(free_space, adds_up_for_recorded_programs) {
  for (const policy policy : {policy::balanced, policy::torch_default, policy::torch_expandable}) {
    const script script = make_script(recorded("multistream_prefetch"));
    const free_space found = peak_of(script, policy);
    EXPECT_EQ(std::accumulate(
                  found.pinned.begin(), found.pinned.end(), std::uint64_t{},
                  [](std::uint64_t total, const space_tally& each) { return total + each.bytes; }),
              std::accumulate(
                  found.slivers.begin(), found.slivers.end(), std::uint64_t{},
                  [](std::uint64_t total, const space_tally& each) { return total + each.bytes; }));
    EXPECT_LE(found.requested.bytes, script.requested_peak);
  }
}

TEST(free_space, is_unknown_of_the_drivers_pool) {
  const script script = make_script(recording_of({allocate(0, 1, 4 * mib)}));
  const outcome played = play_profiled(script, {.policy = policy::driver_pool}).value();
  EXPECT_EQ(0u, played.peak_steps);
  EXPECT_FALSE(played.profile->at_peak);
}

TEST(free_space, is_surveyed_without_a_profile_where_that_is_asked_for) {
  const script script = make_script(recording_of({
      allocate(0, 1, 4 * mib),
      allocate(10, 2, 4 * mib),
      event_at(20, trace_kind::deallocate, 1),
  }));
  const outcome played = play(script, {.surveyed_steps = 1}).value();
  ASSERT_TRUE(played.surveyed);
  EXPECT_EQ((space_tally{4 * mib, 1}), played.surveyed->requested);
  EXPECT_EQ(1u, played.surveyed->steps);
  EXPECT_EQ(0u, played.stats.frees);
  EXPECT_EQ(1u, played.stats.allocations);
  EXPECT_EQ(0u, played.peak_steps);
  EXPECT_FALSE(play(script, {}).value().surveyed);
  EXPECT_EQ(2u, play(script, {.surveyed_steps = 99}).value().surveyed->requested.count + 1);
}

}  // namespace
}  // namespace weir::replay
