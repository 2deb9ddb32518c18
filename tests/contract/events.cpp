// SPDX-License-Identifier: Apache-2.0
// Contract: events, what a record and a wait mean, and the time between two of them.
#include <thread>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

using std::chrono::milliseconds;

class events : public contract_test {};
WEIR_CONTRACT(events);

const refusal_list events_refusals{
    "events",
    {
        {"event_create into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->event_create(nullptr, 0); }},
        {"event_create with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUevent event = nullptr;
           return b.cu->event_create(&event, 0x80);
         }},
        {"event_create, interprocess with timing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUevent event = nullptr;
           return b.cu->event_create(&event, CU_EVENT_INTERPROCESS);
         }},
        {"event_destroy(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->event_destroy(nullptr); }},
        {"event_record(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->event_record(nullptr, b.new_stream()); }},
        {"event_record_with_flags(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           return b.cu->event_record_with_flags(nullptr, b.new_stream(), 0);
         }},
        {"event_record_with_flags with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->event_record_with_flags(b.new_event(), b.new_stream(), 0x80);
         }},
        {"event_record_with_flags, external, outside a capture", CUDA_ERROR_ILLEGAL_STATE,
         [](driver_fixture& b) {
           return b.cu->event_record_with_flags(b.new_event(), b.new_stream(),
                                                CU_EVENT_RECORD_EXTERNAL);
         }},
        {"ctx_record_event(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           if (b.cu->ctx_record_event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
           CUcontext context = nullptr;
           b.cu->ctx_get_current(&context);
           return b.cu->ctx_record_event(context, nullptr);
         }},
        {"event_query(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->event_query(nullptr); }},
        {"event_synchronize(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->event_synchronize(nullptr); }},
        {"event_elapsed_time into null", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           const CUevent event = b.new_event(CU_EVENT_DEFAULT);
           b.cu->event_record(event, nullptr);
           b.cu->event_synchronize(event);
           return b.cu->event_elapsed_time(nullptr, event, event);
         }},
        {"event_elapsed_time of no events", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           float time = 0;
           return b.cu->event_elapsed_time(&time, nullptr, nullptr);
         }},
        {"event_elapsed_time of events never recorded", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           float time = 0;
           return b.cu->event_elapsed_time(&time, b.new_event(CU_EVENT_DEFAULT),
                                           b.new_event(CU_EVENT_DEFAULT));
         }},
        {"event_elapsed_time of events without timing", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           const CUevent first = b.new_event(CU_EVENT_DISABLE_TIMING);
           const CUevent second = b.new_event(CU_EVENT_DISABLE_TIMING);
           b.cu->event_record(first, nullptr);
           b.cu->event_record(second, nullptr);
           b.cu->event_synchronize(second);
           float time = 0;
           return b.cu->event_elapsed_time(&time, first, second);
         }},
    }};

TEST_P(events, refuses) { expect_refusals(events_refusals, machine); }

TEST_P(events, every_kind_can_be_made) {
  for (const unsigned flags : {0u, 1u, 2u, 3u, 6u, 7u}) {
    CUevent event = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cu->event_create(&event, flags)) << flags;
    EXPECT_EQ(CUDA_SUCCESS, cu->event_destroy(event));
  }
}

TEST_P(events, an_event_never_recorded_counts_as_complete) {
  const CUevent event = new_event();
  EXPECT_EQ(CUDA_SUCCESS, cu->event_query(event));
  EXPECT_EQ(CUDA_SUCCESS, cu->event_synchronize(event));
}

TEST_P(events, a_wait_for_an_event_never_recorded_holds_nothing) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(4 * kib);
  WEIR_OK(cu->stream_wait_event(stream, new_event(), CU_EVENT_WAIT_DEFAULT));
  WEIR_OK(fill(memory, 1, kib, stream));
  EXPECT_TRUE(comes_to_rest(stream));
  EXPECT_EQ(0u, mismatches(memory, 1, kib));
}

