// SPDX-License-Identifier: Apache-2.0
// What a user may print of pools: names, statistics, configurations.
#include <sstream>

#include "pools/pool_fixture.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/contents.hpp"
#include "weir/pool/memory_kind.hpp"
#include "weir/pool/stream_pool.hpp"

namespace weir::testing_support { namespace {

template <class T>
[[nodiscard]] std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

TEST(pool_names, enumerations_print_as_they_are_spelled) {
  EXPECT_EQ(printed(contents::undefined), "undefined");
  EXPECT_EQ(printed(contents::zeroed), "zeroed");
  EXPECT_EQ(printed(static_cast<contents>(2)), "unknown");
  EXPECT_EQ(printed(memory_kind::device), "device");
  EXPECT_EQ(printed(memory_kind::managed), "managed");
  EXPECT_EQ(printed(memory_kind::pinned), "pinned");
  EXPECT_EQ(printed(static_cast<memory_kind>(3)), "unknown");
  EXPECT_EQ(printed(stream_pool_handles::none), "none");
  EXPECT_EQ(printed(stream_pool_handles::posix_descriptor), "posix_descriptor");
  EXPECT_EQ(printed(static_cast<stream_pool_handles>(2)), "unknown");
}

TEST(pool_names, attributes_have_the_drivers_numbers) {
  const std::vector<std::string> names{"",
                                       "reuse_follow_event_dependencies",
                                       "reuse_opportunistic",
                                       "reuse_internal_dependencies",
                                       "release_threshold",
                                       "reserved",
                                       "reserved_peak",
                                       "used",
                                       "used_peak",
                                       ""};
  for (std::size_t number = 0; number < names.size(); ++number)
    EXPECT_EQ(printed(static_cast<stream_pool_attribute>(number)), names[number]) << number;
  EXPECT_EQ(static_cast<int>(stream_pool_attribute::used_peak), 8);
}

TEST(pool_names, statistics_name_every_member) {
  block_pool_stats blocks;
  blocks.requested = {3_KiB, 5_KiB};
  blocks.allocated = {4_KiB, 6_KiB};
  blocks.reserved = {1_MiB, 2_MiB};
  blocks.blocks = {2, 3};
  blocks.cached = 1020_KiB;
  blocks.pending = 512_B;
  blocks.allocations = 9;
  blocks.frees = 7;
  blocks.hits = 5;
  blocks.misses = 4;
  blocks.failures = 1;
  blocks.waits = 6;
  blocks.events = 8;
  EXPECT_EQ(printed(blocks),
            "requested 3 KiB (peak 5 KiB), allocated 4 KiB (peak 6 KiB), "
            "reserved 1 MiB (peak 2 MiB), blocks 2 (peak 3), cached 1020 KiB, pending 512 B, "
            "allocations 9, frees 7, hits 5, misses 4, failures 1, waits 6, events 8");
  EXPECT_EQ(printed(buffer_pool_stats{.hits = 1,
                                      .misses = 2,
                                      .returns = 3,
                                      .cached = 4_KiB,
                                      .taken = 5_KiB,
                                      .taken_peak = 6_KiB}),
            "hits 1, misses 2, returns 3, cached 4 KiB, taken 5 KiB (peak 6 KiB)");
  EXPECT_EQ(printed(stream_pool_stats{.reserved = 64_MiB,
                                      .reserved_peak = 96_MiB,
                                      .used = 1_MiB,
                                      .used_peak = 2_MiB,
                                      .active_allocations = 3,
                                      .active_allocations_peak = 4,
                                      .active_bytes = 5_KiB}),
            "reserved 64 MiB (peak 96 MiB), used 1 MiB (peak 2 MiB), "
            "active_allocations 3 (peak 4), active_bytes 5 KiB");
}

TEST(pool_names, a_configuration_names_every_member) {
  EXPECT_EQ(printed(stream_pool_config{}),
            "initial 0 B, max unlimited, threshold unlimited, handles none, "
            "reuse_follow_event_dependencies on, reuse_opportunistic on, "
            "reuse_internal_dependencies on");
  EXPECT_EQ(printed(stream_pool_config{.initial = 1_MiB,
                                       .max = 1_GiB,
                                       .threshold = 64_MiB,
                                       .handles = stream_pool_handles::posix_descriptor,
                                       .reuse_opportunistic = false}),
            "initial 1 MiB, max 1 GiB, threshold 64 MiB, handles posix_descriptor, "
            "reuse_follow_event_dependencies on, reuse_opportunistic off, "
            "reuse_internal_dependencies on");
  EXPECT_EQ(printed(stream_pool_config{.reuse_follow_event_dependencies = false,
                                       .reuse_internal_dependencies = false}),
            "initial 0 B, max unlimited, threshold unlimited, handles none, "
            "reuse_follow_event_dependencies off, reuse_opportunistic on, "
            "reuse_internal_dependencies off");
}

}  // namespace
}  // namespace weir::testing_support
