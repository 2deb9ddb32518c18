// plain_resource and managed_resource: the driver's own memory.
#include "resources/resources_fixture.hpp"
#include "weir/resource/managed_resource.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir::testing_support {
namespace {

using driver::call;
using driver_memory_test = resources_test;

TEST_F(driver_memory_test, each_request_is_a_call_of_the_driver) {
  auto plain = plain_resource::create(gpu).value();
  auto managed = managed_resource::create(gpu).value();
  void* const p = plain.try_allocate(1_MiB, stream).value();
  void* const m = managed.try_allocate(1_MiB, stream).value();
  EXPECT_EQ(machine->calls(call::mem_alloc), 1U);
  EXPECT_EQ(machine->calls(call::mem_alloc_managed), 1U);
  EXPECT_EQ(plain.in_use(), 1_MiB);
  EXPECT_TRUE(plain.try_deallocate(p, 1_MiB, stream));
  EXPECT_TRUE(managed.try_deallocate(m, 1_MiB, stream));
  EXPECT_EQ(machine->calls(call::mem_free), 2U);
  EXPECT_EQ(plain.in_use(), 0_B);
  EXPECT_EQ(machine->used(device_id{0}).count() % (2_MiB).count(),
            device_with_room().context_overhead.count() % (2_MiB).count());
}

TEST_F(driver_memory_test, a_free_waits_for_the_stream) {
  for (any_resource memory : {any_resource{plain_resource::create(gpu).value()},
                              any_resource{managed_resource::create(gpu).value()}}) {
    void* const p = memory.allocate(4_KiB, stream);
    const auto at = static_cast<driver::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(p));
    bool ran = false;
    ASSERT_TRUE(machine->launch(stream.handle(), "long work", {sim::writes(at, 4096)},
                                [&] { ran = true; }));
    EXPECT_TRUE(memory.try_deallocate(p, 4_KiB, stream));
    EXPECT_TRUE(ran);
  }
}

TEST_F(driver_memory_test, a_free_that_fails_leaves_the_block_live) {
  auto plain = plain_resource::create(gpu).value();
  void* const p = plain.try_allocate(4_KiB, stream).value();
  machine->fail(call::mem_free, 1, driver::CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(plain.try_deallocate(p, 4_KiB, stream));
  machine->fail(call::stream_synchronize, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(plain.try_deallocate(p, 4_KiB, stream));
  EXPECT_TRUE(plain.try_deallocate(p, 4_KiB, stream));
}

TEST_F(driver_memory_test, live_memory_is_freed_and_reported_at_the_end) {
  const bytes before = machine->used(device_id{0});
  {
    auto plain = plain_resource::create(gpu).value();
    static_cast<void>(plain.try_allocate(4_MiB, stream).value());
    static_cast<void>(plain.try_allocate(4_MiB, stream).value());
  }
  EXPECT_EQ(machine->used(device_id{0}), before);
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code, errc::still_live);
  EXPECT_EQ(reported.front().requested, 8_MiB);
}

TEST_F(driver_memory_test, after_the_end_of_the_driver_there_is_nothing_to_tell) {
  auto plain = plain_resource::create(gpu).value();
  void* const p = plain.try_allocate(4_MiB, stream).value();
  machine->shut_down();
  EXPECT_EQ(code_of(plain.try_deallocate(p, 4_MiB, stream)), errc::driver_gone);
  EXPECT_EQ(code_of(plain.try_allocate(4_MiB, stream)), errc::driver_gone);
}

TEST_F(driver_memory_test, captures_are_neither_broken_nor_lied_to) {
  auto plain = plain_resource::create(gpu).value();
  const driver::table& cu = machine->driver();
  const context_scope bound{gpu};
  void* const before = plain.try_allocate(4_KiB, stream).value();
  ASSERT_EQ(driver::CUDA_SUCCESS,
            cu.stream_begin_capture(stream.handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(code_of(plain.try_deallocate(before, 4_KiB, stream)), errc::capture_forbidden);
  void* const captured = plain.try_allocate(4_KiB, stream).value();
  const auto other = stream::create(gpu).value();
  void* const beside = plain.try_allocate(4_KiB, other).value();
  EXPECT_TRUE(plain.try_deallocate(beside, 4_KiB, other)) << "another stream's memory may go";
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(driver::CUDA_SUCCESS, cu.stream_end_capture(stream.handle(), &graph));
  EXPECT_EQ(driver::CUDA_SUCCESS, cu.graph_destroy(graph));
  EXPECT_TRUE(plain.try_deallocate(before, 4_KiB, stream));
  EXPECT_TRUE(plain.try_deallocate(captured, 4_KiB, stream));
}

TEST_F(driver_memory_test, a_device_without_managed_memory_is_told_at_once) {
  sim::device_spec without;
  without.managed_memory = without.concurrent_managed_access = false;
  const auto poor =
      runtime::open_simulated(sim::machine::create({.devices = {without}}).value()).value();
  EXPECT_EQ(code_of(managed_resource::create(poor->device(device_id{0}).value())),
            errc::not_supported);
}

}  // namespace
}  // namespace weir::testing_support
