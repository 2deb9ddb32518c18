// SPDX-License-Identifier: Apache-2.0
// Memory of a simulated machine: pages, the addresses they are mapped at, and capacity.
#include "sim/memory.hpp"

#include "sim/host_refusals.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "sim/managed.hpp"
#include "sim/pools.hpp"
#include "sim/sharing.hpp"
#include "sim/small_heap.hpp"
#include "sim/state.hpp"
#include "sim/virtual.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

void* to_pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

std::uint64_t whole_pages(std::uint64_t size, std::uint64_t page) {
  return checked_round_up(size, page).value_or(0);
}

std::uint64_t host_page() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

constexpr int reserved_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

// --- Capacity ------------------------------------------------------------------------------------

std::shared_ptr<capacity_claim> capacity_claim::take(state& machine, int device,
                                                     std::uint64_t size) {
  auto claim = std::make_shared<capacity_claim>(machine, device);  // first: it may throw
  if (!machine.space.reserve_capacity(device, size)) {
    machine.pools->release_unused(device);
    if (!machine.space.reserve_capacity(device, size)) return nullptr;
  }
  claim->size_ = size;
  return claim;
}

capacity_claim::~capacity_claim() { machine_.space.release_capacity(device_, size_); }

std::uint64_t memory::capacity(int device) const {
  return machine_.devices[static_cast<std::size_t>(device)].spec.capacity.count();
}

bool memory::reserve_capacity(int device, std::uint64_t size) {
  if (size > capacity(device)) return false;
  if (size > free(device)) evict_managed(machine_, device, size - free(device));
  return reserve_free_capacity(device, size);
}

bool memory::reserve_free_capacity(int device, std::uint64_t size) {
  if (size > free(device)) return false;
  const auto index = static_cast<std::size_t>(device);
  if (used_.size() <= index) used_.resize(index + 1, 0);
  used_[index] += size;
  return true;
}

void memory::release_capacity(int device, std::uint64_t size) {
  std::uint64_t& used = used_[static_cast<std::size_t>(device)];
  used -= std::min(used, size);
}

std::uint64_t memory::used(int device) const {
  const auto index = static_cast<std::size_t>(device);
  return index < used_.size() ? used_[index] : 0;
}

std::uint64_t memory::free(int device) const {
  return capacity(device) - std::min(capacity(device), used(device));
}

// --- Addresses -----------------------------------------------------------------------------------

memory::memory(state& machine) : handles{std::make_unique<handle_set>()}, machine_{machine} {}

memory::~memory() {
  // What releases capacity or addresses in its destructor must go while those are still counted.
  regions_.clear();
  small_.clear();
  handles.reset();
  for (const auto& [base, size] : reservations_) ::munmap(to_pointer(base), size);
}

std::uint64_t memory::reserve_addresses(std::uint64_t size, std::uint64_t alignment,
                                        std::uint64_t hint) {
  const std::uint64_t length = whole_pages(size, host_page());
  const std::uint64_t step = std::max({alignment, device_page, host_page()});
  if (length == 0 || !is_power_of_two(step)) return 0;
  if (hint != 0 && hint % step == 0) {
    void* const at =
        ::mmap(to_pointer(hint), length, PROT_NONE, reserved_flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == to_pointer(hint)) {
      reservations_.emplace(hint, length);
      return hint;
    }
    if (at != MAP_FAILED) ::munmap(at, length);  // a kernel that does not know the flag
  }
  const auto with_slack = checked_add(length, step);
  if (!with_slack) return 0;
  void* const at = ::mmap(nullptr, *with_slack, PROT_NONE, reserved_flags, -1, 0);
  if (at == MAP_FAILED) {
    ++host_refusals();
    return 0;
  }
  const std::uint64_t from = to_address(at);
  const std::uint64_t base = whole_pages(from, step);
  const std::uint64_t end = from + *with_slack;
  if (base > from) ::munmap(at, base - from);
  if (end > base + length) ::munmap(to_pointer(base + length), end - base - length);
  reservations_.emplace(base, length);
  return base;
}

