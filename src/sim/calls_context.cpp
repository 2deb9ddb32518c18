// Driver calls: primary contexts and the calling thread's stack of current contexts.
#include "sim/graphs.hpp"
#include "sim/memory.hpp"
#include "sim/modules.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir::inline v0::sim {

CUresult state::device_primary_ctx_retain(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (const CUresult bad = health(device); bad != CUDA_SUCCESS) return bad;
  device_state& which = devices[static_cast<std::size_t>(device)];
  if (which.context_references == 0 &&
      !space.reserve(device, which.spec.context_overhead.count())) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++which.context_references;
  which.context_ended = false;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult state::device_primary_ctx_release(CUdevice device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  device_state& which = devices[static_cast<std::size_t>(device)];
  if (which.context_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (which.context_references == 1) {
    end_context(device);
  } else {
    --which.context_references;
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

CUresult state::device_primary_ctx_reset(CUdevice device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  device_state& which = devices[static_cast<std::size_t>(device)];
  if (which.lost) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (which.context_references != 0) end_context(device);
  return CUDA_SUCCESS;
}

void state::end_context(int device) {
  device_state& which = devices[static_cast<std::size_t>(device)];
  if (health(device) == CUDA_SUCCESS) flow.synchronize_device(device, lock());
  flow.discard(device, lock());
  graphs->reset(device, lock());
  modules->reset(device);
  pools->reset(device);
  space.reset(device);
  stream_handles.erase_if([&](const stream_state& each) { return each.device == device; },
                          [&](const std::shared_ptr<stream_state>& each) { flow.retire(each); });
  event_handles.erase_if([&](const event_state& each) { return each.device == device; },
                         [](const std::shared_ptr<event_state>&) {});
  which.peer_enabled.assign(devices.size(), false);
  which.sticky = CUDA_SUCCESS;  // the end of the context is the way out of a fault
  which.context_references = 0;
  which.context_ended = context_ever_ended = true;
  space.give_back(device, which.spec.context_overhead.count());
}

CUresult state::ctx_get_current(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const thread_state& me = thread();
  *context = me.contexts.empty() ? nullptr : me.contexts.back();
  return CUDA_SUCCESS;
}

CUresult state::ctx_set_current(CUcontext context) {
  thread_state& me = thread();
  if (context == nullptr) {
    if (!me.contexts.empty()) me.contexts.pop_back();
    return CUDA_SUCCESS;
  }
  if (device_of(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (me.contexts.empty()) {
    me.contexts.push_back(context);
  } else {
    me.contexts.back() = context;
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
  thread_state& me = thread();
  if (me.contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = me.contexts.back();
  me.contexts.pop_back();
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
  if (const CUresult bad = graphs->check_synchronize(device); bad != CUDA_SUCCESS) return bad;
  const CUresult answer = flow.synchronize_device(device, lock());
  if (answer == CUDA_SUCCESS) after_synchronize(device);
  return answer;
}

CUresult state::ctx_get_stream_priority_range(int* least, int* greatest) {
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

}  // namespace weir::inline v0::sim
