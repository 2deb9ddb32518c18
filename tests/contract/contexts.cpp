// SPDX-License-Identifier: Apache-2.0
// Contract: primary contexts, the current context and its stack.
#include <thread>

#include "support/child_process.hpp"
#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class contexts : public contract_test {};
WEIR_CONTRACT(contexts);

/// The answer of `call` on a thread that never had a context.
template <class Call>
CUresult without_context(Call call) {
  CUresult answer = CUDA_ERROR_UNKNOWN;
  std::thread{[&] { answer = call(); }}.join();
  return answer;
}

const refusal_list contexts_refusals{
    "contexts",
    {
        {"device_primary_ctx_retain into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_primary_ctx_retain(nullptr, b.device); }},
        {"device_primary_ctx_retain of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           CUcontext context = nullptr;
           return b.cu->device_primary_ctx_retain(&context, 1000);
         }},
        {"device_primary_ctx_release of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) { return b.cu->device_primary_ctx_release(1000); }},
        {"device_primary_ctx_get_state of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           unsigned flags = 0;
           int active = 0;
           return b.cu->device_primary_ctx_get_state(1000, &flags, &active);
         }},
        {"device_primary_ctx_reset of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) { return b.cu->device_primary_ctx_reset(1000); }},
        {"ctx_get_current into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->ctx_get_current(nullptr); }},
        {"ctx_push_current(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->ctx_push_current(nullptr); }},
        {"ctx_pop_current from an empty stack", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             CUcontext context = nullptr;
             return b.cu->ctx_pop_current(&context);
           });
         }},
        {"ctx_get_device into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->ctx_get_device(nullptr); }},
        {"ctx_get_device without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             CUdevice device = -1;
             return b.cu->ctx_get_device(&device);
           });
         }},
        {"ctx_synchronize without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] { return b.cu->ctx_synchronize(); });
         }},
        {"ctx_get_stream_priority_range without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             int least = 0;
             int greatest = 0;
             return b.cu->ctx_get_stream_priority_range(&least, &greatest);
           });
         }},
        {"mem_alloc without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             CUdeviceptr address = 0;
             return b.cu->mem_alloc(&address, 16);
           });
         }},
        {"mem_get_info without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             std::size_t free = 0;
             std::size_t total = 0;
             return b.cu->mem_get_info(&free, &total);
           });
         }},
        {"stream_create without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             CUstream stream = nullptr;
             return b.cu->stream_create(&stream, 0);
           });
         }},
        {"event_create without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             CUevent event = nullptr;
             return b.cu->event_create(&event, 0);
           });
         }},
        {"mem_host_alloc without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             void* pointer = nullptr;
             return b.cu->mem_host_alloc(&pointer, 16, 0);
           });
         }},
        {"mem_alloc_managed without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             CUdeviceptr address = 0;
             return b.cu->mem_alloc_managed(&address, 16, CU_MEM_ATTACH_GLOBAL);
           });
         }},
        {"mem_alloc_async on the null stream without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           return without_context([&] {
             CUdeviceptr address = 0;
             return b.cu->mem_alloc_async(&address, 16, nullptr);
           });
         }},
    }};

TEST_P(contexts, refuses) { expect_refusals(contexts_refusals, machine); }

TEST_P(contexts, a_primary_context_is_one_however_often_it_is_retained) {
  CUcontext again = nullptr;
  WEIR_OK(cu->device_primary_ctx_retain(&again, device));
  EXPECT_EQ(context, again);
  WEIR_OK(cu->device_primary_ctx_release(device));
  unsigned flags = ~0u;
  int active = -1;
  WEIR_OK(cu->device_primary_ctx_get_state(device, &flags, &active));
  EXPECT_EQ(1, active);
}

TEST_P(contexts, current_is_a_matter_of_the_thread) {
  CUcontext here_current = nullptr;
  WEIR_OK(cu->ctx_get_current(&here_current));
  EXPECT_EQ(context, here_current);
  CUcontext elsewhere = context;
  std::thread{[&] { EXPECT_EQ(CUDA_SUCCESS, cu->ctx_get_current(&elsewhere)); }}.join();
  EXPECT_EQ(nullptr, elsewhere);
}

