// SPDX-License-Identifier: Apache-2.0
// Driver calls: managed memory.
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "sim/graphs.hpp"
#include "sim/managed.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// The managed region that contains all of [address, address + size); null if there is none.
region* managed_at(state& machine, CUdeviceptr address, std::size_t size) {
  region* const area = machine.space.find(address);
  if (area == nullptr || !area->managed || size == 0 || size > area->end() - address)
    return nullptr;
  return area;
}

/// The processor a location means; nobody for one that means none.
processor processor_at(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 ? processor::device(location.id) : processor{};
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return processor::host();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:  // the machine has one node
      return location.id == 0 ? processor::host() : processor{};
    default:
      return {};
  }
}

/// How the first forms of these calls name a processor.
CUmemLocation location_of(CUdevice device) {
  if (device == cpu_device) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

int location_type(processor target) {
  if (target.is_device()) return CU_MEM_LOCATION_TYPE_DEVICE;
  return target.is_host() ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_INVALID;
}

bool can_share(const state& machine, processor target) {
  return !target.is_device() ||
         machine.devices[static_cast<std::size_t>(target.number())].spec.concurrent_managed_access;
}

/// What all pages of a range agree on; `otherwise` where they do not.
template <class Get, class Value>
Value agreed(const managed_pages& pages, std::uint64_t offset, std::uint64_t size, Get&& get,
             Value otherwise) {
  std::optional<Value> common;
  bool differs = false;
  pages.inspect(offset, size, [&](const page_run& run, std::uint64_t, std::uint64_t) {
    const Value value = get(run);
    if (common && *common != value) differs = true;
    common = value;
  });
  return differs || !common ? otherwise : *common;
}

}  // namespace

CUresult state::mem_alloc_managed(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  if (!devices[static_cast<std::size_t>(device)].spec.managed_memory) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  region request{.size = bytes,
                 .kind = memory_kind::managed,
                 .device = device,
                 .flags = flags,
                 .owner = device,
                 .managed = std::make_shared<managed_pages>(bytes, flags)};
  const region* const area = space.allocate(std::move(request), "mem_alloc_managed");
  if (area == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  charge(1, bytes);
  *address = area->base;
  return CUDA_SUCCESS;
}

CUresult state::mem_prefetch_async(CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                                   unsigned flags, CUstream stream_handle) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(stream_handle);
  if (!stream) return current_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  if (stream->capturing) return graphs->misuse(stream);
  region* const area = managed_at(*this, address, bytes);
  const processor target = processor_at(location);
  if (area == nullptr || target == processor{}) return CUDA_ERROR_INVALID_VALUE;
  if (target.is_device() && !valid_device(target.number())) return CUDA_ERROR_INVALID_DEVICE;
  if (!can_share(*this, target)) return CUDA_ERROR_INVALID_DEVICE;

  const std::uint64_t base = area->base;
  const std::uint64_t id = area->id;
  const std::uint64_t offset = address - base;
  work task{.label = "prefetch"};
  task.body = [this, base, id, offset, bytes, target] {
    region* const now = space.find(base);
    if (now != nullptr && now->id == id) managed_prefetch(*this, *now, offset, bytes, target);
    return CUDA_SUCCESS;
  };
  constexpr std::uint64_t bytes_a_nanosecond = 55;  // what host and device copy between them
  task.takes = duration{static_cast<std::int64_t>(bytes / bytes_a_nanosecond)};
  const CUresult answer = submit(stream, std::move(task));
  if (answer != CUDA_SUCCESS) return answer;
  area->managed->change(offset, bytes,
                        [&](page_run& run, std::uint64_t) { run.last_prefetch = target; });
  return CUDA_SUCCESS;
}

CUresult state::mem_prefetch_async_v1(CUdeviceptr address, std::size_t bytes, CUdevice device,
                                      CUstream stream_handle) {
  return mem_prefetch_async(address, bytes, location_of(device), 0, stream_handle);
}

