// SPDX-License-Identifier: Apache-2.0
// plain_resource and managed_resource: the driver's own memory.
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "base/hexadecimal.hpp"
#include "resources/resources_fixture.hpp"
#include "support/captures.hpp"
#include "weir/resource/managed_resource.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir::testing_support { namespace {

using driver::call;

class driver_memory_test : public resources_test {
 protected:
  /// As misuse is told of a block of the tag "scratch".
  [[nodiscard]] std::string words(const void* pointer, const std::string& size) const {
    return detail::hexadecimal(reinterpret_cast<std::uintptr_t>(pointer)) + ", " + size +
           ", tag \"scratch\", stream " + std::to_string(stream.id().number());
  }
};

TEST_F(driver_memory_test, each_request_is_a_call_of_the_driver) {
  auto plain = plain_resource::create(gpu).value();
  auto managed = managed_resource::create(gpu).value();
  void* const p = plain.try_allocate(1_MiB, stream).value();
  void* const m = managed.try_allocate(1_MiB, stream).value();
  EXPECT_EQ(machine->calls(call::mem_alloc), 1U);
  EXPECT_EQ(machine->calls(call::mem_alloc_managed), 1U);
  EXPECT_EQ(plain.in_use(), 1_MiB);
  EXPECT_EQ(managed.in_use(), 1_MiB);
  void* const q = managed.try_allocate(700_B, stream).value();
  EXPECT_EQ(managed.in_use(), 1_MiB + 700_B);
  EXPECT_TRUE(managed.try_deallocate(q, 700_B, stream));
  EXPECT_TRUE(plain.try_deallocate(p, 1_MiB, stream));
  EXPECT_TRUE(managed.try_deallocate(m, 1_MiB, stream));
  EXPECT_EQ(machine->calls(call::mem_free), 3U);
  EXPECT_EQ(plain.in_use(), 0_B);
  EXPECT_EQ(managed.in_use(), 0_B);
  EXPECT_EQ(plain.device(), gpu);
  EXPECT_EQ(managed.device(), gpu);
  EXPECT_EQ(machine->used(device_id{0}).count() % (2_MiB).count(),
            device_with_room().context_overhead.count() % (2_MiB).count());
}

TEST_F(driver_memory_test, what_the_driver_cannot_give_is_not_asked_for) {
  for (any_resource memory : {any_resource{plain_resource::create(gpu).value()},
                              any_resource{managed_resource::create(gpu).value()}}) {
    const auto elsewhere = stream::create(other_gpu).value();
    const auto before = machine->calls();
    EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream, 512_B)), errc::bad_alignment);
    EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream, 0_B)), errc::bad_alignment);
    EXPECT_EQ(code_of(memory.try_allocate(1_KiB, stream, 96_B)), errc::bad_alignment);
    EXPECT_EQ(code_of(memory.try_allocate(1_KiB, elsewhere)), errc::bad_stream);
    EXPECT_EQ(memory.try_allocate(0_B, stream).value(), nullptr);
    const auto refused = memory.try_allocate(bytes::max() - 510_B, stream);
    EXPECT_EQ(refused.error(),
              (error{{.code = errc::size_overflow, .requested = bytes::max() - 510_B}}));
    EXPECT_TRUE(memory.try_deallocate(nullptr, 1_KiB, elsewhere));
    EXPECT_EQ(machine->calls(), before);
    EXPECT_EQ(code_of(memory.try_allocate(bytes::max() - 511_B, stream)), errc::out_of_memory)
        << "the driver's largest";
  }
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
  machine->fail(call::event_synchronize, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(plain.try_deallocate(p, 4_KiB, stream));
  EXPECT_TRUE(plain.try_deallocate(p, 4_KiB, stream));
}

TEST_F(driver_memory_test, live_memory_is_freed_and_reported_at_the_end) {
  const bytes before = machine->used(device_id{0});
  void* large = nullptr;
  void* small = nullptr;
  {
    auto plain = plain_resource::create(gpu).value();
    const tag_scope tagged{tag::named("scratch").value()};
    large = plain.try_allocate(5_MiB, stream).value();
    small = plain.try_allocate(3_MiB, stream).value();
  }
  EXPECT_EQ(machine->used(device_id{0}), before);
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front(),
            (error{{.code = errc::still_live,
                    .requested = 8_MiB,
                    .detail = "a resource was destroyed with 2 live blocks of 8 MiB\n  " +
                              words(large, "5 MiB") + "\n  " + words(small, "3 MiB")}}));
}

TEST_F(driver_memory_test, misuse_is_told_with_the_block_it_concerns) {
  auto plain = plain_resource::create(gpu).value();
  void* p = nullptr;
  {
    const tag_scope tagged{tag::named("scratch").value()};
    p = plain.try_allocate(4_KiB, stream).value();
  }
  ASSERT_TRUE(plain.try_deallocate(p, 4_KiB, stream));
  EXPECT_EQ(plain.try_deallocate(p, 4_KiB, stream).error(),
            (error{{.code = errc::double_free, .detail = words(p, "4 KiB")}}));
  int host = 0;
  EXPECT_EQ(plain.try_deallocate(&host, 4_B, stream).error(),
            (error{{.code = errc::foreign_pointer,
                    .detail = detail::hexadecimal(reinterpret_cast<std::uintptr_t>(&host)) +
                              " is not memory of this resource"}}));
}

