// The torch plug-in's own parts: rings, counters, devices by page, snapshots in torch's terms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "torch/byte_counters.hpp"
#include "torch/device_by_page.hpp"
#include "torch/ring.hpp"
#include "torch/torch_snapshot.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir_torch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using namespace weir::literals;

TEST(ring, keeps_the_last_entries_oldest_first) {
  ring<int> last;
  last.set_capacity(3);
  for (int i = 1; i <= 5; ++i) last.add(i);
  EXPECT_THAT(last.all(), ElementsAre(3, 4, 5));
}

TEST(ring, keeps_its_newest_when_it_becomes_smaller_and_goes_on_when_larger) {
  ring<int> last;
  last.set_capacity(4);
  for (int i = 1; i <= 6; ++i) last.add(i);
  last.set_capacity(2);
  EXPECT_THAT(last.all(), ElementsAre(5, 6));
  last.set_capacity(3);
  last.add(7);
  last.add(8);
  EXPECT_THAT(last.all(), ElementsAre(6, 7, 8));
  last.clear();
  EXPECT_THAT(last.all(), IsEmpty());
}

TEST(ring, has_room_for_one_entry_at_least) {
  ring<int> last;
  last.set_capacity(0);
  last.add(1);
  last.add(2);
  EXPECT_THAT(last.all(), ElementsAre(2));
}

TEST(byte_counters, adds_up_threads_also_those_that_ended) {
  static byte_counters& counters = *new byte_counters;  // as it is used: never destroyed
  counters.add(1, 100);
  std::thread{[&] {
    counters.add(1, 1000);
    counters.add(2, 5);
  }}.join();
  std::thread{[&] { counters.add(1, 512); }}.join();
  EXPECT_EQ(counters.read(1).requested, 1612U);
  EXPECT_EQ(counters.read(1).rounded, 512U + 1024U + 512U);
  EXPECT_EQ(counters.read(2).requested, 5U);
  EXPECT_EQ(counters.read(0).requested, 0U);
}

TEST(device_by_page, finds_the_device_that_was_set_last) {
  device_by_page devices;
  auto* const address = reinterpret_cast<void*>(0x7f00'0020'0000);
  EXPECT_EQ(devices.find(address), device_by_page::none);
  devices.set(address, 3);
  EXPECT_EQ(devices.find(address), 3);
  EXPECT_EQ(devices.find(reinterpret_cast<void*>(0x7f00'003f'ffff)), 3);
  EXPECT_EQ(devices.find(reinterpret_cast<void*>(0x7f00'0040'0000)), device_by_page::none);
  devices.set(address, 0);
  EXPECT_EQ(devices.find(address), 0);
  EXPECT_EQ(devices.find(reinterpret_cast<void*>(~std::uintptr_t{0})), device_by_page::none);
}

class torch_snapshot : public testing::Test {
 protected:
  /// Queued work is done when somebody waits for it.
  static std::shared_ptr<weir::runtime> open() {
    weir::sim::machine_options settings;
    settings.devices.assign(1,
                            weir::sim::device_spec{.capacity = 2_GiB, .context_overhead = 64_MiB});
    settings.mode = weir::sim::progress::manual;
    return weir::runtime::open_simulated(weir::sim::machine::create(settings).value()).value();
  }

  std::shared_ptr<weir::runtime> machine = open();
  weir::device gpu = machine->device(weir::device_id{0}).value();
  weir::caching_allocator memory = weir::caching_allocator::create(gpu).value();
  weir::stream first = weir::stream::create(gpu).value();
  weir::stream second = weir::stream::create(gpu).value();

