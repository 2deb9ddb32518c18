// SPDX-License-Identifier: Apache-2.0
// Contract: streams, the order of work in them and between them, host functions, memory operations.
#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

using std::chrono::milliseconds;

class streams : public contract_test {};
WEIR_CONTRACT(streams);

void nothing(void*) {}

const refusal_list streams_refusals{
    "streams",
    {
        {"stream_create into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_create(nullptr, 0); }},
        {"stream_create with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUstream stream = nullptr;
           return b.cu->stream_create(&stream, 0x80);
         }},
        {"stream_create_with_priority into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_create_with_priority(nullptr, 0, 0); }},
        {"stream_create_with_priority with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUstream stream = nullptr;
           return b.cu->stream_create_with_priority(&stream, 0x80, 0);
         }},
        {"stream_destroy(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->stream_destroy(nullptr); }},
        {"stream_destroy of the legacy stream", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->stream_destroy(legacy_stream()); }},
        {"stream_destroy of the per-thread stream", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->stream_destroy(per_thread_stream()); }},
        {"stream_wait_event on no event", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->stream_wait_event(b.new_stream(), nullptr, 0); }},
        {"stream_wait_event with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_wait_event(b.new_stream(), b.new_event(), 0x80);
         }},
        {"stream_wait_event, external, outside a capture", CUDA_ERROR_ILLEGAL_STATE,
         [](driver_fixture& b) {
           return b.cu->stream_wait_event(b.new_stream(), b.new_event(), CU_EVENT_WAIT_EXTERNAL);
         }},
        {"stream_get_priority into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_get_priority(b.new_stream(), nullptr); }},
        {"stream_get_flags into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_get_flags(b.new_stream(), nullptr); }},
        {"stream_get_ctx into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_get_ctx(b.new_stream(), nullptr); }},
        {"stream_get_id into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_get_id(b.new_stream(), nullptr); }},
        {"launch_host_func(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->launch_host_func(b.new_stream(), nullptr, nullptr);
         }},
        {"stream_query without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           CUresult answer = CUDA_ERROR_UNKNOWN;
           std::thread{[&] { answer = b.cu->stream_query(nullptr); }}.join();
           return answer;
         }},
        {"stream_synchronize without a context", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           CUresult answer = CUDA_ERROR_UNKNOWN;
           std::thread{[&] { answer = b.cu->stream_synchronize(nullptr); }}.join();
           return answer;
         }},
        {"stream_wait_value32 at an odd address", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_wait_value32(b.new_stream(), b.new_memory(16) + 1, 0, 0);
         }},
        {"stream_wait_value32 with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_wait_value32(b.new_stream(), b.new_memory(16), 0, 0x80);
         }},
        {"stream_write_value32 at an odd address", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_write_value32(b.new_stream(), b.new_memory(16) + 1, 0, 0);
         }},
        {"stream_write_value32 to no memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_write_value32(b.new_stream(), 0, 0, 0); }},
        {"stream_attach_mem_async of memory that is not managed", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_attach_mem_async(b.new_stream(), b.new_memory(4096), 0,
                                                CU_MEM_ATTACH_GLOBAL);
         }},
        {"stream_attach_mem_async with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_attach_mem_async(b.new_stream(), b.new_managed(4096), 0, 0x80);
         }},
    }};

TEST_P(streams, refuses) { expect_refusals(streams_refusals, machine); }

TEST_P(streams, a_stream_knows_how_it_was_made) {
  int least = 0;
  int greatest = 0;
  WEIR_OK(cu->ctx_get_stream_priority_range(&least, &greatest));
  for (const unsigned flags : {unsigned{CU_STREAM_DEFAULT}, unsigned{CU_STREAM_NON_BLOCKING}}) {
    for (int priority = greatest; priority <= least; ++priority) {
      CUstream stream = nullptr;
      WEIR_OK(cu->stream_create_with_priority(&stream, flags, priority));
      unsigned its_flags = 99;
      int its_priority = 99;
      CUcontext its_context = nullptr;
      EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_flags(stream, &its_flags));
      EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_priority(stream, &its_priority));
      EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_ctx(stream, &its_context));
      EXPECT_EQ(flags, its_flags);
      EXPECT_EQ(priority, its_priority);
      EXPECT_EQ(context, its_context);
      WEIR_OK(cu->stream_destroy(stream));
    }
  }
}