TEST_F(driver_memory_test, the_end_waits_for_the_device_and_tells_what_fails) {
  bool ran = false;
  {
    auto plain = plain_resource::create(gpu).value();
    static_cast<void>(plain.try_allocate(4_MiB, stream).value());
    static_cast<void>(plain.try_allocate(4_MiB, stream).value());
    ASSERT_TRUE(machine->launch(stream.handle(), "long work", {}, [&] { ran = true; }));
    machine->fail(call::mem_free, 2, driver::CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_TRUE(ran);
  EXPECT_EQ(machine->calls(call::mem_free), 3U) << "one of the wait, and all are attempted";
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 2U);
  EXPECT_EQ(reported[0].native(), driver::CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(reported[1].code(), errc::still_live);
}

TEST_F(driver_memory_test, AFreeOnTheLegacyStreamLeavesCapturesValid) {
  const foreign_stream captured{gpu, driver::CU_STREAM_DEFAULT};
  const stream_ref legacy = stream_ref::legacy(gpu);
  const auto play = [&](const auto& memory) {
    for (const auto mode : capture_modes) {
      void* const p = memory.try_allocate(1_MiB, legacy).value();
      bool ran = false;
      const context_scope bound{gpu};
      ASSERT_TRUE(machine->launch(legacy.handle(), "kernel", {}, [&] { ran = true; }));
      checked_capture capture{captured, mode};
      EXPECT_TRUE(memory.try_deallocate(p, 1_MiB, legacy));
      EXPECT_TRUE(ran) << "it was waited for";
      EXPECT_EQ(capture.end(), 0u);
    }
  };
  play(plain_resource::create(gpu).value());
  play(managed_resource::create(gpu).value());
}

TEST_F(driver_memory_test, TheEndLeavesCapturesValid) {
  const foreign_stream captured{gpu};
  auto plain = std::make_optional(plain_resource::create(gpu).value());
  static_cast<void>(plain->try_allocate(1_MiB, stream).value());
  checked_capture capture{captured};
  plain.reset();
  EXPECT_EQ(capture.end(), 0u);
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported[0].code(), errc::still_live);
}

TEST_F(driver_memory_test, memory_that_cannot_be_waited_for_is_kept_and_reported) {
  const bytes before = machine->used(device_id{0});
  {
    auto plain = plain_resource::create(gpu).value();
    static_cast<void>(plain.try_allocate(8_MiB, stream).value());
    machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);  // of the wait
  }
  EXPECT_EQ(machine->used(device_id{0}), before + 8_MiB);
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 2U);
  EXPECT_EQ(reported[0].native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(reported[0].requested(), 8_MiB);
  EXPECT_EQ(reported[0].detail(),
            "8 MiB stay allocated, because work that may use them could not be waited for");
  EXPECT_EQ(reported[1].code(), errc::still_live);
}

TEST_F(driver_memory_test, after_the_end_of_the_driver_there_is_nothing_to_tell) {
  auto plain = plain_resource::create(gpu).value();
  void* const p = plain.try_allocate(4_MiB, stream).value();
  machine->shut_down();
  EXPECT_EQ(code_of(plain.try_deallocate(p, 4_MiB, stream)), errc::driver_gone);
  EXPECT_EQ(code_of(plain.try_allocate(4_MiB, stream)), errc::driver_gone);
}

TEST_F(driver_memory_test, a_driver_that_goes_during_the_end_leaves_nothing_to_tell) {
  {
    auto plain = plain_resource::create(gpu).value();
    static_cast<void>(plain.try_allocate(4_MiB, stream).value());
    for (const call each : {call::mem_alloc, call::mem_host_alloc})  // of the wait
      machine->fail(each, 1, driver::CUDA_ERROR_DEINITIALIZED);
  }
  EXPECT_EQ(machine->calls(call::mem_free), 0U) << "it went with the driver";
  EXPECT_THAT(take_reports(), ::testing::IsEmpty());
}

TEST_F(driver_memory_test, a_forked_child_is_told_and_frees_nothing) {
  auto plain = std::make_optional(plain_resource::create(gpu).value());
  void* const p = plain->try_allocate(4_MiB, stream).value();
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    if (code_of(plain->try_allocate(4_MiB, stream)) != errc::driver_gone) wrong = 1;
    if (code_of(plain->try_deallocate(p, 4_MiB, stream)) != errc::driver_gone) wrong = 2;
    plain.reset();
    if (!take_reports().empty()) wrong = 3;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  EXPECT_TRUE(plain->try_deallocate(p, 4_MiB, stream)) << "the parent goes on";
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
