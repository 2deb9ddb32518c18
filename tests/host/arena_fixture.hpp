// SPDX-License-Identifier: Apache-2.0
// A simulated machine with a host arena on it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "host/arena.hpp"
#include "support/reports.hpp"
#include "weir/device/runtime.hpp"
#include "weir/host/host_arena.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

using namespace weir::literals;
using driver::call;

/// Collects what an arena tells.
class heard_events final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override {
    const std::lock_guard lock{mutex_};
    events_.push_back(event);
  }
  [[nodiscard]] std::vector<memory_event> take() {
    const std::lock_guard lock{mutex_};
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<memory_event> events_;
};

/// Two simulated devices on which nothing happens unless somebody waits for it. Nothing may be left
/// that races or was reported, unless a test took it.
class arena_test : public ::testing::Test {
 protected:
  explicit arena_test(sim::progress mode = sim::progress::manual) {
    sim::machine_options settings;
    settings.devices.assign(2, sim::device_spec{.capacity = 1_GiB, .context_overhead = 64_MiB});
    settings.mode = mode;
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }
  void TearDown() override {
    for (const auto& found : machine->hazards()) ADD_FAILURE() << found.message();
    for (const auto& each : heard.take()) ADD_FAILURE() << each.message();
  }

  [[nodiscard]] device gpu(int index = 0) const {
    return runtime_->device(device_id{index}).value();
  }
  [[nodiscard]] stream new_stream(int index = 0) const {
    return stream::create(gpu(index)).value();
  }
  /// Without helper threads, so that every driver call is a test's own; small pages, so that sizes
  /// are exact.
  [[nodiscard]] static host_arena_options quiet() {
    return {.max_ahead = 0_B, .max_idle = {}, .threads = 0, .huge_pages = false};
  }
  [[nodiscard]] std::shared_ptr<host::arena> make(const host_arena_options& options = quiet()) {
    return host::arena::create(gpu(), options).value();
  }
  /// A kernel that reads the memory, as a copy to the device does.
  void read(const stream_ref& on, const void* memory, bytes size) {
    const context_scope scope{on.device()};
    ASSERT_TRUE(
        machine->launch(on.handle(), "copy to device",
                        {sim::reads(reinterpret_cast<driver::CUdeviceptr>(memory), size.count())}));
  }
  /// The host writes; the machine is told, since it cannot see plain stores.
  void host_writes(void* memory, bytes size) {
    machine->host_write(memory, size.count());
    std::memset(memory, 7, size.count());
  }

  reports heard;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
};

}  // namespace weir::testing_support
