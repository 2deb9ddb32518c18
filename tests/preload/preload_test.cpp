// SPDX-License-Identifier: Apache-2.0
// The replaced functions in one process, on a simulated machine's table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hooks.hpp"
#include "process.hpp"
#include "real_driver.hpp"
#include "resolve.hpp"
#include "settings.hpp"
#include "weir/sim/machine.hpp"

namespace weir_preload { namespace {

using namespace abi;

TEST(trace_path, names_the_process_and_the_device) {
  EXPECT_EQ("run.weirtrace", trace_path("run.weirtrace", 1, 7, 7));
  EXPECT_EQ("run.2.weirtrace", trace_path("run.weirtrace", 2, 7, 7));
  EXPECT_EQ("run.9.weirtrace", trace_path("run.weirtrace", 1, 9, 7));
  EXPECT_EQ("run.9.2.weirtrace", trace_path("run.weirtrace", 2, 9, 7));
  EXPECT_EQ("run-9.weirtrace", trace_path("run-%p.weirtrace", 1, 9, 7));
  EXPECT_EQ("run-9.3.weirtrace", trace_path("run-%p.weirtrace", 3, 9, 7));
  EXPECT_EQ("a.b/run.2", trace_path("a.b/run", 2, 7, 7));
}

TEST(driver_names, are_told_from_others) {
  EXPECT_TRUE(is_driver_name("cuMemAlloc_v2"));
  EXPECT_FALSE(is_driver_name("cudaMalloc"));
  EXPECT_FALSE(is_driver_name("curl_easy_init"));
  EXPECT_FALSE(is_driver_name("cu"));
  EXPECT_FALSE(is_driver_name("c"));
  EXPECT_FALSE(is_driver_name(""));
}

TEST(real_driver_test, an_address_stands_for_one_function) {
  real_driver driver;
  int first = 0;
  int second = 0;
  driver.add(hook::cuMemAlloc_v2, &first);
  driver.add(hook::cuMemFree_v2, &second);
  driver.add(hook::cuMemFree_v2, &first);  // a driver that answers with what it has
  driver.add(hook::cuMemFree_v2, nullptr);
  EXPECT_EQ(reinterpret_cast<void*>(&cuMemAlloc_v2), driver.replacement_of(&first));
  EXPECT_EQ(reinterpret_cast<void*>(&cuMemFree_v2), driver.replacement_of(&second));
  EXPECT_EQ(&driver, driver.replacement_of(&driver));
  EXPECT_EQ(nullptr, driver.replacement_of(nullptr));
  driver.add(hook::cuMemAlloc_v2, function_of(hook::cuMemAlloc_v2));
  EXPECT_EQ(function_of(hook::cuMemAlloc_v2),
            driver.replacement_of(function_of(hook::cuMemAlloc_v2)));
}

TEST(resolve_test, our_own_function_is_there_only_where_the_driver_has_it) {
  real_driver driver;
  int original = 0;
  driver.originals[static_cast<std::size_t>(hook::cuMemAlloc_v2)] = &original;
  driver.add(hook::cuMemAlloc_v2, &original);
  real_driver::replace(&driver);
  EXPECT_EQ(function_of(hook::cuMemAlloc_v2), replaced(&original));
  EXPECT_EQ(function_of(hook::cuMemAlloc_v2), replaced(function_of(hook::cuMemAlloc_v2)));
  EXPECT_FALSE(is_absent(function_of(hook::cuMemAlloc_v2)));
  EXPECT_TRUE(is_absent(function_of(hook::cuMemFree_v2)));
  EXPECT_FALSE(is_absent(&original));
  EXPECT_EQ(nullptr, replaced(nullptr));
  EXPECT_EQ(&driver, replaced(&driver));
  real_driver::replace(nullptr);
}

TEST(block_table_test, finds_blocks_from_inside_and_gives_them_once) {
  block_table table;
  EXPECT_EQ(1U, table.insert({.address = 1000, .bytes = 100}));
  EXPECT_EQ(2U, table.insert({.address = 2000, .bytes = 50}));
  EXPECT_FALSE(table.containing(999));
  EXPECT_EQ(1000U, table.containing(1000)->address);
  EXPECT_EQ(1000U, table.containing(1099)->address);
  EXPECT_FALSE(table.containing(1100));
  EXPECT_EQ(2U, table.containing(2049)->serial);
  EXPECT_FALSE(table.take(1001));
  auto taken = table.take(1000);
  ASSERT_TRUE(taken);
  EXPECT_FALSE(table.take(1000));
  EXPECT_FALSE(table.containing(1000));
  table.put_back(*taken);
  EXPECT_EQ(1U, table.take(1000)->serial);
}

/// A simulated machine as the driver of this process.
class served : public testing::Test {
 protected:
  void SetUp() override {
    weir::sim::machine_options options;
    options.devices.assign(1, {.capacity = weir::bytes{std::uint64_t{2} << 30},
                               .context_overhead = weir::bytes{64 << 20}});
    machine_ = weir::sim::machine::create(options).value();
    real_.calls = machine_->driver();
    real_.version = 13000;
    real_.originals[static_cast<std::size_t>(hook::cuMemAlloc_v2)] =
        reinterpret_cast<void*>(real_.calls.mem_alloc);
    real_.originals[static_cast<std::size_t>(hook::cuMemFree_v2)] =
        reinterpret_cast<void*>(real_.calls.mem_free);
    real_.originals[static_cast<std::size_t>(hook::cuMemGetAddressRange_v2)] =
        reinterpret_cast<void*>(real_.calls.mem_get_address_range);
    real_driver::replace(&real_);
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.init(0));
    CUcontext context = nullptr;
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.device_primary_ctx_retain(&context, 0));
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.ctx_set_current(context));
  }
  void TearDown() override {
    EXPECT_THAT(machine_->hazards(), testing::IsEmpty());
    process::get()->drop_heap(0);
    process::restart();
    real_driver::replace(nullptr);
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.ctx_set_current(nullptr));
  }
  template <class Function>
  void add_original(hook row, Function* function) {
    real_.originals[static_cast<std::size_t>(row)] = reinterpret_cast<void*>(function);
  }
  [[nodiscard]] bool is_served(CUdeviceptr address) {
    const auto block = process::get()->blocks().containing(address);
    return block && block->kind != served_as::driver;
  }

  std::shared_ptr<weir::sim::machine> machine_;
  real_driver real_;
};