TEST_P(events, a_context_is_recorded_with_all_its_streams) {
  if (cu->ctx_record_event == nullptr) GTEST_SKIP() << "a driver before CUDA 12.5";
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const CUstream later = new_stream();
  const CUdeviceptr memory = new_memory(64 * kib);
  CUcontext context = nullptr;
  WEIR_OK(cu->ctx_get_current(&context));
  const CUevent event = new_event();
  WEIR_OK(fill(memory, 1, kib, first));
  auto held = occupy(second);
  WEIR_OK(fill(memory + 32 * kib, 2, kib, second));
  WEIR_OK(cu->ctx_record_event(context, event));
  auto unrelated = occupy(later);
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_query(event)) << "the second stream is not done";
  held->finish();
  EXPECT_EQ(CUDA_SUCCESS, cu->event_synchronize(event)) << "what was queued later does not count";
  unrelated->finish();
  EXPECT_EQ(0u, mismatches(memory, 1, kib));
  EXPECT_EQ(0u, mismatches(memory + 32 * kib, 2, kib));
}

TEST_P(events, an_event_completes_with_the_work_before_it) {
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  auto held = occupy(stream);
  WEIR_OK(cu->event_record(event, stream));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_query(event));
  EXPECT_TRUE(stays_busy(stream));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_query(event));
  held->finish();
  WEIR_OK(cu->event_synchronize(event));
  EXPECT_EQ(CUDA_SUCCESS, cu->event_query(event));
}

TEST_P(events, an_event_does_not_wait_for_the_work_after_it) {
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  WEIR_OK(cu->event_record(event, stream));
  WEIR_OK(cu->event_synchronize(event));
  auto held = occupy(stream);
  EXPECT_EQ(CUDA_SUCCESS, cu->event_query(event));
  EXPECT_EQ(CUDA_SUCCESS, cu->event_synchronize(event));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(stream));
}

TEST_P(events, a_consumer_sees_what_its_producer_wrote) {
  const CUstream producer = new_stream();
  const CUstream consumer = new_stream();
  const CUevent produced = new_event();
  const CUevent consumed = new_event();
  constexpr std::size_t count = 16 * kib;
  const CUdeviceptr memory = new_memory(count * sizeof(word));
  const CUdeviceptr wrong = new_memory(sizeof(word));
  WEIR_OK(cu->memset_d32(wrong, 0, 1));
  WEIR_OK(cu->ctx_synchronize());
  for (word round = 1; round <= 20; ++round) {
    WEIR_OK(spin(std::chrono::microseconds{50}, producer));
    WEIR_OK(fill(memory, round, count, producer));
    WEIR_OK(cu->event_record(produced, producer));
    WEIR_OK(cu->stream_wait_event(consumer, produced, CU_EVENT_WAIT_DEFAULT));
    WEIR_OK(check(memory, round, count, wrong, consumer));
    WEIR_OK(cu->event_record_with_flags(consumed, consumer, CU_EVENT_RECORD_DEFAULT));
    WEIR_OK(cu->stream_wait_event(producer, consumed, CU_EVENT_WAIT_DEFAULT));
  }
  EXPECT_EQ(0u, words(wrong, 1)[0]);
}

TEST_P(events, a_wait_keeps_the_record_it_was_given) {
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const CUstream waiting = new_stream();
  const CUevent event = new_event();
  const CUdeviceptr memory = new_memory(4 * kib);
  WEIR_OK(fill(memory, 1, kib, first));
  WEIR_OK(cu->event_record(event, first));
  WEIR_OK(cu->stream_wait_event(waiting, event, 0));
  WEIR_OK(increment(memory, kib, waiting));
  // Recorded again behind something that does not end: the wait above must not see it.
  auto held = occupy(second);
  WEIR_OK(cu->event_record(event, second));
  EXPECT_TRUE(comes_to_rest(waiting));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_query(event));
  held->finish();
  EXPECT_EQ(0u, mismatches(memory, 2, kib));
}

