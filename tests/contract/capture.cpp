// SPDX-License-Identifier: Apache-2.0
// Contract: capturing streams into graphs: modes, forks and joins, and what spoils a capture.
#include <array>
#include <thread>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

constexpr auto global = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto thread_local_mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

class capture : public contract_test {
 protected:
  CUstreamCaptureStatus status(CUstream stream) {
    auto value = static_cast<CUstreamCaptureStatus>(99);
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_is_capturing(stream, &value));
    return value;
  }
  std::uint64_t capture_id(CUstream stream) {
    CUstreamCaptureStatus now{};
    std::uint64_t id = 0;
    EXPECT_EQ(CUDA_SUCCESS,
              cu->stream_get_capture_info(stream, &now, &id, nullptr, nullptr, nullptr));
    return id;
  }
  std::vector<CUgraphNodeType> node_types(CUgraph graph) {
    std::size_t count = 0;
    EXPECT_EQ(CUDA_SUCCESS, cu->graph_get_nodes(graph, nullptr, &count));
    std::vector<CUgraphNode> nodes(count);
    EXPECT_EQ(CUDA_SUCCESS, cu->graph_get_nodes(graph, nodes.data(), &count));
    std::vector<CUgraphNodeType> types;
    for (const CUgraphNode node : nodes) {
      CUgraphNodeType type{};
      EXPECT_EQ(CUDA_SUCCESS, cu->graph_node_get_type(node, &type));
      types.push_back(type);
    }
    return types;
  }
  std::size_t edge_count(CUgraph graph) {
    std::size_t count = 0;
    EXPECT_EQ(CUDA_SUCCESS, cu->graph_get_edges(graph, nullptr, nullptr, &count));
    return count;
  }
};
WEIR_CONTRACT(capture);

/// What `call` answers while a new stream is being captured; the capture is ended whatever became
/// of it.
template <class Call>
CUresult during_capture(driver_fixture& b, CUstreamCaptureMode mode, Call call,
                        unsigned stream_flags = CU_STREAM_NON_BLOCKING) {
  const CUstream stream = b.new_stream(stream_flags);
  if (const CUresult begun = b.cu->stream_begin_capture(stream, mode); begun != CUDA_SUCCESS)
    return CUDA_ERROR_UNKNOWN;
  const CUresult answer = call(stream);
  CUgraph graph = nullptr;
  b.cu->stream_end_capture(stream, &graph);
  if (graph != nullptr) b.cu->graph_destroy(graph);
  return answer;
}

