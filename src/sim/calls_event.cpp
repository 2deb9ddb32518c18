// SPDX-License-Identifier: Apache-2.0
// Driver calls: events.
#include "sim/graphs.hpp"
#include "sim/sharing.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult state::event_create(CUevent* handle, unsigned flags) {
  constexpr unsigned known =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (handle == nullptr || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (interprocess && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  auto event = std::make_shared<event_state>();
  event->flags = flags;
  event->device = device;
  if (interprocess) {
    event->shared = shared_event::create();
    if (!event->shared) return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *handle = event_handles.insert(std::move(event));
  return CUDA_SUCCESS;
}

CUresult state::event_destroy(CUevent handle) {
  return event_handles.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult state::event_record(CUevent handle, CUstream stream_handle) {
  return event_record_with_flags(handle, stream_handle, CU_EVENT_RECORD_DEFAULT);
}

CUresult state::event_record_with_flags(CUevent handle, CUstream stream_handle, unsigned flags) {
  if (flags > CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  event_state* const event = event_handles.find(handle);
  const auto stream = find_stream(stream_handle);
  if (event == nullptr || !stream) return CUDA_ERROR_INVALID_HANDLE;
  if (event->device != stream->device) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = health(stream->device); failure != CUDA_SUCCESS) return failure;
  if (flags == CU_EVENT_RECORD_EXTERNAL) {
    return stream->capturing ? graphs->record_external(event_handles.share(handle), stream)
                             : CUDA_ERROR_ILLEGAL_STATE;
  }
  if (stream->capturing) return graphs->record(*event, stream);
  if (const CUresult failure = may_use(*stream); failure != CUDA_SUCCESS) return failure;
  event->captured = nullptr;
  event->captured_nodes.clear();
  flow.record(*event, stream);
  return CUDA_SUCCESS;
}

namespace {

/// What a call answers that is "not permitted on an event which was last recorded in a capturing
/// stream". The capture does not survive it.
CUresult captured_event(const event_state& event) {
  event.captured->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

/// Whether the host may ask about an event, or wait for it, while captures are under way.
CUresult check_wait(graph_set& graphs, const event_state& event, driver::call call) {
  if (event.captured) return captured_event(event);
  return graphs.any_active() ? graphs.forbid(call) : CUDA_SUCCESS;
}

}  // namespace

CUresult state::event_query(CUevent handle) {
  event_state* const event = event_handles.find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = check_wait(*graphs, *event, driver::call::event_query);
      failure != CUDA_SUCCESS) {
    return failure;
  }
  if (const CUresult failure = health(event->device); failure != CUDA_SUCCESS) return failure;
  return flow.query(*event);
}

CUresult state::event_synchronize(CUevent handle) {
  const auto event = event_handles.share(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = check_wait(*graphs, *event, driver::call::event_synchronize);
      failure != CUDA_SUCCESS) {
    return failure;
  }
  const CUresult answer = flow.synchronize(*event, lock());
  if (answer == CUDA_SUCCESS) after_synchronize(event->device);
  return answer;
}

CUresult state::event_elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // as an H200's driver has it
  const event_state* const from = event_handles.find(start);
  const event_state* const to = event_handles.find(end);
  if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const event_state* const each : {from, to}) {
    if (each->captured) return captured_event(*each);
  }
  if (((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  if (!from->recorded || !to->recorded) return CUDA_ERROR_INVALID_HANDLE;
  if (from->device != to->device) return CUDA_ERROR_INVALID_HANDLE;
  if (!from->complete() || !to->complete()) return CUDA_ERROR_NOT_READY;
  const duration between = *to->end - *from->end;
  *milliseconds = static_cast<float>(static_cast<double>(between.count()) * 1e-6);
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
