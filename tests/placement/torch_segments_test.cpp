// SPDX-License-Identifier: Apache-2.0
// PyTorch's segments by themselves: what they cost, how they end, how large they get.
#include "placement/torch_segments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "placement/store_fixture.hpp"
#include "support/sizes.hpp"
#include "support/system_limit.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement { namespace {

using ::testing::ElementsAre;
using testing_support::gib;
using testing_support::mib;
using testing_support::tib;

/// A gigabyte of simulated device, and one stream that takes from the segments.
class torch_segments_test : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<backing_store> make(segment_rules rules) {
    return make_torch_segments(shared, pool_id{3}, std::move(rules), bound).value();
  }
  [[nodiscard]] request asks(std::uint64_t size) const {
    return {static_cast<std::uint32_t>(size / unit), 1, slot};
  }
  [[nodiscard]] std::uint64_t grows(backing_store& in, std::uint64_t size) {
    const block_index room = in.grow(asks(size), bound).value();
    EXPECT_NE(room, no_block);
    return blocks[room].address;
  }

  std::shared_ptr<sim::machine> machine = make_small_machine();
  std::shared_ptr<runtime> simulated = runtime::open_simulated(machine).value();
  device gpu = simulated->device(device_id{0}).value();
  context_scope bound{gpu};
  block_store blocks;
  order::stream_order known{gpu};
  kept_events told;
  placement_context shared{.device = gpu, .blocks = blocks, .order = known, .observer = &told};
  stream user = stream::create(gpu).value();
  stream_slot slot = known.slot_of(user, bound).value();
};

TEST_F(torch_segments_test, the_footprint_is_that_of_all_segments) {
  struct segment_record {
    std::uint64_t size;
    std::uint32_t rank;
    stream_slot stream;
    std::uint8_t holds;
    block_index first;
    vmm::physical memory;
    void* older;
    void* newer;
  };
  // Of the tree that they are in: three links and a colour.
  const std::size_t node =
      sizeof(std::pair<const std::uint64_t, segment_record>) + 4 * sizeof(void*);
  const auto segments = make({});
  EXPECT_EQ(segments->footprint(), sizeof(torch_segments));
  for (std::size_t count = 1; count <= 3; ++count) {
    static_cast<void>(grows(*segments, 20 * mib));
    EXPECT_EQ(segments->footprint(), sizeof(torch_segments) + count * node);
  }
  EXPECT_TRUE(segments->close(bound));
  EXPECT_EQ(segments->footprint(), sizeof(torch_segments));
}

TEST_F(torch_segments_test, nothing_fits_without_records_to_cut_it) {
  constexpr std::size_t chunk = 4096;  // records
  const auto few = [&] {
    const auto limit = testing_support::system_limit::further_addresses(chunk * sizeof(block) +
                                                                        chunk * sizeof(block) / 2);
    return std::make_unique<block_store>();
  }();
  placement_context with_few{.device = gpu, .blocks = *few, .order = known};
  const auto segments = make_torch_segments(with_few, pool_id{3}, {}, bound).value();
  segments->free(segments->grow(asks(20 * mib), bound).value(), known.now(slot));
  std::vector<block_index> others;
  while (few->prepare(1)) others.push_back(few->make());
  EXPECT_EQ(segments->fit(asks(20 * mib)), no_block);
  few->recycle(others[0]);
  EXPECT_EQ(segments->fit(asks(20 * mib)), no_block) << "there may be two cuts";
  few->recycle(others[1]);
  EXPECT_NE(segments->fit(asks(20 * mib)), no_block);
  EXPECT_TRUE(segments->close(bound));
}

/// What another thread does to the store while the lock is free.
class interrupted final : public unlocked_calls {
 public:
  void call_unlocked(call made, void* argument) noexcept override {
    if (before) before();
    made(argument);
    if (after) after();
  }
  std::function<void()> before, after;
};