  struct totals {
    std::uint64_t size = 0, allocated = 0, active = 0, requested = 0, live = 0, pending = 0;
  };
  totals add_up() const {
    totals sums;
    for (const auto& pool : memory.snapshot().pools) {
      for (const snapshot_segment& segment : segments_of(pool)) {
        sums.size += segment.size;
        sums.allocated += segment.allocated;
        sums.active += segment.active;
        sums.requested += segment.requested;
        std::uint64_t end = segment.address;
        for (const snapshot_block& block : segment.blocks) {
          EXPECT_EQ(block.address, end);
          end += block.size;
          if (block.state == snapshot_block::kind::allocated) ++sums.live;
          if (block.state == snapshot_block::kind::pending_free) ++sums.pending;
        }
        EXPECT_EQ(end, segment.address + segment.size);
      }
    }
    return sums;
  }
  void expect_counters_to_agree() const {
    const auto stats = memory.stats();
    const totals sums = add_up();
    EXPECT_EQ(weir::bytes{sums.size}, stats.reserved.current);
    EXPECT_EQ(weir::bytes{sums.allocated}, stats.allocated.current);
    EXPECT_EQ(weir::bytes{sums.active}, stats.active.current);
    EXPECT_EQ(weir::bytes{sums.requested}, stats.requested.current);
    EXPECT_EQ(sums.live, stats.blocks.current);
    EXPECT_EQ(sums.live + sums.pending, stats.active_blocks.current);
  }
};

TEST_F(torch_snapshot, of_an_allocator_agrees_with_its_counters) {
  std::vector<void*> blocks;
  for (std::uint64_t size : {100U, 3000U, 700'000U, 5'000'000U, 33'000'000U})
    for (int i = 0; i < 3; ++i) blocks.push_back(memory.allocate(weir::bytes{size}, first));
  expect_counters_to_agree();
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(blocks[i], first);
  expect_counters_to_agree();
  auto pool = memory.create_pool("apart").value();
  void* const apart = pool.allocate(3_MiB, second);
  expect_counters_to_agree();
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(blocks[i], first);
  memory.deallocate(apart, second);
  expect_counters_to_agree();
}

TEST_F(torch_snapshot, shows_blocks_that_wait_for_a_recorded_stream) {
  void* const block = memory.allocate(3_MiB, first);
  const weir::context_scope bound{gpu};
  ASSERT_EQ(gpu.driver().memset_d8_async(reinterpret_cast<weir::device_address>(block), 1, 1 << 20,
                                         second.handle()),
            weir::driver::CUDA_SUCCESS);
  memory.record_stream(block, second).value();
  memory.deallocate(block, first);
  EXPECT_EQ(add_up().pending, 1U);
  expect_counters_to_agree();
  second.synchronize().value();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(add_up().pending, 0U);
  expect_counters_to_agree();
}

TEST_F(torch_snapshot, of_a_pool_in_segments_has_each_of_them) {
  const auto pool = memory.create_pool("segments", {.segments = true}).value();
  std::vector<void*> blocks;
  for (const weir::bytes size : {1_MiB, 1_MiB, 1_MiB, 4_MiB, 4_MiB, 30_MiB})
    blocks.push_back(pool.allocate(size, first));
  std::vector<std::uint64_t> sizes;
  std::vector<std::size_t> counts;
  for (const snapshot_segment& segment : segments_of(pool.snapshot())) {
    sizes.push_back(segment.size >> 20);
    counts.push_back(segment.blocks.size());
  }
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(2, 2, 20, 30));
  EXPECT_THAT(counts, testing::UnorderedElementsAre(2, 2, 3, 1));
  expect_counters_to_agree();
  for (void* const block : blocks) memory.deallocate(block, first);
  expect_counters_to_agree();
}

TEST(torch_segments, side_by_side_are_not_one) {
  weir::pool_snapshot pool;
  for (std::uint64_t address = 0; address < 4; ++address) {
    weir::block_info block;
    block.address = (address + 8) << 20;
    block.size = 1_MiB;
    block.state = weir::block_state::live;
    block.requested = 1_MiB;
    pool.blocks.push_back(block);
  }
  pool.physical = {{8 << 20, 2_MiB}, {10 << 20, 2_MiB}};
  ASSERT_EQ(segments_of(pool).size(), 1U) << "an arena's handles";
  pool.in_segments = true;
  const auto segments = segments_of(pool);
  ASSERT_EQ(segments.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(segments[i].address, (8 + 2 * i) << 20);
    EXPECT_EQ(segments[i].size, 2U << 20);
    EXPECT_EQ(segments[i].allocated, 2U << 20);
    EXPECT_EQ(segments[i].blocks.size(), 2U);
  }
}

}  // namespace
}  // namespace weir_torch