const refusal_list capture_refusals{
    "capture",
    {
        {"stream_begin_capture of the null stream", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) { return b.cu->stream_begin_capture(nullptr, relaxed); }},
        {"stream_begin_capture of the legacy stream", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) { return b.cu->stream_begin_capture(legacy_stream(), relaxed); }},
        {"stream_begin_capture in no mode", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_begin_capture(b.new_stream(), static_cast<CUstreamCaptureMode>(9));
         }},
        {"stream_begin_capture twice", CUDA_ERROR_ILLEGAL_STATE,
         [](driver_fixture& b) {
           return during_capture(b, relaxed, [&](CUstream stream) {
             return b.cu->stream_begin_capture(stream, relaxed);
           });
         }},
        {"stream_end_capture without a beginning", CUDA_ERROR_ILLEGAL_STATE,
         [](driver_fixture& b) {
           CUgraph graph = nullptr;
           return b.cu->stream_end_capture(b.new_stream(), &graph);
         }},
        {"stream_is_capturing into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->stream_is_capturing(b.new_stream(), nullptr); }},
        {"stream_get_capture_info into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->stream_get_capture_info(b.new_stream(), nullptr, nullptr, nullptr, nullptr,
                                                nullptr);
         }},
        {"stream_update_capture_dependencies without a capture", CUDA_ERROR_ILLEGAL_STATE,
         [](driver_fixture& b) {
           return b.cu->stream_update_capture_dependencies(b.new_stream(), nullptr, 0,
                                                           CU_STREAM_SET_CAPTURE_DEPENDENCIES);
         }},
        {"stream_update_capture_dependencies with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return during_capture(b, relaxed, [&](CUstream stream) {
             return b.cu->stream_update_capture_dependencies(stream, nullptr, 0, 0x80);
           });
         }},
        {"stream_synchronize of a stream in capture", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, relaxed,
                                 [&](CUstream stream) { return b.cu->stream_synchronize(stream); });
         }},
        {"stream_query of a stream in capture", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, relaxed,
                                 [&](CUstream stream) { return b.cu->stream_query(stream); });
         }},
        {"event_query of an event recorded in a capture", CUDA_ERROR_CAPTURED_EVENT,
         [](driver_fixture& b) {
           const CUevent event = b.new_event();
           return during_capture(b, relaxed, [&](CUstream stream) {
             b.cu->event_record(event, stream);
             return b.cu->event_query(event);
           });
         }},
        {"event_synchronize on an event recorded in a capture", CUDA_ERROR_CAPTURED_EVENT,
         [](driver_fixture& b) {
           const CUevent event = b.new_event();
           return during_capture(b, relaxed, [&](CUstream stream) {
             b.cu->event_record(event, stream);
             return b.cu->event_synchronize(event);
           });
         }},
        {"event_query while a global capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUevent event = b.new_event();
           return during_capture(b, global, [&](CUstream) { return b.cu->event_query(event); });
         }},
        {"mem_alloc while a global capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, global, [&](CUstream) {
             CUdeviceptr memory = 0;
             return b.cu->mem_alloc(&memory, 4096);
           });
         }},
        {"mem_alloc while this thread's capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, thread_local_mode, [&](CUstream) {
             CUdeviceptr memory = 0;
             return b.cu->mem_alloc(&memory, 4096);
           });
         }},
        {"mem_free of null while a global capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, global, [&](CUstream) { return b.cu->mem_free(0); });
         }},
        {"mem_host_alloc while a global capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, global, [&](CUstream) {
             void* pointer = nullptr;
             return b.cu->mem_host_alloc(&pointer, 4096, 0);
           });
         }},
        {"mem_alloc_managed while a global capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, global, [&](CUstream) {
             CUdeviceptr memory = 0;
             return b.cu->mem_alloc_managed(&memory, 4096, CU_MEM_ATTACH_GLOBAL);
           });
         }},
        {"stream_query of another stream while a global capture runs",
         CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUstream other = b.new_stream();
           return during_capture(b, global, [&](CUstream) { return b.cu->stream_query(other); });
         }},
        {"stream_query of the legacy stream while a blocking stream is captured",
         CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
         [](driver_fixture& b) {
           return during_capture(
               b, relaxed, [&](CUstream) { return b.cu->stream_query(nullptr); },
               CU_STREAM_DEFAULT);
         }},
        {"stream_get_id of a stream in capture", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, relaxed, [&](CUstream stream) {
             unsigned long long id = 0;
             return b.cu->stream_get_id(stream, &id);
           });
         }},
        {"mem_alloc_async on another stream while a global capture runs",
         CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUstream other = b.new_stream();
           return during_capture(b, global, [&](CUstream) {
             CUdeviceptr memory = 0;
             return b.cu->mem_alloc_async(&memory, 4096, other);
           });
         }},
        {"mem_free_async on another stream while a global capture runs",
         CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUstream other = b.new_stream();
           CUdeviceptr memory = 0;
           b.cu->mem_alloc_async(&memory, 4096, other);
           const CUresult answer = during_capture(
               b, global, [&](CUstream) { return b.cu->mem_free_async(memory, other); });
           b.cu->mem_free_async(memory, other);
           return answer;
         }},
        {"mem_pool_get_attribute while a global capture runs",
         CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUmemoryPool pool = b.new_pool();
           return during_capture(b, global, [&](CUstream) {
             std::uint64_t value = 0;
             return b.cu->mem_pool_get_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
           });
         }},
        {"mem_pool_trim_to while a global capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUmemoryPool pool = b.new_pool();
           return during_capture(b, global,
                                 [&](CUstream) { return b.cu->mem_pool_trim_to(pool, 0); });
         }},
        {"graph_instantiate while a global capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           CUgraph graph = nullptr;
           b.cu->graph_create(&graph, 0);
           b.defer([&b, graph] { b.cu->graph_destroy(graph); });
           return during_capture(b, global, [&](CUstream) {
             CUgraphExec exec = nullptr;
             return b.cu->graph_instantiate(&exec, graph, 0);
           });
         }},
        {"mem_prefetch_async in a capture", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUdeviceptr managed = b.new_managed(4096);
           return during_capture(b, relaxed, [&](CUstream stream) {
             return b.cu->mem_prefetch_async(managed, 4096, b.here(), 0, stream);
           });
         }},
        {"stream_attach_mem_async in a capture", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           const CUdeviceptr managed = b.new_managed(4096);
           return during_capture(b, relaxed, [&](CUstream stream) {
             return b.cu->stream_attach_mem_async(stream, managed, 0, CU_MEM_ATTACH_GLOBAL);
           });
         }},
        {"a blocking copy while a blocking stream is captured", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
         [](driver_fixture& b) {
           const CUdeviceptr memory = b.new_memory(64);
           return during_capture(
               b, relaxed,
               [&](CUstream) {
                 word host[16] = {};
                 return b.cu->memcpy_htod(memory, host, 64);
               },
               CU_STREAM_DEFAULT);
         }},
        {"ctx_synchronize while a relaxed capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, relaxed, [&](CUstream) { return b.cu->ctx_synchronize(); });
         }},
        {"event_query of a captured event while a global capture runs", CUDA_ERROR_CAPTURED_EVENT,
         [](driver_fixture& b) {
           const CUevent event = b.new_event();
           return during_capture(b, global, [&](CUstream stream) {
             b.cu->event_record(event, stream);
             return b.cu->event_query(event);
           });
         }},
        {"ctx_synchronize while a capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           return during_capture(b, global, [&](CUstream) { return b.cu->ctx_synchronize(); });
         }},
        {"ctx_record_event while a capture runs", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         [](driver_fixture& b) {
           if (b.cu->ctx_record_event == nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
           const CUevent event = b.new_event();
           CUcontext context = nullptr;
           b.cu->ctx_get_current(&context);
           return during_capture(b, relaxed,
                                 [&](CUstream) { return b.cu->ctx_record_event(context, event); });
         }},
        {"work in the legacy stream while a blocking stream is captured",
         CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
         [](driver_fixture& b) {
           const CUdeviceptr memory = b.new_memory(4096);
           return during_capture(
               b, relaxed, [&](CUstream) { return b.fill(memory, 1, 16, nullptr); },
               CU_STREAM_DEFAULT);
         }},
        {"stream_is_capturing of the legacy stream while a blocking stream is captured",
         CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
         [](driver_fixture& b) {
           return during_capture(
               b, relaxed,
               [&](CUstream) {
                 CUstreamCaptureStatus status{};
                 return b.cu->stream_is_capturing(nullptr, &status);
               },
               CU_STREAM_DEFAULT);
         }},
        {"a wait in a capture for a record outside it", CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
         [](driver_fixture& b) {
           const CUevent event = b.new_event();
           b.cu->event_record(event, b.new_stream());
           return during_capture(b, relaxed, [&](CUstream stream) {
             return b.cu->stream_wait_event(stream, event, 0);
           });
         }},
        {"mem_free_async in a capture of memory from outside it", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr memory = 0;
           b.cu->mem_alloc_async(&memory, 4096, nullptr);
           b.cu->ctx_synchronize();
           const CUresult answer = during_capture(
               b, relaxed, [&](CUstream stream) { return b.cu->mem_free_async(memory, stream); });
           b.cu->mem_free_async(memory, nullptr);
           return answer;
         }},
        {"joining two captures", CUDA_ERROR_STREAM_CAPTURE_MERGE,
         [](driver_fixture& b) {
           const CUevent event = b.new_event();
           return during_capture(b, relaxed, [&](CUstream first) {
             return during_capture(b, relaxed, [&](CUstream second) {
               b.cu->event_record(event, second);
               return b.cu->stream_wait_event(first, event, 0);
             });
           });
         }},
    }};

