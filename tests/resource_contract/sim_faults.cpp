// SPDX-License-Identifier: Apache-2.0
// Contract of resources: drivers that refuse, devices that stop, drivers that go. Simulated only.
#include "resource_contract/resource_test.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support { namespace {

/// A machine of its own for each resource, which the test may break.
class resource_faults : public ::testing::TestWithParam<resource_case> {
 public:
  struct place {
    std::shared_ptr<sim::machine> machine;
    std::shared_ptr<weir::runtime> runtime;
    weir::device gpu;
    weir::stream stream;
    any_resource memory;
  };
  [[nodiscard]] place open() const {
    auto machine = sim::machine::create().value();
    auto runtime = weir::runtime::open_simulated(machine).value();
    const auto gpu = runtime->device(device_id{0}).value();
    auto stream = weir::stream::create(gpu).value();
    return {machine, runtime, gpu, std::move(stream), GetParam().make(gpu)};
  }
  error_log heard;
};
INSTANTIATE_TEST_SUITE_P(contract, resource_faults, ::testing::ValuesIn(all_resources()),
                         [](const auto& parameter) { return std::string{parameter.param.name}; });

TEST_P(resource_faults, a_lost_device_is_told_and_survived) {
  place at = open();
  void* const p = at.memory.allocate(1_MiB, at.stream);
  at.machine->lose_device(device_id{0});
  const auto refused = at.memory.try_allocate(40_MiB, at.stream);
  EXPECT_EQ(code_of(refused), errc::device_lost);
  const auto freed = at.memory.try_deallocate(p, 1_MiB, at.stream);
  if (!freed) {
    EXPECT_EQ(freed.code(), errc::device_lost);
  }
  at.memory = {};
  for (const error& each : heard.take()) {  // what it could not free, and no more
    EXPECT_THAT(each.code(), ::testing::AnyOf(errc::device_lost, errc::still_live))
        << each.message();
  }
}

TEST_P(resource_faults, a_driver_that_is_gone_is_told_and_then_kept_silent_about) {
  place at = open();
  void* const p = at.memory.allocate(1_MiB, at.stream);
  at.machine->shut_down();
  EXPECT_EQ(code_of(at.memory.try_allocate(40_MiB, at.stream)), errc::driver_gone);
  const auto freed = at.memory.try_deallocate(p, 1_MiB, at.stream);
  if (!freed) {
    EXPECT_EQ(freed.code(), errc::driver_gone);
  }
  at.memory = {};
  EXPECT_THAT(heard.take(), ::testing::IsEmpty());
}

/// Each driver call of a small program fails once, in turn. Whatever the program is told then, the
/// resource must serve it afterwards as if nothing had been, and lose nothing.
TEST_P(resource_faults, any_call_may_fail_once) {
  constexpr bytes sizes[] = {4_KiB, 3_MiB};
  for (std::uint64_t nth = 1;; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth));
    place at = open();
    const bytes before = at.machine->used(device_id{0});
    const std::uint64_t calls_before = at.machine->calls();
    at.machine->fail_any(nth, driver::CUDA_ERROR_OUT_OF_MEMORY);
    for (const bytes size : sizes) {
      const auto pointer = at.memory.try_allocate(size, at.stream);
      if (!pointer) continue;
      if (at.memory.try_deallocate(*pointer, size, at.stream)) continue;
      at.machine->clear_faults();
      const auto again = at.memory.try_deallocate(*pointer, size, at.stream);
      if (!again) {
        EXPECT_EQ(again.code(), errc::double_free) << again.error().message();
      }
    }
    const bool all_reached = at.machine->calls() - calls_before < nth;
    at.machine->clear_faults();
    for (const error& each : heard.take())
      EXPECT_EQ(each.native(), driver::CUDA_ERROR_OUT_OF_MEMORY) << each.message();
    for (const bytes size : sizes) {
      const auto pointer = at.memory.try_allocate(size, at.stream);
      ASSERT_TRUE(pointer) << pointer.error().message();
      EXPECT_TRUE(at.memory.try_deallocate(*pointer, size, at.stream));
    }
    EXPECT_TRUE(at.stream.synchronize());
    at.memory = {};
    EXPECT_THAT(heard.take(), ::testing::IsEmpty());
    EXPECT_LE(at.machine->used(device_id{0}), before) << "memory was lost";
    EXPECT_THAT(at.machine->hazards(), ::testing::IsEmpty());
    if (all_reached || HasFailure()) break;
  }
}

}  // namespace
}  // namespace weir::testing_support