TEST_P(streams, priorities_out_of_range_are_clamped) {
  int least = 0;
  int greatest = 0;
  WEIR_OK(cu->ctx_get_stream_priority_range(&least, &greatest));
  for (const auto& [priority, clamped] : {std::pair{-1000, greatest}, std::pair{1000, least}}) {
    CUstream stream = nullptr;
    WEIR_OK(cu->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, priority));
    int its_priority = 99;
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_priority(stream, &its_priority));
    EXPECT_EQ(clamped, its_priority);
    WEIR_OK(cu->stream_destroy(stream));
  }
}

TEST_P(streams, the_special_streams_answer_too) {
  for (const CUstream stream : {CUstream{nullptr}, legacy_stream(), per_thread_stream()}) {
    unsigned flags = 99;
    int priority = 99;
    CUcontext its_context = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_flags(stream, &flags));
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_priority(stream, &priority));
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_ctx(stream, &its_context));
    EXPECT_EQ(unsigned{CU_STREAM_DEFAULT}, flags);
    EXPECT_EQ(0, priority);
    EXPECT_EQ(context, its_context);
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_synchronize(stream));
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(stream));
  }
}

TEST_P(streams, ids_are_never_used_twice) {
  WEIR_NEEDS(stream_get_id);
  std::set<unsigned long long> seen;
  for (int i = 0; i < 50; ++i) {
    CUstream stream = nullptr;
    unsigned long long id = 0;
    WEIR_OK(cu->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    WEIR_OK(cu->stream_get_id(stream, &id));
    EXPECT_TRUE(seen.insert(id).second) << id;
    WEIR_OK(cu->stream_destroy(stream));
  }
}

TEST_P(streams, the_null_stream_is_the_legacy_one) {
  WEIR_NEEDS(stream_get_id);
  unsigned long long of_null = 0;
  unsigned long long of_legacy = 0;
  unsigned long long of_thread = 0;
  unsigned long long of_other_thread = 0;
  WEIR_OK(cu->stream_get_id(nullptr, &of_null));
  WEIR_OK(cu->stream_get_id(legacy_stream(), &of_legacy));
  WEIR_OK(cu->stream_get_id(per_thread_stream(), &of_thread));
  std::thread{[&] {
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_id(per_thread_stream(), &of_other_thread));
  }}.join();
  EXPECT_EQ(of_null, of_legacy);
  EXPECT_NE(of_legacy, of_thread);
  EXPECT_NE(of_other_thread, of_thread);
}

TEST_P(streams, work_in_one_stream_happens_in_order) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(16 * kib);
  constexpr std::size_t count = 4 * kib;
  for (word round = 0; round < 10; ++round) {
    WEIR_OK(fill(memory, round, count, stream));
    WEIR_OK(increment(memory, count, stream));
    WEIR_OK(cu->memset_d32_async(memory, 5, count / 2, stream));
    WEIR_OK(increment(memory, count, stream));
  }
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, mismatches(memory, 6, count / 2));
  EXPECT_EQ(0u, mismatches(memory + 2 * count, 11, count / 2));
}

TEST_P(streams, a_busy_stream_is_not_ready_and_others_go_on) {
  const CUstream busy = new_stream();
  const CUstream other = new_stream();
  const CUdeviceptr memory = new_memory(4 * kib);
  auto held = occupy(busy);
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(busy));
  WEIR_OK(fill(memory, 7, kib, other));
  EXPECT_TRUE(comes_to_rest(other));
  EXPECT_TRUE(stays_busy(busy));
  held->finish();
  WEIR_OK(cu->stream_synchronize(busy));
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(busy));
  EXPECT_EQ(0u, mismatches(memory, 7, kib));
}

TEST_P(streams, the_legacy_stream_waits_for_blocking_streams) {
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  const CUdeviceptr memory = new_memory(4 * kib);
  auto held = occupy(blocking);
  WEIR_OK(fill(memory, 1, kib, blocking));
  WEIR_OK(increment(memory, kib, nullptr));
  EXPECT_TRUE(stays_busy(nullptr));
  held->finish();
  WEIR_OK(cu->stream_synchronize(nullptr));
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(blocking));
  EXPECT_EQ(0u, mismatches(memory, 2, kib));
}

