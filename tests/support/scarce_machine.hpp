// SPDX-License-Identifier: Apache-2.0
// A simulated machine under programs whose host runs out of memory. For programs that list
// scarce_memory.cpp among their sources.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "support/scarce_memory.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

/// A driver that has host memory of its own.
class spared_driver {
 public:
  [[nodiscard]] static const driver::table& of(const driver::table& real) {
    static driver::table table;
    real_table = &real;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  table.member = real.member == nullptr                                       \
                     ? nullptr                                                \
                     : &thunk<&driver::table::member, decltype(driver::table::member)>::call;
#include "weir/driver/calls.def"
    return table;
  }

 private:
  static inline const driver::table* real_table = nullptr;

  template <auto Row, class Signature>
  struct thunk;
  template <auto Row, class... Arguments>
  struct thunk<Row, driver::CUresult (*)(Arguments...)> {
    static driver::CUresult call(Arguments... arguments) {
      const spared_memory spared;
      return (real_table->*Row)(arguments...);
    }
  };
};

/// Two devices, a stream on the first, and programs in which each host allocation fails in turn.
class scarce_machine : public ::testing::Test {
 protected:
  /// With two such devices, of 2 GiB.
  explicit scarce_machine(sim::device_spec device = {})
      : machine{sim::machine::create(options(std::move(device))).value()},
        runtime_{runtime::open_table(spared_driver::of(machine->driver()), "simulated", machine)
                     .value()},
        one{stream::create(gpu()).value()},
        two{stream::create(gpu()).value()},
        far{stream::create(gpu(1)).value()} {}

  void SetUp() override {
    set_error_handler(
        [](const error& failure, void* self) noexcept {
          const spared_memory spared;
          static_cast<scarce_machine*>(self)->reported_.push_back(failure);
        },
        this);
  }
  void TearDown() override {
    set_error_handler(nullptr);
    for (const auto& each : machine->hazards()) ADD_FAILURE() << each.message();
  }

  /// Runs `program` with one host allocation after the other failing, until none does. A program
  /// never throws. Whatever it left over, it has given all device memory back when it is over.
  void sweep(const std::function<void()>& program) {
    program();  // what is made once is there from now on
    settle();
    reported_.clear();
    long enough = 0;
    for (bool failed = true; failed; ++enough) {
      ASSERT_LT(enough, 5000);
      SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
      const std::array before{machine->used(device_id{0}), machine->used(device_id{1})};
      {
        const scarce_memory scarce{enough};
        try {
          program();
        } catch (const std::exception& thrown) {
          const spared_memory spared;
          ADD_FAILURE() << "an exception: " << thrown.what();
        }
        failed = scarce_memory::take_failure();
      }
      settle();
      for (const int each : {0, 1})
        EXPECT_EQ(machine->used(device_id{each}), before[static_cast<std::size_t>(each)]) << each;
      for (const error& each : reported_)
        EXPECT_TRUE(failed &&
                    (each.code() == errc::no_host_memory || each.code() == errc::still_live))
            << each.message();
      reported_.clear();
      if (HasFailure()) return;
    }
  }

  /// Whether a call was met. Of those that are not, the host is out of memory.
  template <class Result>
  static bool met(const Result& outcome, errc other = errc::no_host_memory) {
    if (outcome) return true;
    if (outcome.code() == errc::no_host_memory || outcome.code() == other) return false;
    const spared_memory spared;
    ADD_FAILURE() << outcome.error().message();
    return false;
  }
  /// A free: where the host has no memory for it, it is met when it is asked again.
  template <class Free>
  static void free(const Free& call) {
    if (met(call())) return;
    const auto again = call();
    const spared_memory spared;
    EXPECT_TRUE(again) << again.error().message();
  }
  void work(const stream_ref& on) {
    const spared_memory spared;
    const context_scope bound{on.device()};
    EXPECT_TRUE(machine->launch(on.handle(), "work", {}));
  }
  [[nodiscard]] weir::device gpu(int index = 0) const {
    return runtime_->device(device_id{index}).value();
  }

  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
  stream one, two;  // of the first device
  stream far;       // of the second

 private:
  /// Waits for all work. A driver's pool releases memory when the host waits.
  void settle() {
    machine->run_until_idle();
    for (const int each : {0, 1}) EXPECT_TRUE(gpu(each).synchronize());
  }

  static sim::machine_options options(sim::device_spec device) {
    device.capacity = bytes{std::uint64_t{2} << 30};
    device.context_overhead = bytes{64 << 20};
    return {.devices = {device, device}, .mode = sim::progress::manual};
  }

  std::vector<error> reported_;
};

}  // namespace weir::testing_support
