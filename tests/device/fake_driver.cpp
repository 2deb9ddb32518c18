// SPDX-License-Identifier: Apache-2.0
// The books of the fake driver.
#include "device/fake_driver.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace weir::testing_support {

using driver::call;
using driver::CUcontext;
using driver::CUdevice;
using driver::CUdeviceptr;
using driver::CUevent;
using driver::CUmemGenericAllocationHandle;
using driver::CUresult;
using driver::CUstream;

fake_driver* fake_driver::instance_ = nullptr;

namespace {
template <class Handle>
std::uintptr_t number(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<std::uintptr_t>(handle);
  } else {
    return static_cast<std::uintptr_t>(handle);
  }
}
template <class Handle>
Handle as_handle(std::uintptr_t value) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(value);
  } else {
    return static_cast<Handle>(value);
  }
}
}  // namespace

fake_driver::fake_driver(int devices) : device_count{devices} {
  instance_ = this;
  stack().clear();
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  table.member = [](auto...) -> CUresult { return instance_->enter(call::member); };
#include "weir/driver/calls.def"
  fill_identity();
  fill_contexts();
  fill_streams_and_events();
  fill_memory();
}

fake_driver::~fake_driver() {
  stack().clear();
  instance_ = nullptr;
}

std::vector<CUcontext>& fake_driver::stack() {
  static thread_local std::vector<CUcontext> contexts;
  return contexts;
}

CUcontext fake_driver::context_of(int device) {
  return reinterpret_cast<CUcontext>(std::uintptr_t{0x1000} + static_cast<unsigned>(device));
}

void fake_driver::fail_nth(std::size_t nth, CUresult with) {
  const std::lock_guard lock{mutex_};
  fail_at_ = nth;
  fail_with_ = with;
}

std::vector<fake_driver::made> fake_driver::log() const {
  const std::lock_guard lock{mutex_};
  return log_;
}

std::vector<call> fake_driver::calls() const {
  std::vector<call> names;
  for (const auto& each : log()) names.push_back(each.which);
  return names;
}

std::size_t fake_driver::count(call which) const {
  const auto all = calls();
  return static_cast<std::size_t>(std::count(all.begin(), all.end(), which));
}

void fake_driver::clear_log() {
  const std::lock_guard lock{mutex_};
  log_.clear();
}

std::size_t fake_driver::live() const {
  const std::lock_guard lock{mutex_};
  return objects_.size() + reserved_.size() + mappings_.size();
}

CUresult fake_driver::enter(call which) {
  const std::lock_guard lock{mutex_};
  log_.push_back({which, stack().empty() ? nullptr : stack().back()});
  if (everything) return *everything;
  if (fail_at_ != 0 && --fail_at_ == 0) return fail_with_;
  const auto found = always.find(which);
  return found == always.end() ? driver::CUDA_SUCCESS : found->second;
}

template <class Handle>
CUresult fake_driver::make(call which, Handle* out) {
  if (const auto answer = enter(which); answer != driver::CUDA_SUCCESS) return answer;
  const std::lock_guard lock{mutex_};
  *out = as_handle<Handle>(next_handle);
  objects_.insert(next_handle);
  next_handle += 0x10;
  return driver::CUDA_SUCCESS;
}

template <class Handle>
CUresult fake_driver::destroy(call which, Handle handle) {
  if (const auto answer = enter(which); answer != driver::CUDA_SUCCESS) return answer;
  const std::lock_guard lock{mutex_};
  return objects_.erase(number(handle)) == 1 ? driver::CUDA_SUCCESS
                                             : driver::CUDA_ERROR_INVALID_HANDLE;
}

