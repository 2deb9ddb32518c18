// SPDX-License-Identifier: Apache-2.0
// Driver calls: primary contexts and the calling thread's stack of current contexts.
#include "sim/graphs.hpp"
#include "sim/memory.hpp"
#include "sim/modules.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult state::device_primary_ctx_retain(CUcontext* context, CUdevice ordinal) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  if (const CUresult failure = health(ordinal); failure != CUDA_SUCCESS) return failure;
  device_state& device = devices[static_cast<std::size_t>(ordinal)];
  if (device.context_references == 0 &&
      !space.reserve_capacity(ordinal, device.spec.context_overhead.count())) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++device.context_references;
  device.context_ended = false;
  *context = context_of(ordinal);
  return CUDA_SUCCESS;
}

CUresult state::device_primary_ctx_release(CUdevice ordinal) {
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  device_state& device = devices[static_cast<std::size_t>(ordinal)];
  if (device.context_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (device.context_references == 1) {
    end_context(ordinal);
  } else {
    --device.context_references;
  }
  return CUDA_SUCCESS;
}

CUresult state::device_primary_ctx_get_state(CUdevice device, unsigned* flags, int* active) {
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = devices[static_cast<std::size_t>(device)].context_references != 0;
  return CUDA_SUCCESS;
}

CUresult state::device_primary_ctx_reset(CUdevice ordinal) {
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  device_state& device = devices[static_cast<std::size_t>(ordinal)];
  if (device.lost) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (device.context_references != 0) end_context(ordinal);
  return CUDA_SUCCESS;
}

void state::end_context(int ordinal) {
  device_state& device = devices[static_cast<std::size_t>(ordinal)];
  if (health(ordinal) == CUDA_SUCCESS) flow.synchronize_device(ordinal, lock());
  flow.discard(ordinal, lock());
  graphs->reset(ordinal, lock());
  modules->reset(ordinal);
  pools->reset(ordinal);
  space.reset(ordinal);
  stream_handles.erase_if([&](const stream_state& each) { return each.device == ordinal; },
                          [&](const std::shared_ptr<stream_state>& each) { flow.retire(each); });
  event_handles.erase_if([&](const event_state& each) { return each.device == ordinal; },
                         [](const std::shared_ptr<event_state>&) {});
  device.peer_enabled.assign(devices.size(), false);
  device.sticky = CUDA_SUCCESS;  // the end of the context is the way out of a fault
  device.context_references = 0;
  device.context_ended = context_ever_ended = true;
  space.release_capacity(ordinal, device.spec.context_overhead.count());
}

CUresult state::ctx_get_current(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const thread_state& caller = thread();
  *context = caller.contexts.empty() ? nullptr : caller.contexts.back();
  return CUDA_SUCCESS;
}

CUresult state::ctx_set_current(CUcontext context) {
  thread_state& caller = thread();
  if (context == nullptr) {
    if (!caller.contexts.empty()) caller.contexts.pop_back();
    return CUDA_SUCCESS;
  }
  if (device_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (caller.contexts.empty()) {
    caller.contexts.push_back(context);
  } else {
    caller.contexts.back() = context;
  }
  return CUDA_SUCCESS;
}

CUresult state::ctx_push_current(CUcontext context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  thread().contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult state::ctx_pop_current(CUcontext* context) {
  thread_state& caller = thread();
  if (caller.contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = caller.contexts.back();
  caller.contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult state::ctx_get_device(CUdevice* device) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int current = current_device();
  if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current;
  return CUDA_SUCCESS;
}

CUresult state::ctx_synchronize() {
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = graphs->check_synchronize(device); failure != CUDA_SUCCESS)
    return failure;
  const CUresult answer = flow.synchronize_device(device, lock());
  if (answer == CUDA_SUCCESS) after_synchronize(device);
  return answer;
}

CUresult state::ctx_record_event(CUcontext context, CUevent handle) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const int device = device_of(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  event_state* const event = event_handles.find(handle);
  if (event == nullptr || event->device != device) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = graphs->check_synchronize(device); failure != CUDA_SUCCESS)
    return failure;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  event->captured = nullptr;
  event->captured_nodes.clear();
  flow.record_all(*event, device);
  return CUDA_SUCCESS;
}

CUresult state::ctx_get_stream_priority_range(int* least, int* greatest) {
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
