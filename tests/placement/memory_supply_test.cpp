// SPDX-License-Identifier: Apache-2.0
// What the driver can still give, told without creating memory in vain.
#include "placement/memory_supply.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "weir/base/bytes.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement { namespace {

using namespace weir::literals;
using driver::call;

class memory_supply_test : public ::testing::Test {
 protected:
  memory_supply_test() {
    sim::machine_options settings;
    settings.devices.assign(1, sim::device_spec{.capacity = 2_GiB, .context_overhead = 64_MiB});
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
    gpu = runtime_->device(device_id{0}).value();
  }
  [[nodiscard]] bool can_give(memory_supply& supply, bytes size) const {
    const context_scope bound{*gpu};
    return supply.can_give(size.count(), {}, bound).value();
  }

  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
  std::optional<weir::device> gpu;
};

TEST_F(memory_supply_test, what_the_device_lacks_beside_what_is_held_needs_no_driver_call) {
  memory_supply supply{*gpu};
  supply.created((1_GiB).count());
  const auto asked = machine->calls(call::mem_get_info);
  const auto tried = machine->calls(call::mem_create);
  EXPECT_TRUE(supply.cannot_give((1_GiB).count() + 1));
  EXPECT_FALSE(can_give(supply, 1025_MiB));
  EXPECT_EQ(machine->calls(call::mem_get_info), asked);
  EXPECT_EQ(machine->calls(call::mem_create), tried);
  EXPECT_FALSE(supply.cannot_give((1_GiB).count()));
  supply.released((512_MiB).count());
  EXPECT_TRUE(can_give(supply, 1100_MiB));
}

TEST_F(memory_supply_test, a_refusal_counts_until_memory_went_back) {
  memory_supply supply{*gpu};
  EXPECT_FALSE(can_give(supply, 2_GiB)) << "the context takes some";
  const auto tried = machine->calls(call::mem_create);
  EXPECT_FALSE(can_give(supply, 2_GiB));
  EXPECT_EQ(machine->calls(call::mem_create), tried) << "not tried twice";
  EXPECT_TRUE(can_give(supply, 1_GiB));
  supply.forget();
  EXPECT_FALSE(can_give(supply, 2_GiB));
  EXPECT_EQ(machine->calls(call::mem_create), tried + 1);
}

TEST_F(memory_supply_test, memory_that_was_created_is_no_longer_free) {
  memory_supply supply{*gpu};
  ASSERT_TRUE(can_give(supply, 1_GiB));
  const auto asked = machine->calls(call::mem_get_info);
  supply.created((1500_MiB).count());
  EXPECT_FALSE(can_give(supply, 600_MiB)) << "1.5 of 2 GiB are held";
  EXPECT_EQ(machine->calls(call::mem_get_info), asked);
}

}  // namespace
}  // namespace weir::placement