void fake_driver::fill_identity() {
  table.driver_get_version = [](int* version) {
    *version = 13000;
    return instance_->enter(call::driver_get_version);
  };
  table.device_get_count = [](int* devices) {
    *devices = instance_->device_count;
    return instance_->enter(call::device_get_count);
  };
  table.device_get = [](CUdevice* device, int ordinal) {
    *device = ordinal;
    return instance_->enter(call::device_get);
  };
  table.device_get_name = [](char* name, int length, CUdevice) {
    std::strncpy(name, "fake", static_cast<std::size_t>(length));
    return instance_->enter(call::device_get_name);
  };
  table.device_get_pci_bus_id = [](char* name, int length, CUdevice) {
    std::strncpy(name, "0000:18:00.0", static_cast<std::size_t>(length));
    return instance_->enter(call::device_get_pci_bus_id);
  };
  table.device_get_uuid = [](driver::CUuuid* uuid, CUdevice device) {
    std::memset(uuid->bytes, 0x40 + device, sizeof uuid->bytes);
    return instance_->enter(call::device_get_uuid);
  };
  table.device_total_mem = [](std::size_t* size, CUdevice) {
    *size = std::size_t{8} << 30;
    return instance_->enter(call::device_total_mem);
  };
  attributes[driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED] = 1;
  attributes[driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1;
  attributes[driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED] = 1;
  attributes[driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
  table.device_get_attribute = [](int* value, driver::CUdevice_attribute which, CUdevice) {
    if (const auto answer = instance_->enter(call::device_get_attribute); answer != 0)
      return answer;
    const auto found = instance_->attributes.find(which);
    if (found == instance_->attributes.end()) return driver::CUDA_ERROR_INVALID_VALUE;
    *value = found->second;
    return driver::CUDA_SUCCESS;
  };
  table.device_can_access_peer = [](int* can, CUdevice who, CUdevice whom) {
    instance_->last_peers = {who, whom};
    *can = instance_->reaches_peers;
    return instance_->enter(call::device_can_access_peer);
  };
}

void fake_driver::fill_contexts() {
  table.device_primary_ctx_retain = [](CUcontext* context, CUdevice device) {
    const auto answer = instance_->enter(call::device_primary_ctx_retain);
    if (answer != driver::CUDA_SUCCESS) return answer;
    std::this_thread::sleep_for(instance_->retaining_takes);
    *context = context_of(device);
    const std::lock_guard lock{instance_->mutex_};
    ++instance_->retained_[device];
    return answer;
  };
  table.device_primary_ctx_release = [](CUdevice device) {
    const auto answer = instance_->enter(call::device_primary_ctx_release);
    if (answer == driver::CUDA_SUCCESS) --instance_->retained_[device];
    return answer;
  };
  table.ctx_get_current = [](CUcontext* context) {
    *context = stack().empty() ? nullptr : stack().back();
    return instance_->enter(call::ctx_get_current);
  };
  table.ctx_push_current = [](CUcontext context) {
    const auto answer = instance_->enter(call::ctx_push_current);
    if (answer == driver::CUDA_SUCCESS) stack().push_back(context);
    return answer;
  };
  table.ctx_pop_current = [](CUcontext* context) {
    const auto answer = instance_->enter(call::ctx_pop_current);
    if (answer != driver::CUDA_SUCCESS) return answer;
    if (stack().empty()) return driver::CUDA_ERROR_INVALID_CONTEXT;
    *context = stack().back();
    stack().pop_back();
    return answer;
  };
  table.ctx_get_device = [](CUdevice* device) {
    // Contexts 0x1000 … are primary ones, 0x2000 … somebody's own; the low bits are the device.
    *device = static_cast<CUdevice>(number(stack().back()) & 0xff);
    return instance_->enter(call::ctx_get_device);
  };
  table.ctx_get_stream_priority_range = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return instance_->enter(call::ctx_get_stream_priority_range);
  };
  table.ctx_enable_peer_access = [](CUcontext peer, unsigned flags) {
    instance_->last_peer_context = peer;
    const auto answer = instance_->enter(call::ctx_enable_peer_access);
    return flags == 0 ? answer : driver::CUDA_ERROR_INVALID_VALUE;
  };
  table.ctx_disable_peer_access = [](CUcontext peer) {
    instance_->last_peer_context = peer;
    return instance_->enter(call::ctx_disable_peer_access);
  };
  table.thread_exchange_stream_capture_mode = [](driver::CUstreamCaptureMode* mode) {
    const auto answer = instance_->enter(call::thread_exchange_stream_capture_mode);
    if (answer == driver::CUDA_SUCCESS) std::swap(*mode, instance_->thread_mode);
    return answer;
  };
}

void fake_driver::fill_streams_and_events() {
  table.stream_create_with_priority = [](CUstream* stream, unsigned flags, int priority) {
    instance_->last_stream_flags = flags;
    instance_->last_stream_priority = priority;
    const auto answer = instance_->make(call::stream_create_with_priority, stream);
    if (answer == driver::CUDA_SUCCESS) {
      instance_->stream_numbers_[number(*stream)] = instance_->next_number_++;
    }
    return answer;
  };
  table.stream_destroy = [](CUstream stream) {
    return instance_->destroy(call::stream_destroy, stream);
  };
  table.stream_get_id = [](CUstream stream, unsigned long long* id) {
    const auto found = instance_->stream_numbers_.find(number(stream));
    *id = found == instance_->stream_numbers_.end() ? 5 + number(stream) : found->second;
    return instance_->enter(call::stream_get_id);
  };
  table.stream_get_ctx = [](CUstream, CUcontext* context) {
    *context = instance_->stream_context == nullptr ? context_of(0) : instance_->stream_context;
    return instance_->enter(call::stream_get_ctx);
  };
  table.stream_is_capturing = [](CUstream, driver::CUstreamCaptureStatus* status) {
    *status = instance_->capture;
    return instance_->enter(call::stream_is_capturing);
  };
  table.stream_get_capture_info = [](CUstream, driver::CUstreamCaptureStatus* status,
                                     std::uint64_t* id, driver::CUgraph*,
                                     const driver::CUgraphNode**, std::size_t*) {
    *status = instance_->capture;
    *id = 77;
    return instance_->enter(call::stream_get_capture_info);
  };
  table.event_create = [](CUevent* event, unsigned flags) {
    instance_->last_event_flags = flags;
    return instance_->make(call::event_create, event);
  };
  table.ipc_open_event_handle = [](CUevent* event, driver::CUipcEventHandle) {
    return instance_->make(call::ipc_open_event_handle, event);
  };
  table.event_elapsed_time = [](float* milliseconds, CUevent from, CUevent to) {
    *milliseconds = static_cast<float>(number(to)) - static_cast<float>(number(from));
    return instance_->enter(call::event_elapsed_time);
  };
  table.event_destroy = [](CUevent event) {
    return instance_->destroy(call::event_destroy, event);
  };
}

void fake_driver::fill_memory() {
  table.mem_get_info = [](std::size_t* free, std::size_t* total) {
    *free = std::size_t{7} << 30;
    *total = std::size_t{8} << 30;
    return instance_->enter(call::mem_get_info);
  };
  table.mem_get_allocation_granularity = [](std::size_t* unit, const driver::CUmemAllocationProp*,
                                            driver::CUmemAllocationGranularity_flags which) {
    *unit =
        which == driver::CU_MEM_ALLOC_GRANULARITY_MINIMUM ? granularity : recommended_granularity;
    return instance_->enter(call::mem_get_allocation_granularity);
  };
  table.mem_alloc = [](CUdeviceptr* address, std::size_t) {
    return instance_->make(call::mem_alloc, address);
  };
  table.mem_free = [](CUdeviceptr address) { return instance_->destroy(call::mem_free, address); };
  table.mem_address_reserve = [](CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                 CUdeviceptr, unsigned long long) {
    const auto answer = instance_->enter(call::mem_address_reserve);
    if (answer != driver::CUDA_SUCCESS) return answer;
    *address = 64 * alignment;
    instance_->reserved_[*address] = size;
    return answer;
  };
  table.mem_address_free = [](CUdeviceptr address, std::size_t size) {
    const auto answer = instance_->enter(call::mem_address_free);
    if (answer != driver::CUDA_SUCCESS) return answer;
    const auto found = instance_->reserved_.find(address);
    if (found == instance_->reserved_.end() || found->second != size) {
      return driver::CUDA_ERROR_INVALID_VALUE;
    }
    instance_->reserved_.erase(found);
    return answer;
  };
  table.mem_create = [](CUmemGenericAllocationHandle* handle, std::size_t,
                        const driver::CUmemAllocationProp* properties, unsigned long long) {
    instance_->last_properties = *properties;
    return instance_->make(call::mem_create, handle);
  };
  table.mem_release = [](CUmemGenericAllocationHandle handle) {
    return instance_->destroy(call::mem_release, handle);
  };
  table.mem_import_from_shareable_handle = [](CUmemGenericAllocationHandle* handle, void* shareable,
                                              driver::CUmemAllocationHandleType) {
    instance_->last_imported = number(shareable);
    return instance_->make(call::mem_import_from_shareable_handle, handle);
  };
  table.mem_map = [](CUdeviceptr address, std::size_t size, std::size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long) {
    const auto answer = instance_->enter(call::mem_map);
    if (answer == driver::CUDA_SUCCESS) {
      instance_->mappings_.push_back({address, size, offset, handle});
    }
    return answer;
  };
  table.mem_unmap = [](CUdeviceptr address, std::size_t size) {
    const auto answer = instance_->enter(call::mem_unmap);
    if (answer != driver::CUDA_SUCCESS) return answer;
    const auto gone = std::erase_if(instance_->mappings_, [&](const mapped& each) {
      return each.address >= address && each.address + each.size <= address + size;
    });
    return gone > 0 ? answer : driver::CUDA_ERROR_INVALID_VALUE;
  };
  table.mem_set_access = [](CUdeviceptr, std::size_t, const driver::CUmemAccessDesc* access,
                            std::size_t count) {
    instance_->last_access.assign(access, access + count);
    return instance_->enter(call::mem_set_access);
  };
}

}  // namespace weir::testing_support
