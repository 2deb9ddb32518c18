// SPDX-License-Identifier: Apache-2.0
// A simulated GPU for tests of stream_order by itself.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "order/stream_order.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::order_test {

using order::stamp;
using order::stream_order;
using order::stream_slot;

/// A machine on which nothing happens unless somebody waits.
class StreamOrder : public ::testing::Test {
 protected:
  static std::shared_ptr<sim::machine> make_machine() {
    sim::machine_options chosen;
    chosen.mode = sim::progress::manual;
    return sim::machine::create(chosen).value();
  }
  stream make_stream() { return stream::create(gpu).value(); }
  /// Work that is not done before somebody waits for it.
  void give_work(driver::CUstream to) { ASSERT_TRUE(machine->launch(to, "work", {})); }
  driver::CUstream make_driver_stream() {
    driver::CUstream handle = nullptr;
    EXPECT_EQ(bound.driver().stream_create(&handle, driver::CU_STREAM_NON_BLOCKING),
              driver::CUDA_SUCCESS);
    return handle;
  }
  void destroy(driver::CUstream handle) {
    EXPECT_EQ(bound.driver().stream_destroy(handle), driver::CUDA_SUCCESS);
  }
  void begin_capture(driver::CUstream handle) {
    ASSERT_EQ(bound.driver().stream_begin_capture(handle, driver::CU_STREAM_CAPTURE_MODE_RELAXED),
              driver::CUDA_SUCCESS);
  }
  void end_capture(driver::CUstream handle) {
    driver::CUgraph graph = nullptr;
    ASSERT_EQ(bound.driver().stream_end_capture(handle, &graph), driver::CUDA_SUCCESS);
    ASSERT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  }
  /// Closes the epoch of the free and asks whether it is completed.
  bool completes(stream_order& order, stamp freed) {
    EXPECT_TRUE(order.close(freed.stream, bound));
    EXPECT_TRUE(order.poll(bound));
    return order.completed(freed);
  }

  std::shared_ptr<sim::machine> machine = make_machine();
  std::shared_ptr<runtime> sim_runtime = runtime::open_simulated(machine).value();
  device gpu = sim_runtime->device(device_id{0}).value();
  context_scope bound{gpu};
};

}  // namespace weir::order_test
