// Driver calls: stream-ordered memory pools.
#include <algorithm>
#include <iterator>
#include <string>

#include "sim/graphs.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir::inline v0::sim {

namespace {

/// The driver refuses maxima beyond what can be addressed.
constexpr std::uint64_t largest_maximum = std::uint64_t{1} << 47;

bool valid_location(const state& machine, const CUmemLocation& where) {
  switch (where.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return machine.valid_device(where.id);
    case CU_MEM_LOCATION_TYPE_HOST:
      return true;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return where.id == 0;  // the machine has one node
    default:
      return false;
  }
}

/// Fabric handles can be asked for though nothing can be exported as one.
bool valid_handle_types(const state& machine, int types, const CUmemLocation& where) {
  const bool shareable = where.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                         machine.devices[static_cast<std::size_t>(where.id)].spec.posix_handles;
  if (where.type == CU_MEM_LOCATION_TYPE_HOST || !shareable) {
    return types == CU_MEM_HANDLE_TYPE_NONE;
  }
  return (types & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) == 0;
}

bool has_pools(const state& machine, int device) {
  return machine.devices[static_cast<std::size_t>(device)].spec.memory_pools;
}

/// What a call on a stream must answer before it may queue anything.
CUresult may_queue(state& machine, const stream_state& on) {
  if (const CUresult bad = machine.health(on.device); bad != CUDA_SUCCESS) return bad;
  if (on.is_legacy && machine.graphs->any_active()) return machine.graphs->check_legacy(on.device);
  return CUDA_SUCCESS;
}

CUresult allocate(state& machine, CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                  const std::shared_ptr<stream_state>& on) {
  pool* const from = machine.pools->find(handle);
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (on->capturing) {
    // A graph takes none from a pool that other processes may know.
    if (from->handle_types() != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    return machine.graphs->capture_alloc(on, bytes, handle, address);
  }
  if (machine.graphs->any_active()) {
    const CUresult bad = machine.graphs->forbid(driver::call::mem_alloc_async);
    if (bad != CUDA_SUCCESS) return bad;
  }
  if (const CUresult bad = may_queue(machine, *on); bad != CUDA_SUCCESS) return bad;
  if (from->device() >= 0) {
    if (const CUresult bad = machine.health(from->device()); bad != CUDA_SUCCESS) return bad;
  }
  if (bytes == 0) {
    *address = 0;
    return CUDA_SUCCESS;
  }
  return from->allocate(bytes, on, address);
}

/// Memory of mem_alloc, freed in stream order: it goes when the stream comes to it.
CUresult free_plain(state& machine, region& going, const std::shared_ptr<stream_state>& on) {
  // No longer anybody's to free or ask about, while work queued before may still use it.
  going.kind = memory_kind::pool;
  const auto leave = [&machine, address = going.base, id = going.id] {
    region* const in = machine.space.find(address);
    if (in == nullptr || in->id != id) return CUDA_SUCCESS;
    in->pages->history.forget(in->offset, in->size);  // the free is told already, in its order
    machine.space.release(*in, "free");
    return CUDA_SUCCESS;
  };
  return machine.submit(on, work{.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
                                 .label = "free",
                                 .accesses = {writes(going.base, going.size)},
                                 .body = leave,
                                 .lifetime = deed::free});
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
    if (const CUresult bad = refused(access[i]); bad != CUDA_SUCCESS) return bad;
  }
  for (std::size_t i = 0; i < count; ++i) to.grant(access[i].location.id, access[i].flags);
  return CUDA_SUCCESS;
}

template <class Pool>
CUresult get_access(const state& machine, const Pool& of, const CUmemLocation& where,
                    CUmemAccess_flags* flags) {
  if (!valid_location(machine, where)) return CUDA_ERROR_INVALID_VALUE;
  *flags = of.granted(where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id : -1);
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
  const auto* const wanted = pools->find(pool);
  if (wanted == nullptr || wanted->device() != device) return CUDA_ERROR_INVALID_VALUE;
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
  const auto* const of = pools->find(pool);
  if (of == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return of->get(attribute, value);
}

CUresult state::mem_pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void* value) {
  auto* const of = pools->find(pool);
  if (of == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return of->set(attribute, value);
}

CUresult state::mem_pool_trim_to(CUmemoryPool pool, std::size_t keep) {
  auto* const of = pools->find(pool);
  if (of == nullptr) return CUDA_ERROR_INVALID_VALUE;
  of->trim(keep);
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
  const auto on = stream(handle);
  if (!on) return no_stream();
  if (!has_pools(*this, on->device)) return CUDA_ERROR_NOT_SUPPORTED;
  return allocate(*this, address, bytes, pools->current_of(on->device), on);
}

CUresult state::mem_alloc_from_pool_async(CUdeviceptr* address, std::size_t bytes,
                                          CUmemoryPool pool, CUstream handle) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto on = stream(handle);
  if (!on) return no_stream();
  return allocate(*this, address, bytes, pool, on);
}

CUresult state::mem_free_async(CUdeviceptr address, CUstream handle) {
  const auto on = stream(handle);
  if (!on) return no_stream();
  if (address == 0) return CUDA_SUCCESS;
  if (on->capturing) return graphs->capture_free(on, address);
  if (graphs->any_active()) {
    const CUresult bad = graphs->forbid(driver::call::mem_free_async);
    if (bad != CUDA_SUCCESS) return bad;
  }
  if (const CUresult bad = may_queue(*this, *on); bad != CUDA_SUCCESS) return bad;

  if (auto* const home = pools->holding(address)) {
    block* const found = home->find(address);
    if (found == nullptr || found->address != address) return CUDA_ERROR_INVALID_VALUE;
    home->free(*found, on);
    return CUDA_SUCCESS;
  }
  if (auto* const foreign = pools->importing(address)) {
    return foreign->free(address, on) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (graphs->free_graph_allocation(address, on)) return CUDA_SUCCESS;
  region* const in = space.find(address);
  if (in == nullptr || in->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (in->kind == memory_kind::managed) return CUDA_ERROR_NOT_SUPPORTED;
  return in->kind == memory_kind::plain ? free_plain(*this, *in, on) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace weir::inline v0::sim