TEST_F(torch_segments_test, memory_that_the_driver_hands_out_again_at_once_is_a_new_segment) {
  interrupted others;
  shared.unlocked = &others;
  const auto segments = make({});
  const std::uint64_t address = grows(*segments, 31 * mib);
  segments->free(segments->block_over(address), known.now(slot));
  EXPECT_TRUE(known.close(slot, bound));
  EXPECT_TRUE(known.poll(bound));
  told.all.clear();
  std::uint64_t again = 0;
  others.before = [&] {
    EXPECT_EQ(segments->reserved(), 32 * mib) << "the driver does not have it yet";
    EXPECT_EQ(segments->fit(asks(31 * mib)), no_block) << "it serves nobody";
    EXPECT_EQ(segments->release(bytes::max(), bound).value(), bytes{}) << "once is enough";
    EXPECT_EQ(segments->fragments(), 0u);
    EXPECT_EQ(segments->check(), "");
    pool_snapshot seen;
    segments->describe(seen);
    EXPECT_EQ(seen.physical.size(), 1u);
  };
  others.after = [&] {
    again = grows(*segments, 31 * mib);
    EXPECT_EQ(segments->reserved(), 64 * mib);
    EXPECT_EQ(segments->check(), "");
  };
  EXPECT_EQ(segments->release(bytes::max(), bound).value(), bytes{32 * mib});
  EXPECT_EQ(again, address) << "or the test shows nothing";
  EXPECT_EQ(segments->reserved(), 32 * mib);
  EXPECT_EQ(segments->handed_out(), 32 * mib) << "a tail of 1 MiB is not cut off";
  EXPECT_EQ(segments->check(), "");
  EXPECT_EQ(segments->block_over(address), segments->block_over(again));
  std::vector<memory_event_kind> kinds;
  for (const memory_event& each : told.all) kinds.push_back(each.kind);
  EXPECT_THAT(kinds, ElementsAre(memory_event_kind::release, memory_event_kind::reserve));
  others.before = others.after = {};
  EXPECT_TRUE(segments->close(bound));
  EXPECT_EQ(shared.reserved, 0u);
}

TEST_F(torch_segments_test, memory_that_the_driver_refuses_is_a_segment_again) {
  interrupted others;
  shared.unlocked = &others;
  const auto segments = make({});
  const std::uint64_t address = grows(*segments, 31 * mib);
  segments->free(segments->block_over(address), known.now(slot));
  EXPECT_TRUE(known.close(slot, bound));
  EXPECT_TRUE(known.poll(bound));
  told.all.clear();
  machine->fail(driver::call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(segments->release(bytes::max(), bound).code(), errc::driver_error);
  EXPECT_EQ(segments->reserved(), 32 * mib);
  EXPECT_EQ(segments->check(), "");
  std::vector<memory_event_kind> kinds;
  for (const memory_event& each : told.all) kinds.push_back(each.kind);
  EXPECT_THAT(kinds, ElementsAre(memory_event_kind::release, memory_event_kind::reserve));
  const block_index room = segments->fit(asks(31 * mib));
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, address);
  EXPECT_TRUE(segments->close(bound));
}

/// The end of a store, too: the driver waits for the device.
TEST_F(torch_segments_test, closing_lets_go_of_the_lock_for_plain_memory_alone) {
  interrupted others;
  shared.unlocked = &others;
  int unlocked = 0;
  others.before = [&] { ++unlocked; };
  for (const segment_rules& rules :
       {segment_rules{}, segment_rules{.mapped = true}, segment_rules{.expandable = true}}) {
    const auto segments = make(rules);
    static_cast<void>(grows(*segments, 31 * mib));
    static_cast<void>(grows(*segments, 33 * mib));
    unlocked = 0;
    EXPECT_TRUE(segments->close(bound));
    EXPECT_EQ(unlocked, rules.mapped || rules.expandable ? 0 : 2);
    EXPECT_EQ(shared.reserved, 0u);
    EXPECT_EQ(segments->check(), "");
  }
}

TEST_F(torch_segments_test, closing_tells_of_every_segment) {
  const bytes used = machine->used(device_id{0});
  const auto segments = make({});
  const std::uint64_t small = grows(*segments, 3 * unit);
  const std::uint64_t large = grows(*segments, 3 * mib);
  const std::uint64_t own = grows(*segments, 31 * mib);
  EXPECT_EQ(shared.handles_created, 3u);
  EXPECT_EQ(segments->handed_out(), 35 * mib + 3 * unit) << "a tail of 1 MiB is not cut off";
  EXPECT_EQ(shared.reserved, 54 * mib);
  told.all.clear();
  EXPECT_TRUE(segments->close(bound));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> released;
  for (const memory_event& each : told.all) {
    EXPECT_EQ(each.kind, memory_event_kind::release);
    EXPECT_EQ(each.pool, pool_id{3});
    EXPECT_EQ(each.stream, known.id(slot));
    released.emplace_back(each.address, each.size);
  }
  EXPECT_THAT(released,
              ::testing::UnorderedElementsAre(std::pair{small, 2 * mib}, std::pair{large, 20 * mib},
                                              std::pair{own, 32 * mib}));
  EXPECT_EQ(shared.handles_released, 3u);
  EXPECT_EQ(shared.reserved, 0u);
  EXPECT_EQ(segments->reserved(), 0u);
  EXPECT_EQ(segments->handed_out(), 0u);
  EXPECT_EQ(segments->check(), "");
  EXPECT_EQ(blocks.in_use(), 0u);
  EXPECT_EQ(machine->used(device_id{0}), used);
}

