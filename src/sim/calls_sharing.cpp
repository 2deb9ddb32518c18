// SPDX-License-Identifier: Apache-2.0
// Driver calls: legacy sharing of memory and events between processes.
#include <utility>

#include "sim/sharing.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult state::ipc_get_mem_handle(CUipcMemHandle* handle, CUdeviceptr address) {
  region* const area = space.find(address);
  if (handle == nullptr || area == nullptr || area->kind != memory_kind::plain) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return shared->export_memory(*area, *handle);
}

CUresult state::ipc_open_mem_handle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  if (address == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  return shared->open_memory(handle, device, *address);
}

CUresult state::ipc_close_mem_handle(CUdeviceptr address) {
  const auto find_imported = [&]() -> const region* {
    const region* const area = space.find(address);
    const bool opened = area != nullptr && area->base == address &&
                        area->kind == memory_kind::imported && area->pool == nullptr;
    return opened ? area : nullptr;
  };
  const region* const area = find_imported();
  if (area == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int device = area->owner;
  if (const CUresult failure = flow.synchronize_device(device, lock()); failure != CUDA_SUCCESS)
    return failure;
  after_synchronize(device);
  // Another thread may have closed it while this one waited.
  const region* const current = find_imported();
  if (current == nullptr) return CUDA_ERROR_INVALID_VALUE;
  space.check_removal(*current, "ipc_close_mem_handle");
  return shared->close_memory(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult state::ipc_get_event_handle(CUipcEventHandle* handle, CUevent event_handle) {
  if (handle == nullptr || event_handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const event_state* const event = event_handles.find(event_handle);
  if (event == nullptr || !event->shared) return CUDA_ERROR_INVALID_HANDLE;
  *handle = event->shared->handle();
  start_background();  // who waits in another process makes no calls here
  return CUDA_SUCCESS;
}

CUresult state::ipc_open_event_handle(CUevent* event_handle, CUipcEventHandle handle) {
  if (event_handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  if (shared_event::is_own(handle)) return CUDA_ERROR_INVALID_CONTEXT;  // not within one process
  auto event = std::make_shared<event_state>();
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->device = device;
  event->shared = shared_event::open(handle);
  if (!event->shared) return CUDA_ERROR_MAP_FAILED;
  *event_handle = event_handles.insert(std::move(event));
  start_background();
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