TEST_P(capture, refuses) { expect_refusals(capture_refusals, machine); }

TEST_P(capture, the_calling_threads_mode_is_global_at_first) {
  CUstreamCaptureMode mode = relaxed;
  WEIR_OK(cu->thread_exchange_stream_capture_mode(&mode));
  EXPECT_EQ(global, mode);
  WEIR_OK(cu->thread_exchange_stream_capture_mode(&mode));
  EXPECT_EQ(relaxed, mode);
}

TEST_P(capture, nothing_runs_until_the_graph_is_launched) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(4 * kib);
  WEIR_OK(cu->memset_d32(memory, 0, kib));
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(stream));
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(stream));
  WEIR_OK(increment(memory, kib, stream));
  const CUgraph graph = end_capture(stream);
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(stream));
  EXPECT_EQ(0u, mismatches(memory, 0, kib));
  const CUgraphExec exec = new_exec(graph);
  for (int i = 0; i < 5; ++i) WEIR_OK(cu->graph_launch(exec, stream));
  EXPECT_EQ(0u, mismatches(memory, 5, kib));
}

TEST_P(capture, work_becomes_nodes_in_a_chain) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(4 * kib);
  word* const host = new_pinned(4 * kib);
  WEIR_OK(cu->stream_begin_capture(stream, global));
  WEIR_OK(cu->memset_d32_async(memory, 7, kib, stream));
  WEIR_OK(increment(memory, kib, stream));
  WEIR_OK(cu->memcpy_dtoh_async(host, memory, 4 * kib, stream));
  WEIR_OK(cu->launch_host_func(
      stream, [](void*) {}, nullptr));
  const CUgraph graph = end_capture(stream);
  EXPECT_EQ((std::vector{CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_KERNEL,
                         CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_HOST}),
            node_types(graph));
  EXPECT_EQ(3u, edge_count(graph));
  WEIR_OK(cu->graph_launch(new_exec(graph), stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(8u, host[0]);
}

TEST_P(capture, an_empty_capture_is_an_empty_graph) {
  const CUstream stream = new_stream();
  WEIR_OK(cu->stream_begin_capture(stream, global));
  const CUgraph graph = end_capture(stream);
  ASSERT_NE(nullptr, graph);
  EXPECT_TRUE(node_types(graph).empty());
}

TEST_P(capture, the_per_thread_stream_can_be_captured) {
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(cu->stream_begin_capture(per_thread_stream(), relaxed));
  WEIR_OK(fill(memory, 3, 16, per_thread_stream()));
  const CUgraph graph = end_capture(per_thread_stream());
  WEIR_OK(cu->graph_launch(new_exec(graph), per_thread_stream()));
  EXPECT_EQ(0u, mismatches(memory, 3, 16));
}

TEST_P(capture, a_wait_draws_another_stream_in) {
  WEIR_NEEDS(stream_get_capture_info);
  const CUstream origin = new_stream();
  const CUstream side = new_stream();
  const CUevent fork = new_event();
  const CUevent join = new_event();
  const CUdeviceptr memory = new_memory(8 * kib);
  WEIR_OK(cu->stream_begin_capture(origin, relaxed));
  WEIR_OK(cu->memset_d32_async(memory, 0, 2 * kib, origin));
  WEIR_OK(cu->event_record(fork, origin));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(side));
  WEIR_OK(cu->stream_wait_event(side, fork, 0));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(side));
  EXPECT_EQ(capture_id(origin), capture_id(side));
  WEIR_OK(fill(memory, 1, kib, origin));
  WEIR_OK(fill(memory + 4 * kib, 1, kib, side));
  WEIR_OK(cu->event_record(join, side));
  WEIR_OK(cu->stream_wait_event(origin, join, 0));
  WEIR_OK(increment(memory, 2 * kib, origin));
  const CUgraph graph = end_capture(origin);
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(side));
  EXPECT_EQ(4u, node_types(graph).size());
  EXPECT_EQ(4u, edge_count(graph));
  WEIR_OK(cu->graph_launch(new_exec(graph), origin));
  EXPECT_EQ(0u, mismatches(memory, 2, 2 * kib));
}

