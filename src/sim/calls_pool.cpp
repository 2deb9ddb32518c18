// SPDX-License-Identifier: Apache-2.0
// Driver calls: stream-ordered memory pools.
#include <algorithm>
#include <iterator>
#include <string>

#include "sim/graphs.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// The driver refuses maxima beyond what can be addressed.
constexpr std::uint64_t largest_maximum = std::uint64_t{1} << 47;

bool valid_location(const state& machine, const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return machine.valid_device(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
      return true;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location.id == 0;  // the machine has one node
    default:
      return false;
  }
}

/// Fabric handles can be asked for though nothing can be exported as one.
bool valid_handle_types(const state& machine, int types, const CUmemLocation& location) {
  const bool shareable = location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                         machine.devices[static_cast<std::size_t>(location.id)].spec.posix_handles;
  if (location.type == CU_MEM_LOCATION_TYPE_HOST || !shareable) {
    return types == CU_MEM_HANDLE_TYPE_NONE;
  }
  return (types & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) == 0;
}

bool has_pools(const state& machine, int device) {
  return machine.devices[static_cast<std::size_t>(device)].spec.memory_pools;
}

CUresult allocate(state& machine, CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                  const std::shared_ptr<stream_state>& stream) {
  pool* const from = machine.pools->find(handle);
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capturing) {
    // A graph takes none from a pool that other processes may know.
    if (from->handle_types() != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    return machine.graphs->capture_alloc(stream, bytes, handle, address);
  }
  if (machine.graphs->any_active()) {
    const CUresult failure = machine.graphs->forbid(driver::call::mem_alloc_async);
    if (failure != CUDA_SUCCESS) return failure;
  }
  if (const CUresult failure = machine.may_use(*stream); failure != CUDA_SUCCESS) return failure;
  if (from->device() >= 0) {
    if (const CUresult failure = machine.health(from->device()); failure != CUDA_SUCCESS)
      return failure;
  }
  if (bytes == 0) {
    *address = 0;
    return CUDA_SUCCESS;
  }
  return from->allocate(bytes, stream, address);
}

/// Memory of mem_alloc, freed in stream order: it goes when the stream comes to it.
CUresult free_plain(state& machine, region& area, const std::shared_ptr<stream_state>& stream) {
  // No longer anybody's to free or ask about, while work queued before may still use it.
  area.kind = memory_kind::pool;
  const auto leave = [&machine, address = area.base, id = area.id] {
    region* const freed = machine.space.find(address);
    if (freed == nullptr || freed->id != id) return CUDA_SUCCESS;
    // The free is recorded already, in its order.
    freed->pages->history.forget(freed->offset, freed->size);
    machine.space.release(*freed, "free");
    return CUDA_SUCCESS;
  };
  return machine.submit(stream, work{.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
                                     .label = "free",
                                     .accesses = {writes(area.base, area.size)},
                                     .body = leave,
                                     .lifetime = access_kind::free});
}

/// Works on pools of this process and on imported ones alike.
template <class Pool>
CUresult set_access(const state& machine, Pool& to, const CUmemAccessDesc* access,
                    std::size_t count) {
  const auto refused = [&](const CUmemAccessDesc& each) {
    if (each.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!machine.valid_device(each.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (each.flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
    if (each.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_SUCCESS;
    if (each.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_VALUE;
    return each.location.id == to.device() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (const CUresult failure = refused(access[i]); failure != CUDA_SUCCESS) return failure;
  }
  for (std::size_t i = 0; i < count; ++i) to.grant(access[i].location.id, access[i].flags);
  return CUDA_SUCCESS;
}

template <class Pool>
CUresult get_access(const state& machine, const Pool& owner, const CUmemLocation& location,
                    CUmemAccess_flags* flags) {
  if (!valid_location(machine, location)) return CUDA_ERROR_INVALID_VALUE;
  *flags = owner.granted(location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1);
  return CUDA_SUCCESS;
}

}  // namespace

// --- Which pool ----------------------------------------------------------------------------------

CUresult state::device_get_default_mem_pool(CUmemoryPool* pool, CUdevice device) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!has_pools(*this, device)) return CUDA_ERROR_NOT_SUPPORTED;
  *pool = pools->default_of(device);
  return CUDA_SUCCESS;
}

CUresult state::device_get_mem_pool(CUmemoryPool* pool, CUdevice device) {
  if (pool == nullptr || !valid_device(device)) return CUDA_ERROR_INVALID_VALUE;
  if (!has_pools(*this, device)) return CUDA_ERROR_NOT_SUPPORTED;
  *pool = pools->current_of(device);
  return CUDA_SUCCESS;
}

CUresult state::device_set_mem_pool(CUdevice device, CUmemoryPool pool) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_VALUE;
  if (!has_pools(*this, device)) return CUDA_ERROR_NOT_SUPPORTED;
  const auto* const chosen = pools->find(pool);
  if (chosen == nullptr || chosen->device() != device) return CUDA_ERROR_INVALID_VALUE;
  pools->make_current(device, pool);
  return CUDA_SUCCESS;
}

// --- Pools ---------------------------------------------------------------------------------------

CUresult state::mem_pool_create(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (pool == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  const bool zero = std::all_of(std::begin(properties->reserved), std::end(properties->reserved),
                                [](unsigned char byte) { return byte == 0; });
  if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || !zero ||
      !valid_location(*this, properties->location) ||
      !valid_handle_types(*this, properties->handleTypes, properties->location)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_device && !has_pools(*this, properties->location.id)) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->maxSize > largest_maximum) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool = pools->create(*properties);
  return CUDA_SUCCESS;
}