TEST_P(streams, blocking_streams_wait_for_the_legacy_stream) {
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  const CUdeviceptr memory = new_memory(4 * kib);
  WEIR_OK(cu->stream_synchronize(nullptr));
  auto held = occupy(nullptr);
  WEIR_OK(fill(memory, 1, kib, nullptr));
  WEIR_OK(increment(memory, kib, blocking));
  EXPECT_TRUE(stays_busy(blocking));
  held->finish();
  WEIR_OK(cu->stream_synchronize(blocking));
  EXPECT_EQ(0u, mismatches(memory, 2, kib));
}

TEST_P(streams, non_blocking_streams_and_the_legacy_stream_ignore_each_other) {
  const CUstream free_one = new_stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr memory = new_memory(4 * kib);
  {
    auto held = occupy(free_one);
    WEIR_OK(fill(memory, 3, kib, nullptr));
    EXPECT_TRUE(comes_to_rest(nullptr));
    EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(free_one));
  }
  WEIR_OK(cu->ctx_synchronize());
  auto held = occupy(nullptr);
  WEIR_OK(fill(memory, 4, kib, free_one));
  EXPECT_TRUE(comes_to_rest(free_one));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(nullptr));
  held->finish();
  EXPECT_EQ(0u, mismatches(memory, 4, kib));
}

TEST_P(streams, the_per_thread_stream_blocks_on_the_legacy_stream_only) {
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  const CUdeviceptr memory = new_memory(4 * kib);
  {
    auto held = occupy(blocking);
    WEIR_OK(fill(memory, 5, kib, per_thread_stream()));
    EXPECT_TRUE(comes_to_rest(per_thread_stream()));
  }
  WEIR_OK(cu->ctx_synchronize());
  auto held = occupy(nullptr);
  WEIR_OK(fill(memory, 6, kib, per_thread_stream()));
  EXPECT_TRUE(stays_busy(per_thread_stream()));
  held->finish();
  WEIR_OK(cu->stream_synchronize(per_thread_stream()));
  EXPECT_EQ(0u, mismatches(memory, 6, kib));
}

TEST_P(streams, two_threads_have_two_per_thread_streams) {
  const CUdeviceptr memory = new_memory(4 * kib);
  auto held = occupy(per_thread_stream());
  std::thread{[&] {
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
    EXPECT_EQ(CUDA_SUCCESS, fill(memory, 8, kib, per_thread_stream()));
    EXPECT_TRUE(comes_to_rest(per_thread_stream()));
  }}.join();
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(per_thread_stream()));
  held->finish();
  EXPECT_EQ(0u, mismatches(memory, 8, kib));
}

TEST_P(streams, a_destroyed_stream_finishes_its_work) {
  const CUdeviceptr memory = new_memory(4 * kib);
  CUstream stream = nullptr;
  WEIR_OK(cu->stream_create(&stream, CU_STREAM_NON_BLOCKING));
  WEIR_OK(spin(milliseconds{5}, stream));
  WEIR_OK(fill(memory, 9, kib, stream));
  WEIR_OK(cu->stream_destroy(stream));
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_EQ(0u, mismatches(memory, 9, kib));
}

TEST_P(streams, host_functions_run_in_stream_order) {
  const CUstream stream = new_stream();
  word* const shared = new_pinned(4 * kib);
  const CUdeviceptr memory = new_memory(4 * kib);
  struct notes {
    word* shared;
    std::array<word, 2> seen{};
    std::atomic<int> calls{0};
  } notes{.shared = shared};
  const auto look = [](void* data) {
    auto& all = *static_cast<struct notes*>(data);
    all.seen[static_cast<std::size_t>(all.calls++)] = all.shared[kib - 1];
  };
  WEIR_OK(spin(milliseconds{2}, stream));
  WEIR_OK(fill(memory, 21, kib, stream));
  WEIR_OK(cu->memcpy_dtoh_async(shared, memory, 4 * kib, stream));
  WEIR_OK(cu->launch_host_func(stream, look, &notes));
  WEIR_OK(increment(memory, kib, stream));
  WEIR_OK(cu->memcpy_dtoh_async(shared, memory, 4 * kib, stream));
  WEIR_OK(cu->launch_host_func(stream, look, &notes));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(2, notes.calls.load());
  EXPECT_EQ((std::array<word, 2>{21, 22}), notes.seen);
}