TEST_F(served, plain_memory_is_weirs_and_is_reused) {
  CUdeviceptr first = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&first, 1 << 20));
  EXPECT_TRUE(is_served(first));
  ASSERT_EQ(CUDA_SUCCESS, cuMemFree_v2(first));
  EXPECT_EQ(0U, machine_->calls(call::ctx_synchronize));  // it would break captures
  EXPECT_EQ(1U, machine_->calls(call::mem_free));  // the driver waits for all work, then frees
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(first));
  CUdeviceptr second = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&second, 1 << 20));
  EXPECT_EQ(first, second);
  ASSERT_EQ(CUDA_SUCCESS, cuMemFree_v2(second));
  EXPECT_EQ(2U, machine_->calls(call::mem_alloc));  // one for each wait
}

TEST_F(served, a_fault_while_a_heap_is_made_leaves_the_request_to_the_driver) {
  // Whatever call fails, the program gets its memory: the driver's own if need be.
  for (std::uint64_t nth = 1; nth <= 60; ++nth) {
    machine_->fail_any(nth, CUDA_ERROR_NOT_PERMITTED);
    CUdeviceptr address = 0;
    const CUresult answer = cuMemAlloc_v2(&address, 4096);
    machine_->clear_faults();
    if (answer == CUDA_SUCCESS) {
      EXPECT_EQ(CUDA_SUCCESS, cuMemFree_v2(address)) << nth;
    } else {
      EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED, answer) << nth;  // the driver's request itself
    }
    process::get()->drop_heap(0);
  }
}

TEST_F(served, what_the_wait_answers_is_the_answer_of_the_free) {
  CUdeviceptr address = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&address, 4096));
  machine_->fail(call::mem_free, 1, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(CUDA_ERROR_LAUNCH_FAILED, cuMemFree_v2(address));
  EXPECT_TRUE(is_served(address));  // it is live
  EXPECT_EQ(CUDA_SUCCESS, cuMemFree_v2(address));
}