TEST_P(capture, a_stream_that_was_drawn_in_must_be_joined) {
  const CUstream origin = new_stream();
  const CUstream side = new_stream();
  const CUevent fork = new_event();
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(cu->stream_begin_capture(origin, relaxed));
  WEIR_OK(cu->event_record(fork, origin));
  WEIR_OK(cu->stream_wait_event(side, fork, 0));
  WEIR_OK(fill(memory, 1, 16, side));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cu->stream_end_capture(origin, &graph));
  EXPECT_EQ(nullptr, graph);
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(origin));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(side));
}

TEST_P(capture, a_capture_ends_on_the_stream_it_began_on) {
  const CUstream origin = new_stream();
  const CUstream side = new_stream();
  const CUevent fork = new_event();
  WEIR_OK(cu->stream_begin_capture(origin, relaxed));
  WEIR_OK(cu->event_record(fork, origin));
  WEIR_OK(cu->stream_wait_event(side, fork, 0));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cu->stream_end_capture(side, &graph));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu->stream_end_capture(origin, &graph));
  EXPECT_EQ(nullptr, graph);
}

TEST_P(capture, a_forbidden_call_spoils_it) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(cu->stream_begin_capture(stream, global));
  WEIR_OK(fill(memory, 1, 16, stream));
  CUdeviceptr more = 0;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->mem_alloc(&more, 4096));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_INVALIDATED, status(stream));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, fill(memory, 2, 16, stream));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu->stream_end_capture(stream, &graph));
  EXPECT_EQ(nullptr, graph);
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(stream));
  // The stream is as good as new.
  WEIR_OK(fill(memory, 3, 16, stream));
  EXPECT_EQ(0u, mismatches(memory, 3, 16));
}