CUresult state::mem_pool_destroy(CUmemoryPool pool) { return pools->destroy(pool); }

CUresult state::mem_pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
  const auto* const target = pools->find(pool);
  if (target == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return target->get(attribute, value);
}

CUresult state::mem_pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
  auto* const target = pools->find(pool);
  if (target == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return target->set(attribute, value);
}

CUresult state::mem_pool_trim_to(CUmemoryPool pool, std::size_t keep) {
  auto* const target = pools->find(pool);
  if (target == nullptr) return CUDA_ERROR_INVALID_VALUE;
  target->trim(keep);
  return CUDA_SUCCESS;
}

CUresult state::mem_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc* access,
                                    std::size_t count) {
  if (access == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  if (auto* const own = pools->find(pool)) return set_access(*this, *own, access, count);
  if (auto* const foreign = pools->find_imported(pool)) {
    return set_access(*this, *foreign, access, count);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult state::mem_pool_get_access(CUmemAccess_flags* flags, CUmemoryPool pool,
                                    CUmemLocation* location) {
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const auto* const own = pools->find(pool)) return get_access(*this, *own, *location, flags);
  if (const auto* const foreign = pools->find_imported(pool)) {
    return get_access(*this, *foreign, *location, flags);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// --- Allocations ---------------------------------------------------------------------------------

CUresult state::mem_alloc_async(CUdeviceptr* address, std::size_t bytes, CUstream handle) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  if (!has_pools(*this, stream->device)) return CUDA_ERROR_NOT_SUPPORTED;
  return allocate(*this, address, bytes, pools->current_of(stream->device), stream);
}

CUresult state::mem_alloc_from_pool_async(CUdeviceptr* address, std::size_t bytes,
                                          CUmemoryPool pool, CUstream handle) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  return allocate(*this, address, bytes, pool, stream);
}

CUresult state::mem_free_async(CUdeviceptr address, CUstream handle) {
  const auto stream = find_stream(handle);
  if (!stream) return missing_stream();
  if (address == 0) return CUDA_SUCCESS;
  if (stream->capturing) return graphs->capture_free(stream, address);
  if (graphs->any_active()) {
    const CUresult failure = graphs->forbid(driver::call::mem_free_async);
    if (failure != CUDA_SUCCESS) return failure;
  }
  if (const CUresult failure = may_use(*stream); failure != CUDA_SUCCESS) return failure;

  if (auto* const owner = pools->holding(address)) {
    block* const freed = owner->find(address);
    if (freed == nullptr || freed->address != address) return CUDA_ERROR_INVALID_VALUE;
    owner->free(*freed, stream);
    return CUDA_SUCCESS;
  }
  if (auto* const foreign = pools->importing(address)) {
    return foreign->free(address, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (graphs->free_graph_allocation(address, stream)) return CUDA_SUCCESS;
  region* const area = space.find(address);
  if (area == nullptr || area->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (area->kind == memory_kind::managed) return CUDA_ERROR_NOT_SUPPORTED;
  return area->kind == memory_kind::plain ? free_plain(*this, *area, stream)
                                          : CUDA_ERROR_INVALID_VALUE;
}

}}}  // namespace weir::v0::sim