void memory::free_addresses(std::uint64_t address, std::uint64_t size) {
  const auto reserved = reservations_.find(address);
  if (reserved == reservations_.end() || reserved->second != whole_pages(size, host_page())) return;
  ::munmap(to_pointer(address), reserved->second);
  machine_.blocks.forget(address, reserved->second);
  reservations_.erase(reserved);
}

// --- Regions -------------------------------------------------------------------------------------

memory::region_map::iterator memory::search_after(std::uint64_t address) noexcept {
  const auto next = regions_.upper_bound(address);
  near_ = next == regions_.begin() ? regions_.end() : std::prev(next);
  return next;
}

region* memory::find(std::uint64_t address) noexcept {
  if (near_ != regions_.end() && address - near_->first < near_->second.size) {
    return &near_->second;
  }
  const auto next = first_after(address);
  if (next == regions_.begin()) return nullptr;
  region& area = std::prev(next)->second;
  return address - area.base < area.size ? &area : nullptr;
}

region& memory::insert(region area) {
  if (area.id == 0) area.id = next_id++;
  const std::uint64_t base = area.base;
  near_ = regions_.insert_or_assign(first_after(base), base, std::move(area));
  return near_->second;
}

void memory::erase(std::uint64_t base) {
  const auto next = first_after(base);
  if (next == regions_.begin()) return;
  const auto entry = std::prev(next);
  if (entry->first != base) return;
  const region& area = entry->second;
  const bool really_there = area.kind != memory_kind::registered && !area.pages->is_unbacked();
  if (really_there && area.mapping_size == 0) {
    ::mmap(to_pointer(base), area.size, PROT_NONE, reserved_flags | MAP_FIXED, -1, 0);
  }
  near_ = entry == regions_.begin() ? regions_.end() : std::prev(entry);
  regions_.erase(entry);
}

void memory::erase_in(std::uint64_t address, std::uint64_t size) {
  auto next = regions_.lower_bound(address);
  while (next != regions_.end() && next->first - address < size) erase((next++)->first);
}

namespace {

/// Managed memory that was attached to the host is out of bounds for a device that cannot share
/// pages with it.
bool reachable(const state& machine, const managed_pages& pages, int device, stage when) {
  const attachment& found = when == stage::queueing ? pages.queued_attachment : pages.attached;
  return device < 0 || found.flags != CU_MEM_ATTACH_HOST ||
         machine.devices[static_cast<std::size_t>(device)].spec.concurrent_managed_access;
}

}  // namespace