TEST_P(events, a_new_record_replaces_the_old_one) {
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const CUevent event = new_event();
  auto held = occupy(first);
  WEIR_OK(cu->event_record(event, first));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_query(event));
  WEIR_OK(cu->event_record(event, second));
  EXPECT_EQ(CUDA_SUCCESS, cu->event_synchronize(event));
  EXPECT_EQ(CUDA_SUCCESS, cu->event_query(event));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(first));
}

TEST_P(events, a_wait_outlives_its_event) {
  const CUstream first = new_stream();
  const CUstream waiting = new_stream();
  const CUdeviceptr memory = new_memory(4 * kib);
  CUevent event = nullptr;
  WEIR_OK(cu->event_create(&event, CU_EVENT_DISABLE_TIMING));
  auto held = occupy(first);
  WEIR_OK(fill(memory, 1, kib, first));
  WEIR_OK(cu->event_record(event, first));
  WEIR_OK(cu->stream_wait_event(waiting, event, 0));
  WEIR_OK(cu->event_destroy(event));
  WEIR_OK(increment(memory, kib, waiting));
  EXPECT_TRUE(stays_busy(waiting));
  held->finish();
  EXPECT_EQ(0u, mismatches(memory, 2, kib));
}

TEST_P(events, a_record_in_the_legacy_stream_waits_for_blocking_streams) {
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  const CUevent event = new_event();
  auto held = occupy(blocking);
  WEIR_OK(cu->event_record(event, nullptr));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_query(event));
    std::this_thread::sleep_for(milliseconds{1});
  }
  held->finish();
  WEIR_OK(cu->event_synchronize(event));
}

TEST_P(events, waits_join_many_streams) {
  constexpr int streams = 6;
  const CUstream joined = new_stream();
  const CUdeviceptr memory = new_memory(streams * 4 * kib);
  const CUdeviceptr wrong = new_memory(sizeof(word));
  WEIR_OK(cu->memset_d32(wrong, 0, 1));
  WEIR_OK(cu->ctx_synchronize());
  for (int i = 0; i < streams; ++i) {
    const CUstream one = new_stream(i % 2 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
    const CUevent done = new_event();
    WEIR_OK(spin(std::chrono::microseconds{300 - 50 * i}, one));
    WEIR_OK(fill(memory + static_cast<std::size_t>(i) * 4 * kib, 17, kib, one));
    WEIR_OK(cu->event_record(done, one));
    WEIR_OK(cu->stream_wait_event(joined, done, 0));
  }
  WEIR_OK(check(memory, 17, streams * kib, wrong, joined));
  EXPECT_EQ(0u, words(wrong, 1)[0]);
}

TEST_P(events, elapsed_time_is_not_ready_before_both_are_complete) {
  const CUstream stream = new_stream();
  const CUevent start = new_event(CU_EVENT_DEFAULT);
  const CUevent end = new_event(CU_EVENT_DEFAULT);
  WEIR_OK(cu->event_record(start, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  auto held = occupy(stream);
  WEIR_OK(cu->event_record(end, stream));
  float time = -1;
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_elapsed_time(&time, start, end));
  held->finish();
  WEIR_OK(cu->event_synchronize(end));
  WEIR_OK(cu->event_elapsed_time(&time, start, end));
  EXPECT_GE(time, 0.0f);
}

TEST_P(events, elapsed_time_grows_with_the_work_between) {
  const CUstream stream = new_stream();
  const CUevent start = new_event(CU_EVENT_DEFAULT);
  const CUevent end = new_event(CU_EVENT_BLOCKING_SYNC);
  WEIR_OK(cu->event_record(start, stream));
  WEIR_OK(spin(milliseconds{2}, stream));
  WEIR_OK(cu->event_record(end, stream));
  WEIR_OK(cu->event_synchronize(end));
  float time = -1;
  WEIR_OK(cu->event_elapsed_time(&time, start, end));
  EXPECT_GT(time, 0.0f);
  float back = 1;
  WEIR_OK(cu->event_elapsed_time(&back, end, start));
  EXPECT_FLOAT_EQ(-time, back);
}

}  // namespace
}  // namespace weir::testing_support
