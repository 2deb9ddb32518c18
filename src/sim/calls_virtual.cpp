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

namespace weir::inline v0::sim {

std::map<std::uint64_t, std::uint64_t>::const_iterator handle_set::reservation(
    std::uint64_t address) const noexcept {
  auto next = reservations.upper_bound(address);
  if (next == reservations.begin()) return reservations.end();
  --next;
  return address - next->first < next->second ? next : reservations.end();
}

std::shared_ptr<allocation> handle_set::known(int descriptor) const {
  struct stat facts {};
  if (::fstat(descriptor, &facts) != 0) return nullptr;
  const auto found = by_file_.find({facts.st_dev, facts.st_ino});
  return found == by_file_.end() ? nullptr : found->second.lock();
}

void handle_set::remember(const std::shared_ptr<allocation>& what) {
  struct stat facts {};
  if (::fstat(what->pages->descriptor(), &facts) != 0) return;
  std::erase_if(by_file_, [](const auto& entry) { return entry.second.expired(); });
  by_file_.insert_or_assign({facts.st_dev, facts.st_ino}, what);
}

namespace {

/// The location of a handle: what mem_create() thinks of it.
CUresult check_location(const state& machine, const CUmemLocation& where) {
  switch (where.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return machine.valid_device(where.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:  // the machine has one node
      return where.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check_properties(const state& machine, const CUmemAllocationProp& wanted) {
  if (wanted.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_location(machine, wanted.location); bad != CUDA_SUCCESS) {
    return bad;
  }
  const int types = wanted.requestedHandleTypes;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  if ((types & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

std::uint64_t granularity_of(const state& machine, const CUmemLocation& where) {
  if (where.type == CU_MEM_LOCATION_TYPE_DEVICE && machine.valid_device(where.id)) {
    return machine.devices[static_cast<std::size_t>(where.id)].spec.granularity.count();
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
int protection_of(const region& in) {
  unsigned granted = in.flags;  // the host's own rights
  for (const CUmemAccess_flags each : in.rights) granted |= static_cast<unsigned>(each);
  int protection = PROT_NONE;
  if ((granted & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0) protection |= PROT_READ;
  if (granted == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
  return protection;
}

/// The mappings under a range, by address.
struct whole_mappings {
  bool valid = true;         ///< no mapping lies in the range only in part
  bool ends_mapped = false;  ///< the range begins with a mapping and ends with one
  std::vector<region*> found{};

  /// Access is granted from the beginning to the first gap, and silently no further.
  void keep_to_first_gap(std::uint64_t from) {
    const auto gap = std::find_if(found.begin(), found.end(), [&](const region* in) {
      return std::exchange(from, in->end()) != in->base;
    });
    found.erase(gap, found.end());
  }
};

whole_mappings mappings_under(memory& space, std::uint64_t address, std::uint64_t size) {
  whole_mappings under;
  space.each_in(address, size, [&](region& in) {
    if (in.kind != memory_kind::mapped || in.base < address || in.end() > address + size) {
      under.valid = false;
    }
    under.found.push_back(&in);
  });
  under.ends_mapped = !under.found.empty() && under.found.front()->base == address &&
                      under.found.back()->end() == address + size;
  return under;
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
  const auto found = reservations.find(address);
  if (found == reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  bool mapped = false;
  space.each_in(address, bytes, [&](const region&) { mapped = true; });
  if (mapped) return CUDA_ERROR_INVALID_VALUE;
  reservations.erase(found);
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
  if (const CUresult bad = check_properties(*this, *properties); bad != CUDA_SUCCESS) return bad;
  if (bytes % granularity_of(*this, properties->location) != 0) return CUDA_ERROR_INVALID_VALUE;

  auto made = std::make_shared<allocation>();
  made->properties = *properties;
  made->size = bytes;
  if (!made->on_host()) {
    const int device = properties->location.id;
    if (const CUresult bad = health(device); bad != CUDA_SUCCESS) return bad;
    if (!devices[static_cast<std::size_t>(device)].spec.virtual_memory) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    made->takes = room::take(*this, device, bytes);
    if (!made->takes) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const bool shareable =
      (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  const bool real = options.back_memory || shareable || made->on_host();
  made->pages = real ? physical::create(*this, bytes, shareable) : physical::imagine(bytes);
  if (!made->pages) return CUDA_ERROR_OUT_OF_MEMORY;
  if (shareable) {
    const handle_note note{.properties = *properties};
    made->pages->write_note({reinterpret_cast<const char*>(&note), sizeof(note)});
    space.handles->remember(made);
  }
  charge(1, bytes);
  made->id = space.next_id++;
  const auto kept = made;
  kept->handle = *handle = space.handles->table.insert(std::move(made));
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
  const allocation* const found = space.handles->table.find(handle);
  if (properties == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = found->properties;
  return CUDA_SUCCESS;
}

CUresult state::mem_retain_allocation_handle(CUmemGenericAllocationHandle* handle, void* address) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const region* const in = space.find(reinterpret_cast<std::uintptr_t>(address));
  if (in == nullptr || in->kind != memory_kind::mapped) return CUDA_ERROR_INVALID_VALUE;
  allocation& kept = *in->mapped;
  if (kept.references++ == 0) kept.handle = space.handles->table.insert(in->mapped);
  *handle = kept.handle;
  return CUDA_SUCCESS;
}

// --- Mapping -------------------------------------------------------------------------------------

CUresult state::mem_map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const auto what = space.handles->table.share(handle);
  if (!what || bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (address % granularity_of(*this, what->properties.location) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (offset != 0 || bytes != what->size) return CUDA_ERROR_NOT_SUPPORTED;  // whole handles only
  const auto within = space.handles->reservation(address);
  if (within == space.handles->reservations.end() ||
      bytes > within->first + within->second - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool taken = false;
  space.each_in(address, bytes, [&](const region&) { taken = true; });
  if (taken) return CUDA_ERROR_INVALID_VALUE;
  if (what->pages->map_at(address, 0, bytes, false) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  space.insert({.base = address,
                .size = bytes,
                .kind = memory_kind::mapped,
                .device = what->on_host() ? -1 : what->properties.location.id,
                .pages = what->pages,
                .rights = std::vector(devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE),
                .mapped = what});
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
  charge(static_cast<double>(under.found.size()));
  for (region* const going : under.found) {
    space.check_removal(*going, "mem_unmap");
    space.erase(going->base);
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
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [where, flags] = access[i];
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (where.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      if (!valid_device(where.id)) return CUDA_ERROR_INVALID_VALUE;
    } else if (where.type == CU_MEM_LOCATION_TYPE_HOST ||
               where.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
      for (const region* in : under.found) {
        if (!in->mapped->on_host()) return CUDA_ERROR_NOT_SUPPORTED;
      }
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  charge(static_cast<double>(under.found.size()));
  for (region* const in : under.found) {
    const bool real = !in->pages->imagined();
    const auto rights_before = real ? in->rights : decltype(in->rights){};
    const unsigned flags_before = in->flags;
    for (std::size_t i = 0; i < count; ++i) {
      if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        in->rights[static_cast<std::size_t>(access[i].location.id)] = access[i].flags;
      } else {
        in->flags = static_cast<unsigned>(access[i].flags);
      }
    }
    void* const at = reinterpret_cast<void*>(static_cast<std::uintptr_t>(in->base));
    if (real && ::mprotect(at, in->size, protection_of(*in)) != 0) {
      in->rights = rights_before;
      in->flags = flags_before;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return CUDA_SUCCESS;
}

CUresult state::mem_get_access(unsigned long long* flags, const CUmemLocation* location,
                               CUdeviceptr address) {
  if (flags == nullptr || location == nullptr || address == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const region* const in = space.find(address);
  if (in == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Only mappings have rights that were set; other memory answers with none.
  if (in->kind == memory_kind::mapped) {
    *flags = static_cast<unsigned long long>(in->rights[static_cast<std::size_t>(location->id)]);
  }
  return CUDA_SUCCESS;
}

// --- Other processes -----------------------------------------------------------------------------

CUresult state::mem_export_to_shareable_handle(void* shareable, CUmemGenericAllocationHandle handle,
                                               CUmemAllocationHandleType type,
                                               unsigned long long flags) {
  const allocation* const what = space.handles->table.find(handle);
  if (shareable == nullptr || what == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (what->properties.requestedHandleTypes & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int copy = ::fcntl(what->pages->descriptor(), F_DUPFD_CLOEXEC, 0);
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
  auto made = std::make_shared<allocation>();
  if (const auto same = space.handles->known(descriptor)) {
    made->pages = same->pages;
    made->takes = same->takes;
  } else {
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    made->pages = physical::adopt(copy, size);
  }
  space.handles->remember(made);
  made->properties = note.properties;
  made->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;  // it cannot be passed on
  made->size = size;
  made->id = space.next_id++;
  made->imported = true;
  const auto kept = made;
  kept->handle = *handle = space.handles->table.insert(std::move(made));
  return CUDA_SUCCESS;
}

}  // namespace weir::inline v0::sim
