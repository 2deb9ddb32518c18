// SPDX-License-Identifier: Apache-2.0
// Whether a driver maps memory that network cards can reach: asked once, by doing it.
#include "device/rdma_probe.hpp"

#include <algorithm>

#include "device/device_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;

class rdma_probe : public device_test {
 protected:
  [[nodiscard]] bool ask(int device = 0) const {
    const context_scope bound{device_at(device)};
    return detail::maps_with_rdma(bound);
  }
};

TEST_F(rdma_probe, MapsOneHandleWithThePropertyAndTakesItBack) {
  const std::size_t live = fake.live();
  EXPECT_TRUE(ask());
  EXPECT_EQ(fake.last_properties.allocFlags.gpuDirectRDMACapable, 1);
  EXPECT_EQ(fake.count(call::mem_set_access), 1u);
  EXPECT_EQ(fake.live(), live);
  EXPECT_TRUE(ask());
  EXPECT_EQ(fake.count(call::mem_create), 1u) << "the answer is kept";
  EXPECT_TRUE(ask(1));
  EXPECT_EQ(fake.count(call::mem_create), 2u) << "for each device";
}

TEST_F(rdma_probe, ADriverThatRefusesAnyStepSaysNo) {
  for (const call refused :
       {call::mem_create, call::mem_address_reserve, call::mem_map, call::mem_set_access}) {
    fake_driver driver{1};
    const auto opened = runtime::open_table(driver.table, "fake").value();
    const context_scope bound{opened->device(device_id{0}).value()};
    const std::size_t live = driver.live();
    driver.always[refused] = driver::CUDA_ERROR_UNKNOWN;
    EXPECT_FALSE(detail::maps_with_rdma(bound)) << driver::info(refused).symbol;
    EXPECT_EQ(driver.live(), live) << driver::info(refused).symbol;
    driver.always.clear();
    EXPECT_FALSE(detail::maps_with_rdma(bound)) << "asked once";
  }
}

TEST(rdma_probe_that_fails_once, TakesEverythingBackAtTheSecondAttempt) {
  for (const call failing : {call::mem_unmap, call::mem_address_free, call::mem_release}) {
    std::size_t position = 0;
    for (const bool fails : {false, true}) {
      fake_driver driver{1};
      const auto opened = runtime::open_table(driver.table, "fake").value();
      const context_scope bound{opened->device(device_id{0}).value()};
      const std::size_t live = driver.live();
      driver.clear_log();
      if (fails) driver.fail_nth(position, driver::CUDA_ERROR_UNKNOWN);
      EXPECT_TRUE(detail::maps_with_rdma(bound)) << driver::info(failing).symbol;
      EXPECT_EQ(driver.count(failing), fails ? 2u : 1u) << driver::info(failing).symbol;
      EXPECT_EQ(driver.live(), live) << driver::info(failing).symbol;
      const auto calls = driver.calls();
      position =
          static_cast<std::size_t>(std::find(calls.begin(), calls.end(), failing) - calls.begin()) +
          1;
    }
  }
}

TEST_F(rdma_probe, OutOfMemoryIsNoAnswer) {
  fake.always[call::mem_create] = driver::CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_TRUE(ask());
  fake.always.clear();
  fake.always[call::mem_set_access] = driver::CUDA_ERROR_UNKNOWN;
  EXPECT_FALSE(ask()) << "it is asked again";
  fake.always.clear();
}

TEST(rdma_probe_of, ADeviceWithoutThePropertyIsNotTried) {
  fake_driver fake{1};
  fake.attributes[driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED] = 0;
  const auto opened = runtime::open_table(fake.table, "fake").value();
  const context_scope bound{opened->device(device_id{0}).value()};
  EXPECT_FALSE(detail::maps_with_rdma(bound));
  EXPECT_EQ(fake.count(call::mem_create), 0u);
}

}}  // namespace weir::testing_support