CUmemAccess_flags memory::rights(const region& area, int device, stage when) const {
  const bool for_all = area.kind == memory_kind::pinned || area.kind == memory_kind::managed ||
                       area.kind == memory_kind::registered;
  if (for_all || device < 0) {
    if (area.managed && !reachable(machine_, *area.managed, device, when)) {
      return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    const bool read_only =
        area.kind == memory_kind::registered && (area.flags & host_register_read_only) != 0;
    return read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  const auto index = static_cast<std::size_t>(device);
  if (!area.rights.empty()) {
    return index < area.rights.size() ? area.rights[index] : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  if (area.device == device ||
      machine_.devices[index].peer_enabled[static_cast<std::size_t>(area.device)]) {
    return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

bool memory::permits(int device, const access& request, stage when) {
  const CUmemAccess_flags needed =
      request.writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  return each(request.extent.address, request.extent.size,
              [&](const region& area, std::uint64_t, std::uint64_t) {
                return !area.pages->is_unbacked() &&
                       (rights(area, device, when) & needed) == needed;
              });
}

// --- Whole life times ----------------------------------------------------------------------------

small_heap& memory::heap_of(const region& area) {
  // Write-combined host memory is mapped differently and shares no page with other memory.
  const unsigned separate = area.flags & host_alloc_write_combined;
  auto& heap = small_[{area.device, separate}];
  if (!heap) heap = std::make_unique<small_heap>(machine_, area.device);
  return *heap;
}

bool memory::place(region& area) {
  if (area.kind != memory_kind::managed && area.size <= small_heap::largest) {
    return heap_of(area).place(area);
  }
  const std::uint64_t size = whole_pages(area.size, device_page);
  if (size == 0) return false;
  if (area.kind == memory_kind::plain) {
    area.claim = capacity_claim::take(machine_, area.device, size);
    if (!area.claim) return false;
  }
  const bool real = machine_.options.back_memory || area.kind != memory_kind::plain;
  area.pages = real ? physical::create(machine_, size, false) : physical::create_unbacked(size);
  if (!area.pages) return false;
  area.base = reserve_addresses(size);
  if (area.base == 0) return false;
  if (area.pages->map_at(area.base, 0, size, true) == 0) return true;
  free_addresses(area.base, size);
  return false;
}

void memory::record_lifetime(region& area, access_kind kind, const char* call) {
  if (!machine_.options.check_hazards) return;
  const moment when = machine_.flow.host_moment();
  const auto accessor = std::make_shared<const party>(party{.label = call,
                                                            .order = when.at.tick,
                                                            .extent = {area.base, area.size},
                                                            .writes = true,
                                                            .queued = machine_.clock,
                                                            .action = party_action::lifetime,
                                                            .step = ++machine_.steps});
  area.pages->history.touch(area.offset, area.size, kind, when, accessor, area.base,
                            machine_.hazards);
}

region* memory::allocate(region request, const char* call) {
  if (!place(request)) return nullptr;
  region& area = insert(std::move(request));
  if (area.managed) ++managed_regions;
  record_lifetime(area, access_kind::allocate, call);
  return &area;
}

void memory::release(region& area, const char* call) {
  record_lifetime(area, access_kind::free, call);
  drop(area);
}

void memory::drop(region& area) {
  if (area.managed) {
    managed_forget(machine_, area);
    --managed_regions;
  }
  const region last = area;  // keeps pages and capacity until the addresses are gone
  machine_.blocks.forget(last.base, last.size);
  erase(last.base);
  if (last.mapping_size != 0) {
    heap_of(last).release(last);
  } else if (last.kind != memory_kind::registered) {
    free_addresses(last.base, last.pages->size());
  }
}

bool memory::make_shareable(region& area) {
  if (!area.pages->make_shareable()) return false;
  const std::uint64_t base = area.mapping_size != 0 ? area.mapping_base : area.base;
  return area.pages->map_at(base, 0, area.pages->size(), true) == 0;
}

void memory::reset(int device) {
  if (machine_.shared) machine_.shared->reset(device);
  std::vector<region*> owned;
  for (auto& [base, area] : regions_) {
    if (area.owner == device) owned.push_back(&area);
  }
  for (region* area : owned) drop(*area);
}

void memory::check_removal(const region& area, const char* call) {
  if (!machine_.options.check_hazards) return;
  report_removal(area, area.uses.not_before(machine_.flow.host.now()), call);
}

void memory::check_revocation(const region& area, int device, CUmemAccess_flags before,
                              CUmemAccess_flags after, const char* call) {
  if (!machine_.options.check_hazards) return;
  const auto lost = static_cast<unsigned>(before) & ~static_cast<unsigned>(after);
  if (lost == 0) return;
  const bool only_writes = (lost & CU_MEM_ACCESS_FLAGS_PROT_READ) == 0;
  report_removal(area, area.uses.not_before(machine_.flow.host.now(), device, only_writes), call);
}

void memory::report_removal(const region& area, const access_record* use, const char* call) {
  if (use == nullptr) return;
  const range extent{area.base, area.size};
  const party remover{.label = call,
                      .order = machine_.flow.host.now().at.tick,
                      .extent = extent,
                      .writes = true,
                      .queued = machine_.clock,
                      .action = party_action::lifetime,
                      .step = ++machine_.steps};
  machine_.hazards.report({hazard_kind::freed_in_use, *use->accessor, remover, extent});
}

}}}  // namespace weir::v0::sim
