// SPDX-License-Identifier: Apache-2.0
// Driver calls: streams, and waiting on values in memory.
#include <atomic>

#include "sim/costs.hpp"
#include "sim/graphs.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult state::stream_create(CUstream* handle, unsigned flags) {
  return stream_create_with_priority(handle, flags, 0);
}

CUresult state::stream_create_with_priority(CUstream* handle, unsigned flags, int priority) {
  if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  const int clamped = priority > 0 ? 0 : priority < -5 ? -5 : priority;
  *handle = stream_handles.insert(flow.make_stream(device, flags, clamped));
  return CUDA_SUCCESS;
}

CUresult state::stream_destroy(CUstream handle) {
  if (handle == nullptr || handle == legacy_stream() || handle == per_thread_stream()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto stream = stream_handles.share(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  graphs->abandon(stream);
  stream_handles.erase(handle);
  flow.retire(stream);
  return CUDA_SUCCESS;
}

namespace {

/// Whether the host may wait for a stream while captures are under way.
CUresult check_wait(graph_set& graphs, const std::shared_ptr<stream_state>& stream,
                    driver::call call) {
  if (!graphs.any_active()) return CUDA_SUCCESS;
  if (stream->capturing) return graphs.misuse(stream);
  if (stream->is_legacy) {
    if (const CUresult failure = graphs.check_legacy(stream->device); failure != CUDA_SUCCESS)
      return failure;
  }
  return graphs.forbid(call);
}

}  // namespace

CUresult state::stream_query(CUstream handle) {
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  if (const CUresult failure = check_wait(*graphs, stream, driver::call::stream_query);
      failure != CUDA_SUCCESS) {
    return failure;
  }
  if (const CUresult failure = health(stream->device); failure != CUDA_SUCCESS) return failure;
  return flow.query(stream);
}

CUresult state::stream_synchronize(CUstream handle) {
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  if (const CUresult failure = check_wait(*graphs, stream, driver::call::stream_synchronize);
      failure != CUDA_SUCCESS) {
    return failure;
  }
  const CUresult answer = flow.synchronize(stream, lock());
  if (answer == CUDA_SUCCESS) after_synchronize(stream->device);
  return answer;
}

CUresult state::stream_wait_event(CUstream handle, CUevent event_handle, unsigned flags) {
  if (flags > CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  const auto event = event_handles.share(event_handle);
  if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = health(stream->device); failure != CUDA_SUCCESS) return failure;
  if (flags == CU_EVENT_WAIT_EXTERNAL) {
    return stream->capturing ? graphs->wait_external(stream, event) : CUDA_ERROR_ILLEGAL_STATE;
  }
  if (const CUresult failure = may_use(*stream); failure != CUDA_SUCCESS) return failure;
  if (stream->capturing || event->captured) return graphs->wait(stream, *event);
  flow.wait(stream, *event);
  return CUDA_SUCCESS;
}

CUresult state::stream_get_priority(CUstream handle, int* priority) {
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult state::stream_get_flags(CUstream handle, unsigned* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

CUresult state::stream_get_ctx(CUstream handle, CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  *context = context_of(stream->device);
  return CUDA_SUCCESS;
}

CUresult state::stream_get_id(CUstream handle, unsigned long long* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  // The driver takes the question for a use of the stream, and a capture does not survive it.
  if (stream->capturing) return graphs->misuse(stream);
  if (stream->is_legacy && graphs->any_active()) {
    if (const CUresult failure = graphs->check_legacy(stream->device); failure != CUDA_SUCCESS)
      return failure;
  }
  *id = stream->id;
  return CUDA_SUCCESS;
}

namespace {

bool compare(std::uint32_t present, std::uint32_t value, unsigned comparison) {
  switch (comparison) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return present == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (present & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return ~(present | value) != 0;
    default:
      return static_cast<std::int32_t>(present - value) >= 0;  // GEQ, cyclic
  }
}

access flag_access(CUdeviceptr address, bool writes) {
  return {.extent = {address, sizeof(std::uint32_t)}, .writes = writes};
}

/// The flag is written by others while it is watched, from host threads too.
std::atomic_ref<std::uint32_t> flag_at(CUdeviceptr address) {
  return std::atomic_ref{*reinterpret_cast<std::uint32_t*>(address)};
}

}  // namespace

CUresult state::stream_wait_value32(CUstream handle, CUdeviceptr address, std::uint32_t value,
                                    unsigned flags) {
  const unsigned comparison = flags & 3U;
  if ((flags & ~(3U | CU_STREAM_WAIT_VALUE_FLUSH)) != 0 || address % 4 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  region* const area = space.find(address);
  if (area == nullptr || area->managed) return CUDA_ERROR_INVALID_VALUE;
  const auto is_allowed = [this, device = stream->device, address] {
    return space.permits(device, flag_access(address, false), stage::performing);
  };
  // The order that a value in memory establishes is invisible to the driver, and so to the hazard
  // check; the flag itself is not an access that could race.
  return submit(
      stream,
      {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
       .label = "wait for value",
       .body = [is_allowed] { return is_allowed() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS; },
       .gate =
           [=] { return !is_allowed() || compare(flag_at(address).load(), value, comparison); }});
}

CUresult state::stream_write_value32(CUstream handle, CUdeviceptr address, std::uint32_t value,
                                     unsigned flags) {
  if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER || address % 4 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  region* const area = space.find(address);
  if (area == nullptr || area->managed) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream,
                {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                 .label = "write value",
                 .body =
                     [this, device = stream->device, address, value] {
                       // What was mapped when it was queued may be gone now.
                       if (!space.permits(device, flag_access(address, true), stage::performing)) {
                         return CUDA_ERROR_ILLEGAL_ADDRESS;
                       }
                       flag_at(address).store(value);
                       return CUDA_SUCCESS;
                     },
                 .takes = costs::small_operation});
}

}}}  // namespace weir::v0::sim