TEST_P(streams, a_host_function_waits_for_the_work_before_it) {
  const CUstream stream = new_stream();
  std::atomic<bool> ran{false};
  auto held = occupy(stream);
  WEIR_OK(cu->launch_host_func(
      stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &ran));
  EXPECT_TRUE(stays_busy(stream));
  EXPECT_FALSE(ran);
  held->finish();
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_TRUE(ran);
}

TEST_P(streams, host_functions_take_a_null_argument) {
  const CUstream stream = new_stream();
  WEIR_OK(cu->launch_host_func(stream, &nothing, nullptr));
  WEIR_OK(cu->stream_synchronize(stream));
}

TEST_P(streams, values_in_memory_hold_and_release_a_stream) {
  WEIR_NEEDS(stream_wait_value32);
  const CUstream waiting = new_stream();
  const CUstream writing = new_stream();
  const CUdeviceptr flag = new_memory(16);
  const CUdeviceptr memory = new_memory(4 * kib);
  WEIR_OK(cu->memset_d32(flag, 0, 4));
  WEIR_OK(cu->ctx_synchronize());
  WEIR_OK(cu->stream_wait_value32(waiting, flag, 3, CU_STREAM_WAIT_VALUE_GEQ));
  WEIR_OK(fill(memory, 11, kib, waiting));
  EXPECT_TRUE(stays_busy(waiting));
  WEIR_OK(cu->stream_write_value32(writing, flag, 2, CU_STREAM_WRITE_VALUE_DEFAULT));
  WEIR_OK(cu->stream_synchronize(writing));
  EXPECT_TRUE(stays_busy(waiting));
  WEIR_OK(cu->stream_write_value32(writing, flag, 3, CU_STREAM_WRITE_VALUE_DEFAULT));
  WEIR_OK(cu->stream_synchronize(writing));
  WEIR_OK(cu->stream_synchronize(waiting));
  EXPECT_EQ(3u, words(flag, 1)[0]);
  EXPECT_EQ(0u, mismatches(memory, 11, kib));
}

TEST_P(streams, each_way_of_comparing_a_value) {
  WEIR_NEEDS(stream_wait_value32);
  const CUstream stream = new_stream();
  const CUdeviceptr flag = new_memory(16);
  const auto passes = [&](word held, word expected, unsigned flags) {
    EXPECT_EQ(CUDA_SUCCESS, cu->memset_d32(flag, held, 1));
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_wait_value32(stream, flag, expected, flags));
    const bool through = !stays_busy(stream);
    // Whatever is waited for, one of these lets it through.
    for (const word value : {expected, word{0xffffffff}, word{0}}) {
      if (cu->stream_query(stream) == CUDA_SUCCESS) break;
      const CUstream writing = new_stream();
      EXPECT_EQ(CUDA_SUCCESS, cu->stream_write_value32(writing, flag, value, 0));
      EXPECT_EQ(CUDA_SUCCESS, cu->stream_synchronize(writing));
      if (comes_to_rest(stream)) break;
    }
    return through;
  };
  EXPECT_TRUE(passes(5, 4, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_FALSE(passes(3, 4, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_TRUE(passes(4, 4, CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_FALSE(passes(5, 4, CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_TRUE(passes(6, 4, CU_STREAM_WAIT_VALUE_AND));
  EXPECT_FALSE(passes(3, 4, CU_STREAM_WAIT_VALUE_AND));
}

TEST_P(streams, managed_memory_can_be_attached) {
  const CUstream stream = new_stream();
  const CUdeviceptr managed = new_managed(64 * kib);
  WEIR_OK(cu->stream_attach_mem_async(stream, managed, 0, CU_MEM_ATTACH_SINGLE));
  WEIR_OK(cu->stream_synchronize(stream));
  WEIR_OK(fill(managed, 13, 16 * kib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, mismatches(managed, 13, 16 * kib));
  WEIR_OK(cu->stream_attach_mem_async(stream, managed, 0, CU_MEM_ATTACH_GLOBAL));
  WEIR_OK(cu->stream_synchronize(stream));
}

}  // namespace
}  // namespace weir::testing_support