TEST_P(contexts, set_current_replaces_the_top) {
  WEIR_OK(cu->ctx_set_current(nullptr));
  CUcontext now = context;
  WEIR_OK(cu->ctx_get_current(&now));
  EXPECT_EQ(nullptr, now);
  WEIR_OK(cu->ctx_set_current(context));
  WEIR_OK(cu->ctx_get_current(&now));
  EXPECT_EQ(context, now);
}

TEST_P(contexts, push_and_pop_are_a_stack) {
  std::thread{[&] {
    CUcontext popped = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_push_current(context));
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_push_current(context));
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_pop_current(&popped));
    EXPECT_EQ(context, popped);
    CUcontext now = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_get_current(&now));
    EXPECT_EQ(context, now);
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_pop_current(nullptr));
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_get_current(&now));
    EXPECT_EQ(nullptr, now);
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cu->ctx_pop_current(&popped));
  }}.join();
}

TEST_P(contexts, the_device_is_that_of_the_current_context) {
  CUdevice current_device = -1;
  WEIR_OK(cu->ctx_get_device(&current_device));
  EXPECT_EQ(device, current_device);
}

TEST_P(contexts, a_smaller_number_is_a_higher_priority) {
  int least = 99;
  int greatest = 99;
  WEIR_OK(cu->ctx_get_stream_priority_range(&least, &greatest));
  EXPECT_EQ(0, least);
  EXPECT_LT(greatest, least);
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_get_stream_priority_range(nullptr, nullptr));
}

TEST_P(contexts, synchronize_waits_for_every_stream) {
  const CUstream first = new_stream();
  const CUstream second = new_stream(CU_STREAM_DEFAULT);
  const CUdeviceptr memory = new_memory(8 * kib);
  WEIR_OK(spin(std::chrono::milliseconds{5}, first));
  WEIR_OK(fill(memory, 1, kib, first));
  WEIR_OK(spin(std::chrono::milliseconds{5}, second));
  WEIR_OK(fill(memory + 4 * kib, 2, kib, second));
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(first));
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(second));
  EXPECT_EQ(0u, mismatches(memory, 1, kib));
  EXPECT_EQ(0u, mismatches(memory + 4 * kib, 2, kib));
}

/// The last release ends the context; another one is refused; a new retain starts afresh.
WEIR_CHILD(context_release) {
  const table& cu = machine.driver();
  const CUdevice device = machine.device();
  CUdeviceptr memory = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_alloc(&memory, 4096));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.device_primary_ctx_release(device));
  unsigned flags = 0;
  int active = -1;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.device_primary_ctx_get_state(device, &flags, &active));
  WEIR_CHILD_EXPECT(0, active);
  WEIR_CHILD_EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.device_primary_ctx_release(device));
  CUcontext context = nullptr;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.device_primary_ctx_retain(&context, device));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ctx_set_current(context));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.device_primary_ctx_get_state(device, &flags, &active));
  WEIR_CHILD_EXPECT(1, active);
  // What the old context held went with it.
  WEIR_CHILD_EXPECT(CUDA_ERROR_INVALID_VALUE, cu.mem_free(memory));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_alloc(&memory, 4096));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_free(memory));
  return 0;
}

TEST_P(contexts, the_last_release_ends_a_primary_context) {
  child_process child{"context_release", GetParam()};
  EXPECT_EQ(0, child.wait());
}

/// A reset takes everything from under its holders.
WEIR_CHILD(context_reset) {
  const table& cu = machine.driver();
  const CUdevice device = machine.device();
  CUdeviceptr memory = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_alloc(&memory, 4096));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.device_primary_ctx_reset(device));
  unsigned flags = 0;
  int active = -1;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.device_primary_ctx_get_state(device, &flags, &active));
  WEIR_CHILD_EXPECT(0, active);
  WEIR_CHILD_EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cu.mem_alloc(&memory, 4096));
  CUcontext context = nullptr;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.device_primary_ctx_retain(&context, device));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ctx_set_current(context));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_alloc(&memory, 4096));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_free(memory));
  return 0;
}

TEST_P(contexts, a_reset_ends_a_primary_context_that_is_in_use) {
  child_process child{"context_reset", GetParam()};
  EXPECT_EQ(0, child.wait());
}

}  // namespace
}  // namespace weir::testing_support