TEST_P(capture, a_query_of_a_captured_event_spoils_it) {
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  WEIR_OK(cu->event_record(event, stream));
  EXPECT_EQ(CUDA_ERROR_CAPTURED_EVENT, cu->event_query(event));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu->stream_end_capture(stream, &graph));
}

TEST_P(capture, an_id_asked_for_in_a_capture_spoils_it) {
  WEIR_NEEDS(stream_get_id);
  const CUstream stream = new_stream();
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  unsigned long long id = 0;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->stream_get_id(stream, &id));
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu->stream_end_capture(stream, &graph));
  WEIR_OK(cu->stream_get_id(stream, &id));
}

TEST_P(capture, the_status_of_the_legacy_stream_can_be_asked_without_harm) {
  const CUstream stream = new_stream(CU_STREAM_DEFAULT);
  WEIR_OK(cu->stream_begin_capture(stream, global));
  CUstreamCaptureStatus of_legacy{};
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu->stream_is_capturing(nullptr, &of_legacy));
  EXPECT_NE(nullptr, end_capture(stream));
}

TEST_P(capture, what_never_spoils_it) {
  const std::size_t unit = granularity();
  const CUdeviceptr range = new_range(2 * unit);
  const CUstream other = new_stream();
  const CUdeviceptr memory = new_memory(64);
  for (const auto mode : {global, thread_local_mode, relaxed}) {
    const CUstream stream = new_stream();
    WEIR_OK(cu->stream_begin_capture(stream, mode));
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_get_info(&free, &total));
    // Virtual memory, from the handle to the rights.
    const auto request = properties();
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr more = 0;
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_address_reserve(&more, unit, 0, 0, 0));
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_create(&handle, unit, &request, 0));
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_map(range, unit, 0, handle, 0));
    const CUmemAccessDesc access{here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_set_access(range, unit, &access, 1));
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_unmap(range, unit));
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_release(handle));
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_address_free(more, unit));
    // Streams and events, and work that has nothing to do with the capture.
    [[maybe_unused]] const CUstream another = new_stream();
    const CUevent event = new_event();
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_wait_event(stream, event, 0));
    EXPECT_EQ(CUDA_SUCCESS, cu->event_record(event, other));
    EXPECT_EQ(CUDA_SUCCESS, fill(memory, 1, 16, other));
    unsigned long long id = 0;
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_get_id(other, &id));
    int type = 0;
    EXPECT_EQ(CUDA_SUCCESS,
              cu->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
    EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(stream)) << mode;
    EXPECT_NE(nullptr, end_capture(stream));
  }
}

