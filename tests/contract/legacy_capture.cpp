// SPDX-License-Identifier: Apache-2.0
// Contract: the legacy stream while a blocking stream is captured, call by call.
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class legacy_capture : public contract_test {};
WEIR_CONTRACT(legacy_capture);

/// What calls need. It is made before the capture begins.
struct call_objects {
  explicit call_objects(driver_fixture& b)
      : event{b.new_event()},
        memory{b.new_memory(4096)},
        managed{b.new_managed(4096)},
        pinned{b.new_pinned(4096)},
        pool{b.new_pool()} {
    const CUstream other = b.new_stream();
    EXPECT_EQ(CUDA_SUCCESS, b.cu->event_record(event, other));
    EXPECT_EQ(CUDA_SUCCESS, b.cu->mem_alloc_from_pool_async(&pooled, 4096, pool, other));
    b.defer([this, &b] {
      if (pooled != 0) b.cu->mem_free_async(pooled, nullptr);
    });
    EXPECT_EQ(CUDA_SUCCESS, b.cu->stream_begin_capture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(CUDA_SUCCESS, b.fill(memory, 1, 16, other));
    exec = b.new_exec(b.end_capture(other));
    EXPECT_EQ(CUDA_SUCCESS, b.cu->memset_d8(memory, 0, 4096));
    EXPECT_EQ(CUDA_SUCCESS, b.cu->ctx_synchronize());
  }

  CUevent event;
  CUdeviceptr memory;
  CUdeviceptr managed;
  word* pinned;
  CUmemoryPool pool;
  CUdeviceptr pooled = 0;
  CUgraphExec exec = nullptr;
  char pageable[64] = {};
};

/// What a call on the legacy stream is while a blocking stream is captured. The documentation of
/// cuStreamIsCapturing: "When a blocking stream is capturing, the legacy stream is in an unusable
/// state until the blocking stream capture is terminated. The legacy stream is not supported for
/// stream capture, but attempted use would have an implicit dependency on the capturing stream(s)."
enum class call_kind {
  use,       ///< CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, and the capture is invalidated
  question,  ///< CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, and "the blocking stream capture is not
             ///< invalidated"
  other      ///< not a use of the legacy stream
};

struct legacy_call {
  std::string_view member;
  call_kind kind;
  std::function<CUresult(driver_fixture&, call_objects&, CUstream legacy)> make{};
};

CUresult copy_box(driver_fixture& b, call_objects& o, CUstream legacy) {
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = o.memory;
  box.dstDevice = o.memory + 2048;
  box.srcPitch = box.dstPitch = 64;
  box.WidthInBytes = 32;
  box.Height = 2;
  return b.cu->memcpy_2d_async(&box, legacy);
}

CUresult copy_cube(driver_fixture& b, call_objects& o, CUstream legacy) {
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = o.memory;
  box.dstDevice = o.memory + 2048;
  box.srcPitch = box.dstPitch = 64;
  box.srcHeight = box.dstHeight = 2;
  box.WidthInBytes = 32;
  box.Height = 2;
  box.Depth = 2;
  return b.cu->memcpy_3d_async(&box, legacy);
}

CUresult allocate_from(driver_fixture& b, CUmemoryPool pool, CUstream legacy) {
  CUdeviceptr made = 0;
  const CUresult answer = pool == nullptr
                              ? b.cu->mem_alloc_async(&made, 4096, legacy)
                              : b.cu->mem_alloc_from_pool_async(&made, 4096, pool, legacy);
  if (made != 0) b.defer([&b, made] { b.cu->mem_free_async(made, nullptr); });
  return answer;
}

/// Every call that takes a stream, and those that use the legacy stream without being told so.
const std::vector<legacy_call> legacy_calls{
    {"stream_destroy", call_kind::other},  // the default streams cannot be destroyed
    {"stream_query", call_kind::use,
     [](driver_fixture& b, call_objects&, CUstream legacy) { return b.cu->stream_query(legacy); }},
    {"stream_synchronize", call_kind::use,
     [](driver_fixture& b, call_objects&, CUstream legacy) {
       return b.cu->stream_synchronize(legacy);
     }},
    {"stream_wait_event", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->stream_wait_event(legacy, o.event, CU_EVENT_WAIT_DEFAULT);
     }},
    // How the stream was made; asking queues nothing and waits for nothing.
    {"stream_get_priority", call_kind::other},
    {"stream_get_flags", call_kind::other},
    {"stream_get_ctx", call_kind::other},
    // The driver takes this question for a use: it invalidates the capture of a captured stream.
    {"stream_get_id", call_kind::use,
     [](driver_fixture& b, call_objects&, CUstream legacy) {
       unsigned long long id = 0;
       return b.cu->stream_get_id(legacy, &id);
     }},
    {"stream_attach_mem_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->stream_attach_mem_async(legacy, o.managed, 0, CU_MEM_ATTACH_GLOBAL);
     }},
    {"launch_host_func", call_kind::use,
     [](driver_fixture& b, call_objects&, CUstream legacy) {
       return b.cu->launch_host_func(
           legacy, [](void*) {}, nullptr);
     }},
    {"stream_wait_value32", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->stream_wait_value32(legacy, o.memory, 0, CU_STREAM_WAIT_VALUE_GEQ);
     }},
    {"stream_write_value32", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->stream_write_value32(legacy, o.memory, 1, CU_STREAM_WRITE_VALUE_DEFAULT);
     }},
    {"event_record", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->event_record(o.event, legacy);
     }},
    {"event_record_with_flags", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->event_record_with_flags(o.event, legacy, CU_EVENT_RECORD_DEFAULT);
     }},
    // The legacy stream cannot be captured, whatever other streams do.
    {"stream_begin_capture", call_kind::other},
    {"stream_end_capture", call_kind::other},
    {"stream_update_capture_dependencies", call_kind::other},
    {"stream_is_capturing", call_kind::question,
     [](driver_fixture& b, call_objects&, CUstream legacy) {
       CUstreamCaptureStatus status{};
       return b.cu->stream_is_capturing(legacy, &status);
     }},
    {"stream_get_capture_info", call_kind::question,
     [](driver_fixture& b, call_objects&, CUstream legacy) {
       CUstreamCaptureStatus status{};
       return b.cu->stream_get_capture_info(legacy, &status, nullptr, nullptr, nullptr, nullptr);
     }},
    {"graph_upload", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->graph_upload(o.exec, legacy);
     }},
    {"graph_launch", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->graph_launch(o.exec, legacy);
     }},
    {"launch_kernel", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.fill(o.memory, 1, 16, legacy);
     }},
    {"mem_prefetch_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->mem_prefetch_async(o.managed, 4096, b.here(), 0, legacy);
     }},
    {"mem_prefetch_async_v1", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->mem_prefetch_async_v1(o.managed, 4096, b.device, legacy);
     }},
    {"mem_alloc_async", call_kind::use,
     [](driver_fixture& b, call_objects&, CUstream legacy) {
       return allocate_from(b, nullptr, legacy);
     }},
    {"mem_alloc_from_pool_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return allocate_from(b, o.pool, legacy);
     }},
    {"mem_free_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       const CUresult answer = b.cu->mem_free_async(o.pooled, legacy);
       if (answer == CUDA_SUCCESS) o.pooled = 0;
       return answer;
     }},
    {"memcpy_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memcpy_async(o.memory, o.memory + 2048, 64, legacy);
     }},
    {"memcpy_htod_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memcpy_htod_async(o.memory, o.pinned, 64, legacy);
     }},
    {"memcpy_dtoh_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memcpy_dtoh_async(o.pinned, o.memory, 64, legacy);
     }},
    {"memcpy_dtod_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memcpy_dtod_async(o.memory, o.memory + 2048, 64, legacy);
     }},
    {"memcpy_peer_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memcpy_peer_async(o.memory, b.context, o.memory + 2048, b.context, 64, legacy);
     }},
    {"memcpy_2d_async", call_kind::use, copy_box},
    {"memcpy_3d_async", call_kind::use, copy_cube},
    {"memcpy_batch_async", call_kind::other},  // takes no legacy stream
    {"memset_d8_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memset_d8_async(o.memory, 1, 64, legacy);
     }},
    {"memset_d32_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memset_d32_async(o.memory, 1, 16, legacy);
     }},
    {"memset_d2d8_async", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream legacy) {
       return b.cu->memset_d2d8_async(o.memory, 64, 1, 32, 2, legacy);
     }},
    // These use the legacy stream without being told so.
    {"memcpy_sync", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream) {
       return b.cu->memcpy_sync(o.memory, o.memory + 2048, 64);
     }},
    {"memcpy_htod", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream) {
       return b.cu->memcpy_htod(o.memory, o.pageable, 64);
     }},
    {"memcpy_dtoh", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream) {
       return b.cu->memcpy_dtoh(o.pageable, o.memory, 64);
     }},
    {"memcpy_dtod", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream) {
       return b.cu->memcpy_dtod(o.memory, o.memory + 2048, 64);
     }},
    {"memset_d8", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream) { return b.cu->memset_d8(o.memory, 1, 64); }},
    {"memset_d32", call_kind::use,
     [](driver_fixture& b, call_objects& o, CUstream) {
       return b.cu->memset_d32(o.memory, 1, 16);
     }},
};

