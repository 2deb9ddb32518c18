// SPDX-License-Identifier: Apache-2.0
// What a user prints: the exact text of each value, as to_string() and as a stream gives it.
#include "weir/base/print.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <type_traits>

#include "weir/base/error.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/options.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/observe/tag.hpp"
#include "weir/sim/machine.hpp"

// Types of others that have a to_string(), and types of weir as arguments: they are not weir's to
// print.
namespace weirs_neighbour {
struct value {};
std::string to_string(const value&) { return "a neighbour's"; }
template <class T>
struct box {};
template <class T>
std::string to_string(const box<T>&) {
  return "a box";
}
std::ostream& operator<<(std::ostream& out, const value& each) { return out << to_string(each); }
}  // namespace weirs_neighbour

static_assert(!weir::printable<weirs_neighbour::value>);
static_assert(!weir::printable<weirs_neighbour::box<weir::bytes>>);

namespace weir { namespace {

using namespace weir::literals;

template <class T>
std::string streamed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

static_assert(printable<bytes> && printable<errc> && printable<error> && printable<options>);
static_assert(printable<device_id> && printable<pool_id> && printable<tag> && printable<device>);
static_assert(printable<sim::hazard> && printable<byte_gauge> && printable<stream_id>);
static_assert(!printable<int> && !printable<std::string> && !printable<result<int>>);

TEST(print, sizes_and_ids) {
  EXPECT_EQ(streamed(1536_MiB), "1.5 GiB");
  EXPECT_EQ(to_string(device_id{3}), "3");
  EXPECT_EQ(streamed(stream_id{7}), "7");
  EXPECT_EQ(streamed(capture_id{8}), "8");
  EXPECT_EQ(streamed(pool_id{9}), "9");
}

TEST(print, leaves_the_types_of_others_alone) {
  EXPECT_EQ(streamed(weirs_neighbour::value{}), "a neighbour's");
  EXPECT_EQ(to_string(weirs_neighbour::box<bytes>{}), "a box");
}

#if defined(__cpp_lib_format)
// No formatter of weir for the types of others: theirs stays possible.
static_assert(!std::is_default_constructible_v<std::formatter<weirs_neighbour::value>>);
static_assert(!std::is_default_constructible_v<std::formatter<weirs_neighbour::box<bytes>>>);

TEST(print, formats) {
  EXPECT_EQ(std::format("{}", 1536_MiB), "1.5 GiB");
  EXPECT_EQ(std::format("{:>10}|{:<4}|", 1536_MiB, stream_id{7}), "   1.5 GiB|7   |");
  EXPECT_EQ(std::format("{}", error{errc::closed}), error{errc::closed}.message());
}
#endif

TEST(print, errors) {
  EXPECT_EQ(to_string(errc::moved_from), "moved_from");
  EXPECT_EQ(streamed(errc{1000}), "unknown");
  const error reason{{.code = errc::out_of_memory,
                      .native = 2,
                      .call = "cuMemCreate",
                      .requested = 64_MiB,
                      .detail = "a detail"}};
  EXPECT_EQ(to_string(reason),
            "out_of_memory: not enough memory for the request (cuMemCreate = 2, 64 MiB): a detail");
  EXPECT_EQ(streamed(reason), reason.message());
}

TEST(print, options) {
  EXPECT_EQ(streamed(runtime_choice::automatic), "auto");
  EXPECT_EQ(streamed(sim_progress::timed), "timed");
  EXPECT_EQ(streamed(placement_policy::never_move), "never_move");
  EXPECT_EQ(streamed(crossing_rule::declared_uses), "declared_uses");
  EXPECT_EQ(streamed(debug_checks::guard_pages), "guard_pages");
}

TEST(print, tags) {
  EXPECT_EQ(to_string(tag{}), "(no tag)");
  EXPECT_EQ(streamed(tag::named("print test").value()), "print test");
}

TEST(gauge, keeps_its_peak_until_that_is_reset) {
  gauge count;
  for (const std::uint64_t each : {2U, 5U, 3U}) count.set(each);
  EXPECT_EQ(count, (gauge{3, 5}));
  count.reset_peak();
  EXPECT_EQ(count, (gauge{3, 3}));
  count.set(4);
  EXPECT_EQ(count, (gauge{4, 4}));
}

TEST(print, gauges) {
  EXPECT_EQ(to_string(gauge{3, 5}), "3 (peak 5)");
  EXPECT_EQ(streamed(byte_gauge{4_KiB, 8_KiB}), "4 KiB (peak 8 KiB)");
}

TEST(print, memory_stats) {
  memory_stats stats;
  EXPECT_EQ(to_string(stats),
            "requested 0 B (peak 0 B), allocated 0 B (peak 0 B), active 0 B (peak 0 B), "
            "reserved 0 B (peak 0 B), blocks 0 (peak 0)\n"
            "active_requested 0 B (peak 0 B), active_blocks 0 (peak 0)\n"
            "cached 0 B, thread_cached 0 B, pending 0 B, stream_bound 0 B\n"
            "allocations 0, frees 0, hits 0, heap_hits 0, misses 0, failures 0\n"
            "handles_created 0, handles_moved 0, handles_returned 0, handles_released 0, "
            "waits 0, events 0, metadata 0 B\n"
            "suspended 0 B, backup 0 B (peak 0 B), reserved_and_suspended 0 B (peak 0 B)");
  stats.requested = {1000_B, 2_KiB};
  stats.allocated = {1_KiB, 2_KiB};
  stats.active = {1536_B, 2_KiB};
  stats.reserved = {2_MiB, 4_MiB};
  stats.blocks = {1, 2};
  stats.active_requested = {1500_B, 2_KiB};
  stats.active_blocks = {2, 2};
  stats.cached = 2_MiB - 1536_B;
  stats.thread_cached = 512_B;
  stats.pending = 256_B;
  stats.stream_bound = 1_KiB;
  stats.allocations = 10;
  stats.frees = 9;
  stats.hits = 6;
  stats.heap_hits = 3;
  stats.misses = 1;
  stats.failures = 11;
  stats.handles_created = 12;
  stats.handles_moved = 13;
  stats.handles_returned = 14;
  stats.handles_released = 15;
  stats.waits = 16;
  stats.events = 17;
  stats.metadata = 18_KiB;
  stats.suspended = 19_KiB;
  stats.backup = {20_KiB, 21_KiB};
  stats.reserved_and_suspended = {22_KiB, 23_KiB};
  EXPECT_EQ(to_string(stats),
            "requested 1000 B (peak 2 KiB), allocated 1 KiB (peak 2 KiB), "
            "active 1.5 KiB (peak 2 KiB), reserved 2 MiB (peak 4 MiB), blocks 1 (peak 2)\n"
            "active_requested 1.46 KiB (peak 2 KiB), active_blocks 2 (peak 2)\n"
            "cached 2 MiB, thread_cached 512 B, pending 256 B, stream_bound 1 KiB\n"
            "allocations 10, frees 9, hits 6, heap_hits 3, misses 1, failures 11\n"
            "handles_created 12, handles_moved 13, handles_returned 14, handles_released 15, "
            "waits 16, events 17, metadata 18 KiB\n"
            "suspended 19 KiB, backup 20 KiB (peak 21 KiB), "
            "reserved_and_suspended 22 KiB (peak 23 KiB)");
  EXPECT_EQ(streamed(stats), to_string(stats));
  memory_stats other = stats;
  EXPECT_EQ(other, stats);
  other.misses = 2;
  EXPECT_NE(other, stats);
}

TEST(print, memory_events) {
  EXPECT_EQ(streamed(memory_event_kind::record_stream), "record_stream");
  EXPECT_EQ(to_string(memory_event{.kind = memory_event_kind::allocate,
                                   .tag = 2,
                                   .device = device_id{1},
                                   .pool = pool_id{3},
                                   .stream = stream_id{7},
                                   .address = 0x7f0000000000,
                                   .size = 1000,
                                   .rounded = 1024}),
            "allocate 0x7f0000000000 size 1000 rounded 1024 stream 7 pool 3 tag 2 device 1");
  EXPECT_EQ(streamed(memory_event{.kind = memory_event_kind::move,
                                  .address = 0x2000,
                                  .other_address = 0x1000,
                                  .size = 4096}),
            "move 0x2000 from 0x1000 size 4096");
  EXPECT_EQ(streamed(memory_event{
                .kind = memory_event_kind::wait, .stream = stream_id{7}, .other = stream_id{8}}),
            "wait stream 7 for stream 8");
}

TEST(print, devices) {
  device_capabilities capabilities;
  EXPECT_EQ(to_string(capabilities),
            "compute 0.0, multiprocessors 0, copy_engines 0, l2_cache 0 B, granularity 0 B, "
            "recommended_granularity 0 B, pool_handle_types 0, host_numa_node -1");
  capabilities.compute_major = 9;
  capabilities.multiprocessors = 132;
  capabilities.copy_engines = 3;
  capabilities.l2_cache = 60_MiB;
  capabilities.granularity = 2_MiB;
  capabilities.recommended_granularity = 2_MiB;
  capabilities.pool_handle_types = 9;
  capabilities.host_numa_node = 0;
  capabilities.unified_addressing = true;
  capabilities.virtual_memory = true;
  capabilities.dma_buf = true;
  EXPECT_EQ(streamed(capabilities),
            "compute 9.0, multiprocessors 132, copy_engines 3, l2_cache 60 MiB, "
            "granularity 2 MiB, recommended_granularity 2 MiB, pool_handle_types 9, "
            "host_numa_node 0\nunified_addressing, virtual_memory, dma_buf");
  EXPECT_EQ(streamed(memory_info{12_GiB, 140_GiB}), "12 GiB of 140 GiB free");
  const auto machine = runtime::open_simulated(sim::machine::create().value()).value();
  EXPECT_EQ(streamed(machine->device(device_id{0}).value()),
            "device 0: weir simulated H200, 139.8 GiB");
}

TEST(print, runtimes) {
  runtime_description description;
  description.driver = "libcuda.so.1";
  description.driver_version = 12080;
  EXPECT_EQ(to_string(description), "libcuda.so.1, CUDA 12.8");
  description.missing_calls = {"cuMemCreate", "cuStreamGetId"};
  description.no_real_driver = error{{.code = errc::no_device}};
  EXPECT_EQ(streamed(description),
            "libcuda.so.1, CUDA 12.8; lacks cuMemCreate, cuStreamGetId; no real driver: no_device: "
            "the device does not exist");
}

TEST(print, captures_and_virtual_memory) {
  EXPECT_EQ(streamed(capture_status::implicit), "implicit");
  EXPECT_EQ(streamed(capture_info{.status = capture_status::active, .id = capture_id{5}}),
            "active 5");
  EXPECT_EQ(streamed(capture_info{}), "none");
  EXPECT_EQ(streamed(physical_properties{}), "none");
  EXPECT_EQ(streamed(physical_properties{.posix_descriptor = true, .rdma = true}),
            "posix_descriptor, rdma");
  EXPECT_EQ(streamed(access_rights::read_write), "read_write");
}

TEST(print, hazards) {
  EXPECT_EQ(to_string(sim::hazard_kind::freed_in_use), "freed_in_use");
  const sim::hazard race{.kind = sim::hazard_kind::race,
                         .first = {.label = "fill",
                                   .stream = stream_id{7},
                                   .order = 3,
                                   .extent = {0x1000, 64},
                                   .writes = true,
                                   .queued = sim::time_point{1500}},
                         .second = {.label = "host read", .order = 2, .extent = {0x1010, 16}},
                         .shared = {0x1010, 16}};
  EXPECT_EQ(to_string(race),
            "race: two unordered accesses: 16 bytes at 0x1010\n"
            "  first:  fill, operation 3 of stream 7, writes [0x1000, 0x1040), 64 bytes, queued at "
            "1.500 us\n"
            "  second: host read, operation 2 of the host, reads [0x1010, 0x1020), 16 bytes, "
            "queued at 0.000 us\n"
            "  no stream, event or host order puts the first before the second\n"
            "  remedy: let the host wait for stream 7, or for an event after the first");
  EXPECT_EQ(race.message(), to_string(race));
  EXPECT_EQ(to_string(sim::hazard_kind::out_of_bounds), "out_of_bounds");
  sim::block_life life{.extent = {0x1000, 1000},
                       .rounded = 1024,
                       .allocated_on = stream_id{7},
                       .allocated = sim::time_point{1'002'003},
                       .recorded = {stream_id{9}},
                       .allocated_step = 1};
  EXPECT_EQ(to_string(life),
            "0x1000, 1000 B, allocated on stream 7 at 1002.003 us, recorded for stream 9");
  life.freed_on = stream_id{8};
  life.freed = sim::time_point{2'000'000};
  life.freed_step = 2;
  EXPECT_EQ(to_string(life),
            "0x1000, 1000 B, allocated on stream 7 at 1002.003 us, recorded for stream 9, freed on "
            "stream 8 at 2000.000 us");
  EXPECT_EQ(to_string(sim::migration_counts{3, 2, 1}), "to_device 3, to_host 2, evicted 1");
}

}  // namespace
}  // namespace weir
