// The torch plug-in's own parts: rings, tallies, page owners, and pictures of an allocator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "torch/page_owners.hpp"
#include "torch/pictures.hpp"
#include "torch/ring.hpp"
#include "torch/tally.hpp"
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
  last.set_most(3);
  for (int i = 1; i <= 5; ++i) last.add(i);
  EXPECT_THAT(last.all(), ElementsAre(3, 4, 5));
}

TEST(ring, keeps_its_newest_when_it_becomes_smaller_and_goes_on_when_larger) {
  ring<int> last;
  last.set_most(4);
  for (int i = 1; i <= 6; ++i) last.add(i);
  last.set_most(2);
  EXPECT_THAT(last.all(), ElementsAre(5, 6));
  last.set_most(3);
  last.add(7);
  last.add(8);
  EXPECT_THAT(last.all(), ElementsAre(6, 7, 8));
  last.clear();
  EXPECT_THAT(last.all(), IsEmpty());
}

TEST(ring, has_room_for_one_entry_at_least) {
  ring<int> last;
  last.set_most(0);
  last.add(1);
  last.add(2);
  EXPECT_THAT(last.all(), ElementsAre(2));
}

TEST(tally, adds_up_threads_also_those_that_ended) {
  static tally& counted = *new tally;  // as it is used: never destroyed
  counted.add(1, 100);
  std::thread{[&] {
    counted.add(1, 1000);
    counted.add(2, 5);
  }}.join();
  std::thread{[&] { counted.add(1, 512); }}.join();
  EXPECT_EQ(counted.read(1).asked, 1612U);
  EXPECT_EQ(counted.read(1).rounded, 512U + 1024U + 512U);
  EXPECT_EQ(counted.read(2).asked, 5U);
  EXPECT_EQ(counted.read(0).asked, 0U);
}

TEST(page_owners, knows_the_device_noted_last) {
  page_owners owners;
  auto* const address = reinterpret_cast<void*>(0x7f00'0020'0000);
  EXPECT_EQ(owners.of(address), page_owners::none);
  owners.note(address, 3);
  EXPECT_EQ(owners.of(address), 3);
  EXPECT_EQ(owners.of(reinterpret_cast<void*>(0x7f00'003f'ffff)), 3);
  EXPECT_EQ(owners.of(reinterpret_cast<void*>(0x7f00'0040'0000)), page_owners::none);
  owners.note(address, 0);
  EXPECT_EQ(owners.of(address), 0);
  EXPECT_EQ(owners.of(reinterpret_cast<void*>(~std::uintptr_t{0})), page_owners::none);
}

class picture : public testing::Test {
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
    std::uint64_t size = 0, allocated = 0, active = 0, requested = 0, live = 0, waiting = 0;
  };
  totals add_up() const {
    totals out;
    for (const auto& pool : memory.snapshot().pools) {
      for (const segment_picture& segment : draw(pool)) {
        out.size += segment.size;
        out.allocated += segment.allocated;
        out.active += segment.active;
        out.requested += segment.requested;
        std::uint64_t at = segment.address;
        for (const block_picture& block : segment.blocks) {
          EXPECT_EQ(block.address, at);
          at += block.size;
          if (block.state == block_picture::kind::allocated) ++out.live;
          if (block.state == block_picture::kind::pending_free) ++out.waiting;
        }
        EXPECT_EQ(at, segment.address + segment.size);
      }
    }
    return out;
  }
  void expect_books_to_agree() const {
    const auto stats = memory.stats();
    const totals seen = add_up();
    EXPECT_EQ(seen.size, stats.reserved.current);
    EXPECT_EQ(seen.allocated, stats.allocated.current);
    EXPECT_EQ(seen.active, stats.active.current);
    EXPECT_EQ(seen.requested, stats.requested.current);
    EXPECT_EQ(seen.live, stats.blocks.current);
    EXPECT_EQ(seen.live + seen.waiting, stats.active_blocks.current);
  }
};

TEST_F(picture, of_an_allocator_agrees_with_its_counters) {
  std::vector<void*> blocks;
  for (std::uint64_t size : {100U, 3000U, 700'000U, 5'000'000U, 33'000'000U})
    for (int i = 0; i < 3; ++i) blocks.push_back(memory.allocate(weir::bytes{size}, first));
  expect_books_to_agree();
  for (std::size_t i = 0; i < blocks.size(); i += 2) memory.deallocate(blocks[i], first);
  expect_books_to_agree();
  auto pool = memory.create_pool("apart").value();
  void* const apart = pool.allocate(3_MiB, second);
  expect_books_to_agree();
  for (std::size_t i = 1; i < blocks.size(); i += 2) memory.deallocate(blocks[i], first);
  memory.deallocate(apart, second);
  expect_books_to_agree();
}

TEST_F(picture, shows_what_waits_for_a_recorded_stream) {
  void* const block = memory.allocate(3_MiB, first);
  const weir::context_scope bound{gpu};
  ASSERT_EQ(gpu.driver().memset_d8_async(reinterpret_cast<weir::device_address>(block), 1, 1 << 20,
                                         second.handle()),
            weir::driver::CUDA_SUCCESS);
  memory.record_stream(block, second).value();
  memory.deallocate(block, first);
  EXPECT_EQ(add_up().waiting, 1U);
  expect_books_to_agree();
  second.synchronize().value();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(add_up().waiting, 0U);
  expect_books_to_agree();
}

}  // namespace
}  // namespace weir_torch