/// Where a driver places segments is its own affair: what goes must not depend on it.
TEST_F(torch_segments_test, the_newest_segment_is_released_first_wherever_it_lies) {
  struct at_addresses final : memory_source {
    result<void*> allocate(bytes /*size*/, const stream_ref& /*stream*/) override {
      return reinterpret_cast<void*>(order[next++] * 64 * mib);
    }
    result<void> deallocate(void* memory, bytes /*size*/) override {
      released.push_back(reinterpret_cast<std::uint64_t>(memory) / (64 * mib));
      return {};
    }
    std::vector<std::uint64_t> order;
    std::size_t next = 0;
    std::vector<std::uint64_t> released;
  };
  const std::vector<std::uint64_t> orders[] = {{1, 2, 3}, {3, 2, 1}, {2, 3, 1}};
  for (const std::vector<std::uint64_t>& order : orders) {
    SCOPED_TRACE(::testing::PrintToString(order));
    const auto source = std::make_shared<at_addresses>();
    source->order = order;
    const auto segments = make({.source = source});
    std::vector<block_index> rooms;
    for (const std::uint64_t size : {10 * mib, 12 * mib, 14 * mib})
      rooms.push_back(segments->grow(asks(size), bound).value());
    for (const block_index each : rooms) segments->free(each, {});
    EXPECT_EQ(segments->release(bytes{1}, bound).value(), bytes{14 * mib});
    EXPECT_EQ(segments->check(), "");
    EXPECT_EQ(segments->release(bytes{13 * mib}, bound).value(), bytes{22 * mib});
    EXPECT_EQ(source->released, (std::vector<std::uint64_t>{order.rbegin(), order.rend()}));
    EXPECT_EQ(segments->check(), "");
    EXPECT_TRUE(segments->close(bound));
  }
}

TEST_F(torch_segments_test, what_was_not_closed_is_given_back_at_the_end) {
  const bytes used = machine->used(device_id{0});
  for (const bool expandable : {false, true}) {
    SCOPED_TRACE(expandable);
    auto segments = make({.expandable = expandable});
    static_cast<void>(grows(*segments, 3 * unit));
    static_cast<void>(grows(*segments, 20 * mib));
    EXPECT_EQ(shared.reserved, 22 * mib);
    segments.reset();
    EXPECT_EQ(shared.reserved, 0u);
    EXPECT_EQ(blocks.in_use(), 0u);
    EXPECT_EQ(machine->used(device_id{0}), used);
  }
}

/// A hole in the middle: what has memory is given back in two stretches.
TEST_F(torch_segments_test, closing_tells_of_the_stretches_of_an_expandable_one) {
  const bytes used = machine->used(device_id{0});
  const auto segments = make({.expandable = true});
  const block_index low = segments->grow(asks(40 * mib), bound).value();
  const block_index middle = segments->grow(asks(20 * mib), bound).value();
  const std::uint64_t base = blocks[low].address;
  ASSERT_EQ(blocks[middle].address, base + 40 * mib);
  ASSERT_EQ(grows(*segments, 30 * mib), base + 60 * mib);
  segments->free(middle, {});
  EXPECT_EQ(segments->release(bytes{20 * mib}, bound).value(), bytes{20 * mib});
  EXPECT_EQ(shared.handles_created, 5u);
  EXPECT_EQ(shared.handles_released, 1u);
  told.all.clear();
  EXPECT_TRUE(segments->close(bound));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> released;
  for (const memory_event& each : told.all) released.emplace_back(each.address, each.size);
  EXPECT_THAT(released,
              ElementsAre(std::pair{base, 40 * mib}, std::pair{base + 60 * mib, 40 * mib}));
  EXPECT_EQ(shared.handles_released, 5u) << "pages of 20 MiB";
  EXPECT_EQ(shared.reserved, 0u);
  EXPECT_EQ(segments->handed_out(), 0u);
  EXPECT_EQ(blocks.in_use(), 0u);
  EXPECT_EQ(machine->used(device_id{0}), used);
}