TEST_P(capture, a_relaxed_thread_may_allocate) {
  for (const auto mode : {global, thread_local_mode}) {
    const CUstream stream = new_stream();
    WEIR_OK(cu->stream_begin_capture(stream, mode));
    CUstreamCaptureMode thread_mode = relaxed;
    WEIR_OK(cu->thread_exchange_stream_capture_mode(&thread_mode));
    CUdeviceptr memory = 0;
    WEIR_OK(cu->mem_alloc(&memory, 4096));
    WEIR_OK(cu->thread_exchange_stream_capture_mode(&thread_mode));
    EXPECT_NE(nullptr, end_capture(stream));
    WEIR_OK(cu->mem_free(memory));
  }
}

TEST_P(capture, a_relaxed_capture_lets_its_thread_allocate_and_query) {
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  CUdeviceptr memory = 0;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_alloc(&memory, 4096));
  EXPECT_EQ(CUDA_SUCCESS, cu->event_query(event));
  EXPECT_NE(nullptr, end_capture(stream));
  WEIR_OK(cu->mem_free(memory));
}

TEST_P(capture, other_threads_are_forbidden_only_by_a_global_capture) {
  for (const auto mode : {global, thread_local_mode, relaxed}) {
    const CUstream stream = new_stream();
    WEIR_OK(cu->stream_begin_capture(stream, mode));
    CUresult elsewhere = CUDA_ERROR_UNKNOWN;
    CUdeviceptr memory = 0;
    std::thread{[&] {
      EXPECT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
      elsewhere = cu->mem_alloc(&memory, 4096);
    }}.join();
    CUgraph graph = nullptr;
    const CUresult ended = cu->stream_end_capture(stream, &graph);
    if (mode == global) {
      EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, elsewhere);
      EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended);
    } else {
      EXPECT_EQ(CUDA_SUCCESS, elsewhere);
      EXPECT_EQ(CUDA_SUCCESS, ended);
      EXPECT_EQ(CUDA_SUCCESS, cu->graph_destroy(graph));
      EXPECT_EQ(CUDA_SUCCESS, cu->mem_free(memory));
    }
  }
}

TEST_P(capture, only_a_relaxed_capture_may_end_on_another_thread) {
  for (const auto mode : {global, thread_local_mode, relaxed}) {
    const CUstream stream = new_stream();
    WEIR_OK(cu->stream_begin_capture(stream, mode));
    CUresult ended = CUDA_ERROR_UNKNOWN;
    CUgraph graph = nullptr;
    std::thread{[&] {
      EXPECT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
      ended = cu->stream_end_capture(stream, &graph);
    }}.join();
    if (mode == relaxed) {
      EXPECT_EQ(CUDA_SUCCESS, ended);
      EXPECT_EQ(CUDA_SUCCESS, cu->graph_destroy(graph));
    } else {
      EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, ended);
      cu->stream_end_capture(stream, &graph);
      if (graph != nullptr) cu->graph_destroy(graph);
    }
  }
}

TEST_P(capture, each_capture_has_its_own_id) {
  WEIR_NEEDS(stream_get_capture_info);
  std::uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    const CUstream stream = new_stream();
    WEIR_OK(cu->stream_begin_capture(stream, relaxed));
    const std::uint64_t id = capture_id(stream);
    EXPECT_NE(last, id);
    last = id;
    EXPECT_NE(nullptr, end_capture(stream));
  }
}

