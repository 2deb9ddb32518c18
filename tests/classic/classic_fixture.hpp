// SPDX-License-Identifier: Apache-2.0
// A classic store on a simulated machine, with streams and without an allocator around it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "placement/torch_segments.hpp"
#include "support/order_waits.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

/// Plays the allocator's part: fit, then growth; frees stamped with the stream's open epoch.
class classic_bench {
 public:
  using block_index = placement::block_index;
  using stream_slot = placement::stream_slot;

  explicit classic_bench(bool expandable, std::size_t streams = 2,
                         sim::machine_options machine_settings = quiet())
      : machine{sim::machine::create(std::move(machine_settings)).value()},
        runtime{weir::runtime::open_simulated(machine).value()},
        device{runtime->device(device_id{0}).value()},
        bound{device},
        known{device},
        shared{.device = device, .blocks = blocks, .order = known} {
    for (std::size_t i = 0; i < streams; ++i) {
      own.push_back(stream::create(device).value());
      slots.push_back(known.slot_of(own.back(), bound).value());
    }
    store = placement::make_torch_segments(shared, pool_id{}, {.expandable = expandable}, bound)
                .value();
  }

  /// A machine that costs no time to simulate.
  static sim::machine_options quiet() {
    sim::machine_options settings;
    settings.check_hazards = false;
    settings.costs = sim::cost_table::free();
    return settings;
  }

  static placement::request asks(std::uint64_t size, stream_slot stream,
                                 std::uint64_t alignment = 512) {
    return {static_cast<std::uint32_t>((size + placement::unit - 1) / placement::unit),
            static_cast<std::uint32_t>(alignment / placement::unit), stream};
  }

  /// no_block where neither what is free nor the driver has room.
  result<block_index> try_allocate(std::uint64_t size, std::size_t stream = 0,
                                   std::uint64_t alignment = 512) {
    shared.supply.forget();  // as a heap does for each request
    const placement::request wanted = asks(size, slots[stream], alignment);
    if (const block_index found = store->fit(wanted); found != placement::no_block) return found;
    return store->grow(wanted, bound);
  }
  block_index allocate(std::uint64_t size, std::size_t stream = 0, std::uint64_t alignment = 512) {
    return try_allocate(size, stream, alignment).value();
  }
  /// On the stream, whose work may still use it.
  void free(block_index which, std::size_t stream = 0) {
    store->free(which, known.now(slots[stream]));
  }
  /// The stream is known to have come this far.
  void pass(std::size_t stream) {
    EXPECT_TRUE(known.close(slots[stream], bound));
    EXPECT_TRUE(wait_for_marks(known, bound));
    EXPECT_FALSE(known.behind(slots[stream]));
    store->retire(slots[stream]);
  }

  [[nodiscard]] std::uint64_t address(block_index which) const { return blocks[which].address; }
  [[nodiscard]] std::uint64_t size(block_index which) const { return blocks[which].size(); }
  [[nodiscard]] std::uint64_t reserved() const { return store->reserved(); }
  bytes release(bytes most = bytes::max()) { return store->release(most, bound).value(); }

  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<weir::runtime> runtime;
  weir::device device;
  context_scope bound;
  placement::block_store blocks;
  order::stream_order known;
  placement::placement_context shared;
  std::vector<stream> own;
  std::vector<stream_slot> slots;
  std::unique_ptr<placement::backing_store> store;
};

/// Every test ends with books that agree.
class classic_rules : public ::testing::Test {
 protected:
  explicit classic_rules(bool expandable) : bench{expandable} {}
  void TearDown() override {
    EXPECT_EQ(bench.store->check(), "");
    EXPECT_EQ(bench.shared.reserved, bench.reserved());
  }
  /// Whether the next request of this size is served without the driver.
  bool fits(std::uint64_t size, std::size_t stream = 0) {
    const auto found = bench.store->fit(classic_bench::asks(size, bench.slots[stream]));
    if (found != placement::no_block) bench.free(found, stream);
    return found != placement::no_block;
  }

  classic_bench bench;
};

}  // namespace weir::testing_support
