// SPDX-License-Identifier: Apache-2.0
// Driver calls: stream capture.
#include <utility>

#include "sim/graphs.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

bool is_mode(CUstreamCaptureMode mode) {
  return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

}  // namespace

CUresult state::stream_begin_capture(CUstream handle, CUstreamCaptureMode mode) {
  if (!is_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = health(stream->device); failure != CUDA_SUCCESS) return failure;
  return graphs->begin(stream, mode);
}

CUresult state::stream_end_capture(CUstream handle, CUgraph* graph) {
  const auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult answer = graphs->end(stream, graph);
  graphs->run_destructors(lock());
  return answer;
}

CUresult state::stream_is_capturing(CUstream handle, CUstreamCaptureStatus* status) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return stream_get_capture_info(handle, status, nullptr, nullptr, nullptr, nullptr);
}

CUresult state::stream_get_capture_info(CUstream handle, CUstreamCaptureStatus* status,
                                        std::uint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies, std::size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->is_legacy) {
    // Asking does not harm the capture, unlike using the stream.
    if (const CUresult failure = graphs->legacy_usable(stream->device); failure != CUDA_SUCCESS)
      return failure;
  }
  *status = stream->capturing ? stream->capturing->status() : CU_STREAM_CAPTURE_STATUS_NONE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  const std::vector<CUgraphNode>& next = stream->capturing->at(*stream).next;
  if (id != nullptr) *id = stream->capturing->id;
  if (graph != nullptr) *graph = stream->capturing->handle;
  if (dependencies != nullptr) *dependencies = next.data();
  if (count != nullptr) *count = next.size();
  return CUDA_SUCCESS;
}

CUresult state::stream_update_capture_dependencies(CUstream handle, CUgraphNode* dependencies,
                                                   std::size_t count, unsigned flags) {
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  if (count != 0 && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  capture& active = *stream->capturing;
  if (active.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<std::size_t> places;
  if (!graphs->places(*active.building, dependencies, count, places))
    return CUDA_ERROR_INVALID_VALUE;
  // Copied first: the driver's own array may be passed back to it.
  const std::vector<CUgraphNode> copied(dependencies, dependencies + count);
  std::vector<CUgraphNode>& next = active.at(*stream).next;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) next.clear();
  merge(next, copied);
  return CUDA_SUCCESS;
}

CUresult state::thread_exchange_stream_capture_mode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || !is_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread().mode);
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