TEST_F(served, a_device_that_stopped_is_the_drivers_to_speak_of) {
  CUdeviceptr address = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&address, 4096));
  machine_->fail(call::mem_free, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(address));
  // Memory is cached, but the driver would not give any.
  CUdeviceptr later = 0;
  machine_->fail(call::mem_alloc, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&later, 4096));
  EXPECT_EQ(2U, machine_->calls(call::mem_alloc));  // the wait's and the request's
  EXPECT_EQ(CUDA_SUCCESS, cuMemFree_v2(address));
}

TEST_F(served, without_a_context_the_driver_answers) {
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.ctx_set_current(nullptr));
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&address, 4096));
  EXPECT_EQ(1U, machine_->calls(call::mem_alloc));
}

/// A context that is none of the devices' own: the simulated machine makes none.
CUresult another_context(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(0x1234);
  return CUDA_SUCCESS;
}

TEST_F(served, other_contexts_are_the_drivers) {
  real_.calls.ctx_get_current = another_context;
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&address, 4096));
  EXPECT_FALSE(is_served(address));
  EXPECT_EQ(1U, machine_->calls(call::mem_alloc));
  EXPECT_EQ(4096U, process::get()->passed_on(0));
  EXPECT_EQ(CUDA_SUCCESS, cuMemFree_v2(address));
  EXPECT_EQ(0U, process::get()->passed_on(0));
}

TEST_F(served, what_weir_caches_is_there_for_the_driver) {
  constexpr std::size_t large = std::size_t{1500} << 20;
  CUdeviceptr address = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&address, large));
  ASSERT_EQ(CUDA_SUCCESS, cuMemFree_v2(address));
  real_.calls.ctx_get_current = another_context;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&address, large));
  EXPECT_FALSE(is_served(address));
  EXPECT_EQ(3U, machine_->calls(call::mem_alloc));  // one of the wait, two of the request
  EXPECT_EQ(CUDA_SUCCESS, cuMemFree_v2(address));
}

TEST_F(served, an_old_driver_serves_everything) {
  real_.version = 11010;
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&address, 4096));
  EXPECT_FALSE(is_served(address));
  EXPECT_EQ(CUDA_SUCCESS, cuMemFree_v2(address));
}

TEST_F(served, threads_share_it_while_captures_come_and_go) {
  real_.originals[static_cast<std::size_t>(hook::cuMemAllocAsync)] =
      reinterpret_cast<void*>(real_.calls.mem_alloc_async);
  real_.originals[static_cast<std::size_t>(hook::cuMemFreeAsync)] =
      reinterpret_cast<void*>(real_.calls.mem_free_async);
  CUcontext context = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.ctx_get_current(&context));
  std::atomic<int> failures{0};
  const auto work = [&](unsigned seed) {
    failures += real_.calls.ctx_set_current(context) != CUDA_SUCCESS;
    CUstream stream = nullptr;
    failures += real_.calls.stream_create(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
    for (unsigned i = 0; i < 100; ++i) {
      const std::size_t size = (i * 7 + seed) % 50 * 1000 + 1;
      CUdeviceptr plain = 0;
      CUdeviceptr ordered = 0;
      failures += cuMemAlloc_v2(&plain, size) != CUDA_SUCCESS;
      failures += cuMemAllocAsync(&ordered, size, stream) != CUDA_SUCCESS;
      failures += real_.calls.memset_d8_async(plain, 1, size, stream) != CUDA_SUCCESS;
      failures += real_.calls.memset_d8_async(ordered, 2, size, stream) != CUDA_SUCCESS;
      failures += cuMemFreeAsync(ordered, stream) != CUDA_SUCCESS;
      failures += cuMemFree_v2(plain) != CUDA_SUCCESS;
    }
  };
  {
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back(work, seed);
    for (int i = 0; i < 50; ++i) {
      process::get()->known_captures().begins(context);
      process::get()->known_captures().did_not_begin(context);
    }
    for (std::thread& each : threads) each.join();
  }
  EXPECT_EQ(0, failures.load());
  EXPECT_EQ(300U, machine_->calls(call::mem_alloc));  // one for each wait
  EXPECT_EQ(0U, machine_->calls(call::mem_alloc_async));
}