TEST_P(capture, the_dependencies_of_the_next_node_can_be_read_and_changed) {
  WEIR_NEEDS(stream_get_capture_info);
  WEIR_NEEDS(stream_update_capture_dependencies);
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(192);
  CUstreamCaptureStatus now{};
  std::uint64_t id = 0;
  CUgraph under_way = nullptr;
  const CUgraphNode* dependencies = nullptr;
  std::size_t count = 99;
  const auto read = [&] {
    return cu->stream_get_capture_info(stream, &now, &id, &under_way, &dependencies, &count);
  };
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  WEIR_OK(read());
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, now);
  EXPECT_NE(nullptr, under_way);
  EXPECT_EQ(0u, count);
  WEIR_OK(fill(memory, 1, 16, stream));
  WEIR_OK(read());
  ASSERT_EQ(1u, count);
  CUgraphNode first = dependencies[0];
  // The next node shall depend on nothing.
  WEIR_OK(cu->stream_update_capture_dependencies(stream, nullptr, 0,
                                                 CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  WEIR_OK(fill(memory + 64, 2, 16, stream));
  EXPECT_EQ(0u, edge_count(under_way));
  // And the one after on both.
  WEIR_OK(cu->stream_update_capture_dependencies(stream, &first, 1,
                                                 CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  WEIR_OK(read());
  EXPECT_EQ(2u, count);
  WEIR_OK(increment(memory, 32, stream));
  const CUgraph graph = end_capture(stream);
  EXPECT_EQ(2u, edge_count(graph));
  WEIR_OK(cu->graph_launch(new_exec(graph), stream));
  EXPECT_EQ(0u, mismatches(memory, 2, 16));
  EXPECT_EQ(0u, mismatches(memory + 64, 3, 16));
}

TEST_P(capture, external_events_become_nodes) {
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  const CUevent start = new_event();
  const CUevent end = new_event();
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  WEIR_OK(cu->stream_wait_event(stream, start, CU_EVENT_WAIT_EXTERNAL));
  WEIR_OK(increment(memory, 16, stream));
  WEIR_OK(cu->event_record_with_flags(end, stream, CU_EVENT_RECORD_EXTERNAL));
  const CUgraph graph = end_capture(stream);
  EXPECT_EQ((std::vector{CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_KERNEL,
                         CU_GRAPH_NODE_TYPE_EVENT_RECORD}),
            node_types(graph));
  const CUgraphExec exec = new_exec(graph);
  // The launch waits for the event as it was last recorded, and records the other.
  auto held = occupy(other);
  WEIR_OK(fill(memory, 4, 16, other));
  WEIR_OK(cu->event_record(start, other));
  WEIR_OK(cu->graph_launch(exec, stream));
  EXPECT_TRUE(stays_busy(stream));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->event_query(end));
  held->finish();
  WEIR_OK(cu->event_synchronize(end));
  EXPECT_EQ(0u, mismatches(memory, 5, 16));
}

TEST_P(capture, no_graph_is_launched_in_one) {
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  WEIR_OK(fill(memory, 1, 16, stream));
  const CUgraphExec exec = new_exec(end_capture(stream));
  WEIR_OK(cu->stream_begin_capture(stream, relaxed));
  WEIR_OK(cu->graph_launch(exec, other));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->graph_launch(exec, stream));
  CUgraph none = nullptr;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu->stream_end_capture(stream, &none));
  EXPECT_EQ(0u, mismatches(memory, 1, 16));
}

TEST_P(capture, allocations_become_nodes) {
  const CUstream stream = new_stream();
  const CUdeviceptr result = new_memory(4 * kib);
  WEIR_OK(cu->stream_begin_capture(stream, global));
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_async(&memory, 4 * kib, stream));
  ASSERT_NE(0u, memory);
  WEIR_OK(fill(memory, 5, kib, stream));
  WEIR_OK(copy(result, memory, kib, stream));
  WEIR_OK(cu->mem_free_async(memory, stream));
  const CUgraph graph = end_capture(stream);
  EXPECT_EQ((std::vector{CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_KERNEL,
                         CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEM_FREE}),
            node_types(graph));
  const CUgraphExec exec = new_exec(graph);
  for (int i = 0; i < 3; ++i) {
    WEIR_OK(cu->memset_d32_async(result, 0, kib, stream));
    WEIR_OK(cu->graph_launch(exec, stream));
    EXPECT_EQ(0u, mismatches(result, 5, kib));
  }
}

TEST_P(capture, a_stream_may_be_captured_again_and_again) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(fill(memory, 0, 16, stream));
  for (int i = 0; i < 4; ++i) {
    WEIR_OK(cu->stream_begin_capture(stream, thread_local_mode));
    WEIR_OK(increment(memory, 16, stream));
    const CUgraph graph = end_capture(stream);
    WEIR_OK(cu->graph_launch(new_exec(graph), stream));
  }
  EXPECT_EQ(0u, mismatches(memory, 4, 16));
}

}  // namespace
}  // namespace weir::testing_support
