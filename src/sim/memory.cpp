// Memory of a simulated machine: pages, the addresses they are mapped at, and capacity.
#include "sim/memory.hpp"

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

namespace weir::inline v0::sim {

namespace {

void* to_pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

std::uint64_t to_address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

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

std::shared_ptr<room> room::take(state& machine, int device, std::uint64_t size) {
  if (!machine.space.reserve(device, size)) {
    machine.pools->release_unused(device);
    if (!machine.space.reserve(device, size)) return nullptr;
  }
  return std::make_shared<room>(machine, device, size);
}

room::~room() { machine_.space.give_back(device_, size_); }

std::uint64_t memory::capacity(int device) const {
  return machine_.devices[static_cast<std::size_t>(device)].spec.capacity.count();
}

bool memory::reserve(int device, std::uint64_t size) {
  if (size > capacity(device)) return false;
  if (size > free(device)) evict_managed(machine_, device, size - free(device));
  return reserve_free(device, size);
}

bool memory::reserve_free(int device, std::uint64_t size) {
  if (size > free(device)) return false;
  const auto index = static_cast<std::size_t>(device);
  if (used_.size() <= index) used_.resize(index + 1, 0);
  used_[index] += size;
  return true;
}

void memory::give_back(int device, std::uint64_t size) {
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
  // What gives capacity or addresses back when it goes must go while those are still counted.
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
  if (at == MAP_FAILED) return 0;
  const std::uint64_t from = to_address(at);
  const std::uint64_t base = whole_pages(from, step);
  const std::uint64_t end = from + *with_slack;
  if (base > from) ::munmap(at, base - from);
  if (end > base + length) ::munmap(to_pointer(base + length), end - base - length);
  reservations_.emplace(base, length);
  return base;
}

void memory::free_addresses(std::uint64_t address, std::uint64_t size) {
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != whole_pages(size, host_page())) return;
  ::munmap(to_pointer(address), found->second);
  reservations_.erase(found);
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
  region& in = std::prev(next)->second;
  return address - in.base < in.size ? &in : nullptr;
}

region& memory::insert(region what) {
  if (what.id == 0) what.id = next_id++;
  const std::uint64_t base = what.base;
  near_ = regions_.insert_or_assign(first_after(base), base, std::move(what));
  return near_->second;
}

void memory::erase(std::uint64_t base) {
  const auto next = first_after(base);
  if (next == regions_.begin()) return;
  const auto found = std::prev(next);
  if (found->first != base) return;
  const region& in = found->second;
  const bool really_there = in.kind != memory_kind::registered && !in.pages->imagined();
  if (really_there && in.mapping_size == 0) {
    ::mmap(to_pointer(base), in.size, PROT_NONE, reserved_flags | MAP_FIXED, -1, 0);
  }
  near_ = found == regions_.begin() ? regions_.end() : std::prev(found);
  regions_.erase(found);
}

namespace {

/// Managed memory that was attached to the host is out of bounds for a device that cannot share
/// pages with it.
bool reachable(const state& machine, const managed_pages& pages, int device) {
  return device < 0 || pages.queued_attachment != CU_MEM_ATTACH_HOST ||
         machine.devices[static_cast<std::size_t>(device)].spec.concurrent_managed_access;
}

}  // namespace

CUmemAccess_flags memory::rights(const region& in, int device) const {
  const bool for_all = in.kind == memory_kind::pinned || in.kind == memory_kind::managed ||
                       in.kind == memory_kind::registered;
  if (for_all || device < 0) {
    if (in.managed && !reachable(machine_, *in.managed, device)) {
      return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    const bool read_only =
        in.kind == memory_kind::registered && (in.flags & host_register_read_only) != 0;
    return read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  const auto index = static_cast<std::size_t>(device);
  if (!in.rights.empty()) {
    return index < in.rights.size() ? in.rights[index] : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  if (in.device == device ||
      machine_.devices[index].peer_enabled[static_cast<std::size_t>(in.device)]) {
    return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

bool memory::permits(int device, const access& what) {
  const CUmemAccess_flags needed =
      what.writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  return each(what.where.address, what.where.size,
              [&](const region& in, std::uint64_t, std::uint64_t) {
                return !in.pages->imagined() && (rights(in, device) & needed) == needed;
              });
}

// --- Whole life times ----------------------------------------------------------------------------

small_heap& memory::heap_of(const region& what) {
  // Write-combined host memory is mapped differently and shares no page with other memory.
  const unsigned apart = what.device < 0 ? what.flags & host_alloc_write_combined : 0;
  auto& heap = small_[{what.device, apart}];
  if (!heap) heap = std::make_unique<small_heap>(machine_, what.device);
  return *heap;
}

bool memory::place(region& wanted) {
  if (wanted.kind != memory_kind::managed && wanted.size <= small_heap::largest) {
    return heap_of(wanted).take(wanted);
  }
  const std::uint64_t size = whole_pages(wanted.size, device_page);
  if (size == 0) return false;
  if (wanted.kind == memory_kind::plain) {
    wanted.takes = room::take(machine_, wanted.device, size);
    if (!wanted.takes) return false;
  }
  const bool real = machine_.options.back_memory || wanted.kind != memory_kind::plain;
  wanted.pages = real ? physical::create(machine_, size, false) : physical::imagine(size);
  if (!wanted.pages) return false;
  wanted.base = reserve_addresses(size);
  if (wanted.base == 0) return false;
  if (wanted.pages->map_at(wanted.base, 0, size, true) == 0) return true;
  free_addresses(wanted.base, size);
  return false;
}

void memory::tell_lifetime(region& in, deed what, const char* call) {
  if (!machine_.options.check_hazards) return;
  const moment when = machine_.flow.host_deed();
  const auto story = std::make_shared<const party>(
      party{call, stream_id{0}, when.at.tick, {in.base, in.size}, true, machine_.clock});
  in.pages->history.touch(in.offset, in.size, what, when, story, in.base, machine_.hazards);
}

region* memory::allocate(region wanted, const char* call) {
  if (!place(wanted)) return nullptr;
  region& made = insert(std::move(wanted));
  if (made.managed) ++managed_regions;
  tell_lifetime(made, deed::allocate, call);
  return &made;
}

void memory::release(region& going, const char* call) {
  tell_lifetime(going, deed::free, call);
  drop(going);
}

void memory::drop(region& going) {
  if (going.managed) {
    managed_forget(machine_, going);
    --managed_regions;
  }
  const region last = going;  // keeps pages and capacity until the addresses are gone
  erase(last.base);
  if (last.mapping_size != 0) {
    heap_of(last).give(last);
  } else if (last.kind != memory_kind::registered) {
    free_addresses(last.base, last.pages->size());
  }
}

bool memory::make_shareable(region& in) {
  if (!in.pages->make_shareable()) return false;
  const std::uint64_t base = in.mapping_size != 0 ? in.mapping_base : in.base;
  return in.pages->map_at(base, 0, in.pages->size(), true) == 0;
}

void memory::reset(int device) {
  if (machine_.shared) machine_.shared->reset(device);
  std::vector<region*> going;
  for (auto& [base, in] : regions_) {
    if (in.owner == device) going.push_back(&in);
  }
  for (region* each : going) drop(*each);
}

void memory::check_removal(const region& going, const char* call) {
  if (!machine_.options.check_hazards) return;
  const moment& when = machine_.flow.host.now();
  const deed_record* const use = going.uses.not_before(when);
  if (use == nullptr) return;
  const range where{going.base, going.size};
  const party taker{call, stream_id{0}, when.at.tick, where, true, machine_.clock};
  machine_.hazards.report({hazard_kind::freed_in_use, *use->story, taker, where});
}

}  // namespace weir::inline v0::sim