CUresult state::mem_advise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                           CUmemLocation location) {
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  region* const area = managed_at(*this, address, bytes);
  const processor target = processor_at(location);
  if (area == nullptr || target == processor{}) return CUDA_ERROR_INVALID_VALUE;
  const bool names_processor = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                               advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                               advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (names_processor && target.is_device() && !valid_device(target.number())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool about_access =
      advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (about_access && location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
      location.type != CU_MEM_LOCATION_TYPE_HOST) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (names_processor && !can_share(*this, target)) return CUDA_ERROR_INVALID_DEVICE;

  const auto advise = [&](auto&& change) {
    area->managed->change(address - area->base, bytes,
                          [&](page_run& run, std::uint64_t size) { change(run, size); });
    return CUDA_SUCCESS;
  };
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      return advise([](page_run& run, std::uint64_t) { run.read_mostly = true; });
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      return advise(
          [&](page_run& run, std::uint64_t size) { unset_read_mostly(*this, run, size); });
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return advise([&](page_run& run, std::uint64_t) { run.preferred = target; });
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return advise([](page_run& run, std::uint64_t) { run.preferred = {}; });
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      return advise([&](page_run& run, std::uint64_t) { run.accessed_by.add(target); });
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return advise([&](page_run& run, std::uint64_t) { run.accessed_by.remove(target); });
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult state::mem_advise_v1(CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                              CUdevice device) {
  if (device != cpu_device && !valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return mem_advise(address, bytes, advice, location_of(device));
}

CUresult state::mem_range_get_attribute(void* data, std::size_t data_bytes,
                                        CUmem_range_attribute attribute, CUdeviceptr address,
                                        std::size_t bytes) {
  const region* const area = managed_at(*this, address, bytes);
  if (data == nullptr || area == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const managed_pages& pages = *area->managed;
  const std::uint64_t offset = address - area->base;

  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    if (data_bytes == 0 || data_bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
    std::vector<int> list(data_bytes / sizeof(int), processor{}.number());
    std::size_t count = 0;
    const auto add = [&](processor candidate) {
      const auto has = [&](const page_run& run) { return run.accessed_by.has(candidate); };
      if (count < list.size() && agreed(pages, offset, bytes, has, false)) {
        list[count++] = candidate.number();
      }
    };
    for (int device = 0; valid_device(device); ++device) add(processor::device(device));
    add(processor::host());
    std::memcpy(data, list.data(), data_bytes);
    return CUDA_SUCCESS;
  }

  if (data_bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  const auto preferred = [](const page_run& run) { return run.preferred; };
  const auto prefetched = [](const page_run& run) { return run.last_prefetch; };
  const processor home = agreed(pages, offset, bytes, preferred, processor{});
  const processor last = agreed(pages, offset, bytes, prefetched, processor{});
  int value = 0;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      value = agreed(
          pages, offset, bytes, [](const page_run& run) { return run.read_mostly; }, false);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      value = home.number();
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      value = location_type(home);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      value = last.number();
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      value = location_type(last);
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(data, &value, sizeof(value));
  return CUDA_SUCCESS;
}

CUresult state::stream_attach_mem_async(CUstream stream_handle, CUdeviceptr address,
                                        std::size_t bytes, unsigned flags) {
  const auto stream = find_stream(stream_handle);
  if (!stream) return current_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  if (stream->capturing) return graphs->misuse(stream);
  const region* const area = space.find(address);
  if (area == nullptr || !area->managed || area->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (bytes != 0 && bytes != area->size) return CUDA_ERROR_INVALID_VALUE;  // the whole, or nothing
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // "It is illegal to attach singly to the NULL stream, because the NULL stream is a virtual global
  // stream and not a specific stream."
  if (flags == CU_MEM_ATTACH_SINGLE && stream->is_legacy) return CUDA_ERROR_INVALID_VALUE;
  const attachment wanted{flags, stream};
  work task{.label = "attach memory"};
  task.body = [pages = area->managed, wanted] {
    pages->attached = wanted;
    return CUDA_SUCCESS;
  };
  const CUresult answer = submit(stream, std::move(task));
  if (answer != CUDA_SUCCESS) return answer;
  attachment& queued = area->managed->queued_attachment;
  if (flags == CU_MEM_ATTACH_HOST && queued.flags != CU_MEM_ATTACH_HOST) {
    check_attach_to_host(*this, *area, *stream, stream->clock.now());
  }
  queued = wanted;
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