TEST_F(torch_segments_test, a_place_is_given_to_the_unit_where_all_of_it_is_free_for_the_stream) {
  const auto segments = make({});
  const block_index all = segments->grow(asks(12 * mib), bound).value();
  const std::uint64_t base = blocks[all].address;
  EXPECT_EQ(segments->fit_at(base + 12 * mib, asks(mib)).code(), errc::foreign_pointer);
  EXPECT_EQ(segments->fit_at(base, asks(mib)).code(), errc::not_ready) << "it is live";
  segments->free(all, {});
  EXPECT_EQ(segments->fit_at(base + 4 * mib, asks(8 * mib + unit)).code(), errc::not_ready);
  request of_another = asks(8 * mib);
  of_another.stream = slot + 1;
  EXPECT_EQ(segments->fit_at(base + 4 * mib, of_another).code(), errc::not_ready);
  const block_index high = segments->fit_at(base + 4 * mib, asks(8 * mib)).value();
  EXPECT_EQ(blocks[high].address, base + 4 * mib);
  EXPECT_EQ(blocks[high].size(), 8 * mib) << "up to the segment's end";
  const block_index low = segments->fit_at(base, asks(mib)).value();
  EXPECT_EQ(blocks[low].address, base);
  EXPECT_EQ(blocks[low].size(), mib);
  EXPECT_EQ(segments->bound_to(slot), 3 * mib);
  EXPECT_EQ(segments->check(), "");
  EXPECT_EQ(make({.expandable = true})->fit_at(base, asks(mib)).code(), errc::not_supported);
  EXPECT_TRUE(segments->close(bound));
}

TEST_F(torch_segments_test, an_expandable_one_gives_back_the_highest_pages_and_no_more_than_asked) {
  const auto segments = make({.expandable = true});
  const block_index all = segments->grow(asks(100 * mib), bound).value();
  const std::uint64_t base = blocks[all].address;
  segments->free(all, {});
  EXPECT_EQ(segments->release(bytes{}, bound).value(), bytes{});
  EXPECT_EQ(segments->release(bytes{1}, bound).value(), bytes{20 * mib}) << "a page";
  EXPECT_EQ(segments->release(bytes{20 * mib}, bound).value(), bytes{20 * mib});
  EXPECT_EQ(segments->release(bytes{20 * mib + 1}, bound).value(), bytes{40 * mib});
  EXPECT_EQ(segments->reserved(), 20 * mib);
  EXPECT_EQ(blocks[segments->fit(asks(20 * mib))].address, base) << "the lowest is left";
  EXPECT_EQ(segments->check(), "");
  EXPECT_TRUE(segments->close(bound));
}

TEST_F(torch_segments_test, a_block_without_a_length_is_noticed) {
  const auto segments = make({});
  const block_index live = segments->grow(asks(3 * unit), bound).value();
  EXPECT_EQ(segments->check(), "");
  blocks[live].units = 0;
  EXPECT_EQ(segments->check(), "block at " + std::to_string(blocks[live].address) + ": is empty");
  blocks[live].units = 3;
  EXPECT_EQ(segments->check(), "");
  EXPECT_TRUE(segments->close(bound));
}

/// Segments that are not split have no aligned places, whatever the size; a size that does not
/// count in 32 bits is no room before that.
TEST_F(torch_segments_test, the_largest_size_is_one_unit_below_two_tebibytes) {
  const auto whole = make({.splits = false});
  const auto most = static_cast<std::uint32_t>(most_units);
  const auto refused = whole->grow({.units = most - 1, .alignment = 2, .stream = slot}, bound);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::not_supported);
  EXPECT_EQ(refused.error().detail(),
            "a pool with one block per segment does not support alignments above 512 bytes");
  EXPECT_EQ(whole->grow({.units = most, .alignment = 2, .stream = slot}, bound).value(), no_block);
  EXPECT_EQ(whole->grow({.units = most, .alignment = 1, .stream = slot}, bound).value(), no_block);
  EXPECT_EQ(whole->reserved(), 0u);
  EXPECT_EQ(shared.handles_created, 0u);
}

/// A source of addresses that nobody touches.
class addresses_alone final : public memory_source {
 public:
  result<void*> allocate(bytes, const stream_ref&) override {
    return reinterpret_cast<void*>(next);
  }
  result<void> deallocate(void*, bytes) override { return {}; }

  std::uint64_t next = std::uint64_t{1} << 40;
};