/// Whether the driver has an optional row.
bool driver_has(const table& cu, std::string_view member) {
#define WEIR_DRIVER_CALL(name, symbol, version, exported, need, parameters) \
  if (member == #name) return cu.name != nullptr;
#include "weir/driver/calls.def"
  return false;
}

struct call_outcome {
  CUresult answer;
  CUresult end_of_capture;
};

/// Makes a call on the legacy stream while `captured` is captured.
call_outcome call_beside(driver_fixture& b, const legacy_call& call, CUstream captured,
                         CUstream legacy) {
  call_objects objects{b};
  EXPECT_EQ(CUDA_SUCCESS, b.cu->stream_begin_capture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  const CUresult answer = call.make(b, objects, legacy);
  CUgraph graph = nullptr;
  const CUresult ended = b.cu->stream_end_capture(captured, &graph);
  if (graph != nullptr) b.cu->graph_destroy(graph);
  b.clean_up();  // before the objects go
  return {answer, ended};
}

TEST_P(legacy_capture, TheTableHasEveryCallThatTakesAStream) {
  const auto rows_of = [](std::string_view member) {
    return std::count_if(legacy_calls.begin(), legacy_calls.end(),
                         [&](const legacy_call& each) { return each.member == member; });
  };
  const auto takes_stream = [](std::string_view parameters) {
    return parameters.find("CUstream ") != std::string_view::npos;
  };
#define WEIR_DRIVER_CALL(name, symbol, version, exported, need, parameters) \
  EXPECT_LE(takes_stream(#parameters) ? 1 : 0, rows_of(#name)) << #name;
#include "weir/driver/calls.def"
}

TEST_P(legacy_capture, BesideACapturedBlockingStreamEveryUseInvalidatesTheCapture) {
  for (const legacy_call& call : legacy_calls) {
    if (call.kind == call_kind::other || !driver_has(*cu, call.member)) continue;
    const CUresult ended =
        call.kind == call_kind::use ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    for (const CUstream legacy : {CUstream{nullptr}, legacy_stream()}) {
      for (const bool per_thread : {false, true}) {
        SCOPED_TRACE(std::string{call.member} + (legacy == nullptr ? ", null" : ", legacy") +
                     (per_thread ? ", beside the per-thread stream" : ""));
        driver_fixture b;
        b.open(machine);
        const CUstream captured =
            per_thread ? per_thread_stream() : b.new_stream(CU_STREAM_DEFAULT);
        const call_outcome seen = call_beside(b, call, captured, legacy);
        EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, seen.answer);
        EXPECT_EQ(ended, seen.end_of_capture);
      }
    }
  }
}

TEST_P(legacy_capture, BesideACapturedNonBlockingStreamEveryUseIsFine) {
  for (const legacy_call& call : legacy_calls) {
    if (call.kind == call_kind::other || !driver_has(*cu, call.member)) continue;
    SCOPED_TRACE(call.member);
    driver_fixture b;
    b.open(machine);
    const call_outcome seen = call_beside(b, call, b.new_stream(CU_STREAM_NON_BLOCKING), nullptr);
    EXPECT_EQ(CUDA_SUCCESS, seen.answer);
    EXPECT_EQ(CUDA_SUCCESS, seen.end_of_capture);
  }
}

}  // namespace
}  // namespace weir::testing_support
