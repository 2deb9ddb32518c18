// SPDX-License-Identifier: Apache-2.0
// Driver calls: address reservations, physical handles, and mapping the one into the other.
//
// The error codes are those of an H200 under driver 580. Where that driver follows a wild handle
// instead of refusing it, the answer here is CUDA_ERROR_INVALID_VALUE.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/state.hpp"
#include "sim/virtual.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace sim {

std::map<std::uint64_t, std::uint64_t>::const_iterator handle_set::reservation(
    std::uint64_t address) const noexcept {
  auto next = reservations.upper_bound(address);
  if (next == reservations.begin()) return reservations.end();
  --next;
  return address - next->first < next->second ? next : reservations.end();
}

std::shared_ptr<allocation> handle_set::known(int descriptor) const {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return nullptr;
  const auto file = by_file_.find({status.st_dev, status.st_ino});
  return file == by_file_.end() ? nullptr : file->second.lock();
}

void handle_set::remember(const std::shared_ptr<allocation>& memory) {
  struct stat status {};
  if (::fstat(memory->pages->descriptor(), &status) != 0) return;
  std::erase_if(by_file_, [](const auto& entry) { return entry.second.expired(); });
  by_file_.insert_or_assign({status.st_dev, status.st_ino}, memory);
}

namespace {

/// The location of a handle: what mem_create() thinks of it.
CUresult check_location(const state& machine, const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return machine.valid_device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:  // the machine has one node
      return location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check_properties(const state& machine, const CUmemAllocationProp& properties) {
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult failure = check_location(machine, properties.location);
      failure != CUDA_SUCCESS) {
    return failure;
  }
  const int types = properties.requestedHandleTypes;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  if ((types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

std::uint64_t granularity_of(const state& machine, const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && machine.valid_device(location.id)) {
    return machine.devices[static_cast<std::size_t>(location.id)].spec.granularity.count();
  }
  return device_page;
}

/// What goes with the descriptor of an exported handle.
struct handle_note {
  std::uint32_t kind = right_kind;
  CUmemAllocationProp properties{};

  static constexpr std::uint32_t right_kind = 0x6d6d76;
};

/// The protection that lets every device do what any of them may do; which of them may, the checks
/// of queued work decide.
int protection_of(const region& area) {
  unsigned granted = area.flags;  // the host's own rights
  for (const CUmemAccess_flags each : area.rights) granted |= static_cast<unsigned>(each);
  int protection = PROT_NONE;
  if ((granted & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0) protection |= PROT_READ;
  if (granted == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
  return protection;
}

/// The mappings under a range, by address.
struct whole_mappings {
  bool valid = true;         ///< no mapping lies in the range only in part
  bool ends_mapped = false;  ///< the range begins with a mapping and ends with one
  std::vector<region*> areas{};

  /// Access is granted from the beginning to the first gap, and silently no further.
  void keep_to_first_gap(std::uint64_t from) {
    const auto gap = std::find_if(areas.begin(), areas.end(), [&](const region* area) {
      return std::exchange(from, area->end()) != area->base;
    });
    areas.erase(gap, areas.end());
  }
};

whole_mappings mappings_under(memory& space, std::uint64_t address, std::uint64_t size) {
  whole_mappings under;
  space.each_in(address, size, [&](region& area) {
    if (area.kind != memory_kind::mapped || area.base < address || area.end() > address + size) {
      under.valid = false;
    }
    under.areas.push_back(&area);
  });
  under.ends_mapped = !under.areas.empty() && under.areas.front()->base == address &&
                      under.areas.back()->end() == address + size;
  return under;
}

/// What the driver thinks of the rights that mappings shall get.
CUresult check_access(const state& machine, const whole_mappings& under,
                      const CUmemAccessDesc* access, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [location, flags] = access[i];
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      if (!machine.valid_device(location.id)) return CUDA_ERROR_INVALID_VALUE;
    } else if (location.type == CU_MEM_LOCATION_TYPE_HOST ||
               location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
      for (const region* area : under.areas) {
        if (!area->mapped->on_host()) return CUDA_ERROR_NOT_SUPPORTED;
      }
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

// --- Addresses -----------------------------------------------------------------------------------

CUresult state::mem_address_reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                                    CUdeviceptr hint, unsigned long long flags) {
  if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0 || bytes % device_page != 0 || hint % device_page != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (alignment != 0 && !is_power_of_two(alignment)) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t base = space.reserve_addresses(bytes, alignment, hint);
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  space.handles->reservations.emplace(base, bytes);
  *address = base;
  return CUDA_SUCCESS;
}

CUresult state::mem_address_free(CUdeviceptr address, std::size_t bytes) {
  auto& reservations = space.handles->reservations;
  const auto reserved = reservations.find(address);
  if (reserved == reservations.end() || reserved->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  bool mapped = false;
  space.each_in(address, bytes, [&](const region&) { mapped = true; });
  if (mapped) return CUDA_ERROR_INVALID_VALUE;
  reservations.erase(reserved);
  space.free_addresses(address, bytes);
  return CUDA_SUCCESS;
}

// --- Handles -------------------------------------------------------------------------------------

CUresult state::mem_get_allocation_granularity(std::size_t* granularity,
                                               const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags option) {
  if (granularity == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
      option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *granularity = granularity_of(*this, properties->location);
  return CUDA_SUCCESS;
}

CUresult state::mem_create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                           const CUmemAllocationProp* properties, unsigned long long flags) {
  if (handle == nullptr || properties == nullptr || flags != 0 || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult failure = check_properties(*this, *properties); failure != CUDA_SUCCESS)
    return failure;
  if (bytes % granularity_of(*this, properties->location) != 0) return CUDA_ERROR_INVALID_VALUE;

  auto memory = std::make_shared<allocation>();
  memory->properties = *properties;
  memory->size = bytes;
  if (!memory->on_host()) {
    const int device = properties->location.id;
    if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
    if (!devices[static_cast<std::size_t>(device)].spec.virtual_memory) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    memory->claim = capacity_claim::take(*this, device, bytes);
    if (!memory->claim) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const bool shareable =
      (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  const bool real = options.back_memory || shareable || memory->on_host();
  memory->pages =
      real ? physical::create(*this, bytes, shareable) : physical::create_unbacked(bytes);
  if (!memory->pages) return CUDA_ERROR_OUT_OF_MEMORY;
  if (shareable) {
    const handle_note note{.properties = *properties};
    memory->pages->write_note({reinterpret_cast<const char*>(&note), sizeof(note)});
    space.handles->remember(memory);
  }
  charge(1, bytes);
  memory->id = space.next_id++;
  const auto created = memory;
  created->handle = *handle = space.handles->table.insert(std::move(memory));
  return CUDA_SUCCESS;
}

CUresult state::mem_release(CUmemGenericAllocationHandle handle) {
  const auto released = space.handles->table.share(handle);
  if (!released) return CUDA_ERROR_INVALID_VALUE;
  charge(1, released->size);
  if (--released->references == 0) {
    space.handles->table.erase(handle);
    released->handle = 0;
  }
  return CUDA_SUCCESS;
}

CUresult state::mem_get_allocation_properties(CUmemAllocationProp* properties,
                                              CUmemGenericAllocationHandle handle) {
  const allocation* const memory = space.handles->table.find(handle);
  if (properties == nullptr || memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = memory->properties;
  return CUDA_SUCCESS;
}

CUresult state::mem_retain_allocation_handle(CUmemGenericAllocationHandle* handle, void* address) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const region* const area = space.find(reinterpret_cast<std::uintptr_t>(address));
  if (area == nullptr || area->kind != memory_kind::mapped) return CUDA_ERROR_INVALID_VALUE;
  allocation& kept = *area->mapped;
  if (kept.references++ == 0) kept.handle = space.handles->table.insert(area->mapped);
  *handle = kept.handle;
  return CUDA_SUCCESS;
}

// --- Mapping -------------------------------------------------------------------------------------

CUresult state::mem_map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const auto memory = space.handles->table.share(handle);
  if (!memory || bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (address % granularity_of(*this, memory->properties.location) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (offset != 0 || bytes != memory->size) return CUDA_ERROR_NOT_SUPPORTED;  // whole handles only
  const auto within = space.handles->reservation(address);
  if (within == space.handles->reservations.end() ||
      bytes > within->first + within->second - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool taken = false;
  space.each_in(address, bytes, [&](const region&) { taken = true; });
  if (taken) return CUDA_ERROR_INVALID_VALUE;
  if (memory->pages->map_at(address, 0, bytes, false) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  space.insert({.base = address,
                .size = bytes,
                .kind = memory_kind::mapped,
                .device = memory->on_host() ? -1 : memory->properties.location.id,
                .pages = memory->pages,
                .rights = std::vector(devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE),
                .mapped = memory});
  return CUDA_SUCCESS;
}

CUresult state::mem_unmap(CUdeviceptr address, std::size_t bytes) {
  const auto within = space.handles->reservation(address);
  if (bytes == 0 || within == space.handles->reservations.end() ||
      bytes > within->first + within->second - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (address % device_page != 0 || bytes % device_page != 0) return CUDA_ERROR_INVALID_VALUE;
  const whole_mappings under = mappings_under(space, address, bytes);
  if (!under.valid) return CUDA_ERROR_INVALID_VALUE;
  charge(static_cast<double>(under.areas.size()));
  for (region* const area : under.areas) {
    space.check_removal(*area, "mem_unmap");
    space.erase(area->base);
  }
  return CUDA_SUCCESS;
}

CUresult state::mem_set_access(CUdeviceptr address, std::size_t bytes,
                               const CUmemAccessDesc* access, std::size_t count) {
  if (access == nullptr || count == 0 || bytes == 0 || address + bytes < address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  whole_mappings under = mappings_under(space, address, bytes);
  if (!under.valid || !under.ends_mapped) return CUDA_ERROR_INVALID_VALUE;
  under.keep_to_first_gap(address);
  if (const CUresult failure = check_access(*this, under, access, count); failure != CUDA_SUCCESS) {
    return failure;
  }
  charge(static_cast<double>(under.areas.size()));
  for (region* const area : under.areas) {
    const bool real = !area->pages->is_unbacked();
    const bool remembers = real || options.check_hazards;
    const auto rights_before = remembers ? area->rights : decltype(area->rights){};
    const unsigned flags_before = area->flags;
    for (std::size_t i = 0; i < count; ++i) {
      if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        area->rights[static_cast<std::size_t>(access[i].location.id)] = access[i].flags;
      } else {
        area->flags = static_cast<unsigned>(access[i].flags);
      }
    }
    void* const at = reinterpret_cast<void*>(static_cast<std::uintptr_t>(area->base));
    if (real && ::mprotect(at, area->size, protection_of(*area)) != 0) {
      area->rights = rights_before;
      area->flags = flags_before;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (std::size_t i = 0; i < rights_before.size(); ++i) {
      space.check_revocation(*area, static_cast<int>(i), rights_before[i], area->rights[i],
                             "mem_set_access");
    }
  }
  return CUDA_SUCCESS;
}

CUresult state::mem_get_access(unsigned long long* flags, const CUmemLocation* location,
                               CUdeviceptr address) {
  if (flags == nullptr || location == nullptr || address == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const region* const area = space.find(address);
  if (area == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Only mappings have rights that were set; other memory answers with none.
  if (area->kind == memory_kind::mapped) {
    *flags = static_cast<unsigned long long>(area->rights[static_cast<std::size_t>(location->id)]);
  }
  return CUDA_SUCCESS;
}

// --- Other processes -----------------------------------------------------------------------------

CUresult state::mem_export_to_shareable_handle(void* shareable, CUmemGenericAllocationHandle handle,
                                               CUmemAllocationHandleType type,
                                               unsigned long long flags) {
  const allocation* const memory = space.handles->table.find(handle);
  if (shareable == nullptr || memory == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (memory->properties.requestedHandleTypes & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int copy = ::fcntl(memory->pages->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(shareable, &copy, sizeof(copy));
  return CUDA_SUCCESS;
}

CUresult state::mem_import_from_shareable_handle(CUmemGenericAllocationHandle* handle,
                                                 void* shareable, CUmemAllocationHandleType type) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  // By convention the descriptor itself travels in the pointer.
  const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  std::string bytes;
  std::uint64_t size = 0;
  handle_note note;
  if (!physical::read_note(descriptor, bytes, size) || bytes.size() != sizeof(note)) {
    return CUDA_ERROR_UNKNOWN;
  }
  std::memcpy(&note, bytes.data(), sizeof(note));
  if (note.kind != handle_note::right_kind ||
      check_properties(*this, note.properties) != CUDA_SUCCESS ||
      size % granularity_of(*this, note.properties.location) != 0) {
    return CUDA_ERROR_UNKNOWN;
  }
  auto memory = std::make_shared<allocation>();
  if (const auto same = space.handles->known(descriptor)) {
    memory->pages = same->pages;
    memory->claim = same->claim;
  } else {
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    memory->pages = physical::adopt(copy, size);
  }
  space.handles->remember(memory);
  memory->properties = note.properties;
  memory->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;  // it cannot be passed on
  memory->size = size;
  memory->id = space.next_id++;
  const auto imported = memory;
  imported->handle = *handle = space.handles->table.insert(std::move(memory));
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