TEST_F(torch_segments_test, a_source_that_gives_what_the_pool_has_is_refused_to_the_unit) {
  const auto source = std::make_shared<addresses_alone>();
  const auto segments = make({.source = source});
  const std::uint64_t base = source->next;
  ASSERT_EQ(grows(*segments, 20 * mib), base);
  for (const std::uint64_t taken : {base - 20 * mib + unit, base, base + 20 * mib - unit}) {
    source->next = taken;
    const auto refused = segments->grow(asks(20 * mib), bound);
    ASSERT_FALSE(refused) << taken - base;
    EXPECT_EQ(refused.code(), errc::invalid_argument);
    EXPECT_EQ(refused.error().detail(),
              "a memory_source returned memory that the pool already has");
    EXPECT_EQ(segments->reserved(), 20 * mib);
  }
  for (const std::uint64_t beside : {base - 20 * mib, base + 20 * mib}) {
    source->next = beside;
    EXPECT_EQ(grows(*segments, 20 * mib), beside);
  }
  EXPECT_EQ(segments->check(), "");
  EXPECT_TRUE(segments->close(bound));
}

/// What a block has beyond what was asked for is counted in 32 bits.
TEST_F(torch_segments_test,
       a_segment_that_is_not_split_serves_where_less_than_4_gib_is_left_of_it) {
  const auto whole = make({.splits = false, .source = std::make_shared<addresses_alone>()});
  const block_index all = whole->grow(asks(8 * gib), bound).value();
  ASSERT_NE(all, no_block);
  whole->free(all, {});
  EXPECT_EQ(whole->fit(asks(4 * gib)), no_block);
  const block_index room = whole->fit(asks(4 * gib + unit));
  ASSERT_NE(room, no_block);
  EXPECT_EQ(blocks[room].address, std::uint64_t{1} << 40);
  EXPECT_EQ(blocks[room].size(), 8 * gib);
  EXPECT_TRUE(whole->close(bound));
}

std::vector<std::size_t> reservations;

TEST_F(torch_segments_test, an_expandable_one_has_as_many_addresses_as_count_in_units) {
  sim::machine_options chosen;
  chosen.devices = {sim::device_spec{.capacity = bytes{2 * tib}}};
  const auto larger = sim::machine::create(chosen).value();
  driver::table calls = larger->driver();
  calls.mem_address_reserve = [](driver::CUdeviceptr*, std::size_t size, std::size_t,
                                 driver::CUdeviceptr, unsigned long long) -> driver::CUresult {
    reservations.push_back(size);
    return driver::CUDA_ERROR_OUT_OF_MEMORY;
  };
  const auto opened = runtime::open_table(calls, "notes reservations", larger).value();
  const device home = opened->device(device_id{0}).value();
  const context_scope entered{home};
  order::stream_order streams{home};
  const stream on = stream::create(home).value();
  const stream_slot its_slot = streams.slot_of(on, entered).value();
  placement_context context{.device = home, .blocks = blocks, .order = streams};
  const auto segments =
      make_torch_segments(context, pool_id{3}, {.expandable = true}, entered).value();
  reservations.clear();
  for (const std::uint64_t size : {std::uint64_t{unit}, 2 * mib}) {
    const request wanted{static_cast<std::uint32_t>(size / unit), 1, its_slot};
    const auto refused = segments->grow(wanted, entered);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), errc::out_of_memory);
  }
  // The whole pages, of 2 MiB and of 20, in 2 TiB less a unit or two.
  EXPECT_THAT(reservations, ElementsAre(2 * tib - 2 * mib, 2 * tib - 12 * mib));
}

/// A segment may need as many records, so that with one less no memory is taken.
TEST_F(torch_segments_test, segments_grow_only_where_the_host_has_memory_for_four_records) {
  constexpr std::size_t chunk = 4096;  // records, of which the first stands for none
  const auto few = [] {
    const auto one_chunk =
        testing_support::system_limit::further_addresses(chunk * sizeof(block) * 3 / 2);
    return std::make_unique<block_store>();
  }();
  ASSERT_TRUE(few->prepare(chunk - 1));
  std::vector<block_index> others;
  while (others.size() < chunk - 1 - 3) others.push_back(few->make());
  placement_context short_of_records{.device = gpu, .blocks = *few, .order = known};
  const bytes used = machine->used(device_id{0});
  for (const bool expandable : {false, true}) {
    SCOPED_TRACE(expandable);
    const auto segments =
        make_torch_segments(short_of_records, pool_id{3}, {.expandable = expandable}, bound)
            .value();
    const auto refused = segments->grow(asks(20 * mib), bound);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), errc::no_host_memory);
    EXPECT_EQ(few->in_use(), others.size());
    EXPECT_EQ(segments->reserved(), 0u);
    EXPECT_EQ(machine->used(device_id{0}), used);
    few->recycle(others.back());
    EXPECT_NE(segments->grow(asks(20 * mib), bound).value(), no_block);
    EXPECT_EQ(segments->reserved(), 20 * mib);
    EXPECT_TRUE(segments->close(bound));
    others.back() = few->make();
  }
}

}  // namespace
}  // namespace weir::placement