TEST_F(served, frees_during_a_capture_wait_for_work_and_leave_it_valid) {
  CUstream captured = nullptr;
  CUstream other = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.stream_create(&captured, CU_STREAM_NON_BLOCKING));
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.stream_create(&other, CU_STREAM_NON_BLOCKING));
  add_original(hook::cuStreamBeginCapture_v2, real_.calls.stream_begin_capture);
  add_original(hook::cuStreamEndCapture, real_.calls.stream_end_capture);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&first, 4096));
  ASSERT_EQ(CUDA_SUCCESS, cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.memset_d8_async(first, 1, 4096, other));
  EXPECT_EQ(CUDA_SUCCESS, cuMemFree_v2(first));
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.thread_exchange_stream_capture_mode(&mode));
  EXPECT_EQ(CUDA_SUCCESS, real_.calls.stream_query(other));  // the free has waited for it
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.thread_exchange_stream_capture_mode(&mode));
  ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&second, 4096));
  EXPECT_EQ(first, second);
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, cuStreamEndCapture(captured, &graph));
  EXPECT_NE(nullptr, graph);
  ASSERT_EQ(CUDA_SUCCESS, cuMemFree_v2(second));
  EXPECT_EQ(0U, machine_->calls(call::ctx_synchronize));
}

TEST_F(served, a_context_ends_with_its_memory_and_its_captures) {
  CUcontext primary = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.ctx_get_current(&primary));
  real_.calls.ctx_get_current = another_context;
  CUcontext other = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, another_context(&other));
  CUresult (*const refuse)(CUcontext) = [](CUcontext) { return CUDA_ERROR_INVALID_CONTEXT; };
  CUresult (*const destroy)(CUcontext) = [](CUcontext) { return CUDA_SUCCESS; };
  CUdeviceptr address = 0;
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&address, 1 << 20));
    process& here = *process::get();
    here.known_captures().begins(other);
    ASSERT_TRUE(here.known_captures().add(other, reinterpret_cast<CUstream>(0x77)));
    add_original(hook::cuCtxDestroy_v2, refuse);
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(other));
    EXPECT_EQ(1U << 20, here.passed_on(0));
    EXPECT_TRUE(here.known_captures().of(other)->any());
    add_original(hook::cuCtxDestroy_v2, destroy);
    EXPECT_EQ(CUDA_SUCCESS, cuCtxDestroy_v2(other));
    EXPECT_EQ(0U, here.passed_on(0));
    EXPECT_FALSE(here.known_captures().of(other)->any());
    EXPECT_FALSE(here.blocks().containing(address));
    EXPECT_EQ(CUDA_SUCCESS, real_.calls.mem_free(address));
  }
}

TEST(captures_test, of_one_context_do_not_wait_for_those_of_another) {
  std::vector<std::pair<CUcontext, bool>> changes;
  captures known{[&](CUcontext context, bool any) { changes.emplace_back(context, any); }};
  const auto first = reinterpret_cast<CUcontext>(0x1);
  const auto second = reinterpret_cast<CUcontext>(0x2);
  const auto stream = reinterpret_cast<CUstream>(0x10);
  const auto free_waits = known.of(first)->hold();
  known.begins(second);  // would never return if the contexts had one lock
  EXPECT_TRUE(known.add(second, stream));
  EXPECT_TRUE(known.of(second)->any());
  EXPECT_FALSE(known.of(first)->any());
  known.begins(second);
  EXPECT_FALSE(known.add(second, stream));
  known.did_not_begin(second);
  known.end(stream);
  known.end(stream);
  EXPECT_FALSE(known.of(second)->any());
  using change = std::pair<CUcontext, bool>;
  EXPECT_THAT(changes, testing::ElementsAre(change{second, true}, change{second, false}));
}

TEST(captures_test, of_per_thread_streams_end_with_their_thread) {
  captures known{[](CUcontext, bool) {}};
  const auto context = reinterpret_cast<CUcontext>(0x1);
  known.begins(context);
  ASSERT_TRUE(known.add(context, per_thread_stream()));
  std::thread{[&] {
    known.begins(context);
    ASSERT_TRUE(known.add(context, per_thread_stream()));
    known.end_thread();
  }}.join();
  EXPECT_TRUE(known.of(context)->any());
  known.end_thread();
  EXPECT_FALSE(known.of(context)->any());
}

}  // namespace
}  // namespace weir_preload
