// SPDX-License-Identifier: Apache-2.0
// Memory of a simulated machine: pages, the addresses they are mapped at, and capacity.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/shadow.hpp"
#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// The host's pointers are addresses of the simulated device as well.
[[nodiscard]] inline std::uint64_t to_address(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

class state;
class page_file;      // physical.cpp: the sparse file that most pages of a machine are parts of
class small_heap;     // small_heap.hpp: where small allocations are cut from
class handle_set;     // virtual.hpp: physical handles and reservations of the user's
struct allocation;    // virtual.hpp: what a physical handle stands for
class managed_pages;  // managed.hpp: residency and advice

/// When rights are asked about: work that is queued finds what it will have in its turn, work that
/// is performed what there is now.
enum class stage { queueing, performing };

/// The unit in which a device's memory is taken: whatever is allocated takes whole ones.
inline constexpr std::uint64_t device_page = std::uint64_t{2} << 20;

/// A new file without a name, of `size` bytes that are all zero, which nobody can shorten under a
/// mapping of it; -1 where the system refuses.
[[nodiscard]] int make_sealed_file(const char* name, std::uint64_t size) noexcept;

/// The file-backed pages behind an allocation: real memory that can be mapped at several addresses
/// and, where it has a descriptor of its own, in several processes. Shared by all who refer to it;
/// the pages go back to the system with the last reference.
class physical {
 public:
  /// Sparse pages, all zero; a descriptor of its own if `shareable`, else a part of the machine's
  /// common file. Null where the system has no room or no descriptor left.
  static std::shared_ptr<physical> create(state& machine, std::uint64_t size, bool shareable);
  /// Nothing, of that size: for a machine that does not back its memory.
  static std::shared_ptr<physical> create_unbacked(std::uint64_t size);
  /// Pages that another process made; takes the descriptor over. -1: memory that is not ours, with
  /// nothing but a history.
  static std::shared_ptr<physical> adopt(int descriptor, std::uint64_t size);
  /// What the makers above begin with.
  physical() = default;
  ~physical();
  physical(const physical&) = delete;
  physical& operator=(const physical&) = delete;

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] std::uint64_t file_offset() const noexcept { return file_offset_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] bool is_unbacked() const noexcept { return unbacked_; }
  /// The first part of [begin, end) that may have been written, as its begin and end; both are
  /// `end` if there is none. The rest is zero and has no pages.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> written(std::uint64_t begin,
                                                                std::uint64_t end) const noexcept;
  /// Maps [offset, offset + size) of the pages at `address`; -1 with errno where the system
  /// refuses.
  int map_at(std::uint64_t address, std::uint64_t offset, std::uint64_t size, bool accessible);

  /// Gives the pages a descriptor of their own, if they have none, without a change to what they
  /// hold. Who has them mapped must map them again. False where the system refuses.
  bool make_shareable();

  // A shareable object can carry a note for whoever is handed its descriptor: bytes behind the
  // memory itself, which no mapping reaches.

  static constexpr std::size_t note_size = 192;
  /// At most note_size bytes; false if the object is not shareable or the note too long.
  bool write_note(std::string_view note);
  /// The note and the size of the memory behind a descriptor. False if the descriptor, whatever it
  /// is, is not of an object that create() made.
  static bool read_note(int descriptor, std::string& note, std::uint64_t& size);

  shadow history{};

 private:
  int descriptor_ = -1;
  bool owns_descriptor_ = false;
  bool unbacked_ = false;
  std::uint64_t file_offset_ = 0;
  std::uint64_t size_ = 0;
  std::shared_ptr<page_file> file_{};  // the common file, where these pages are a part of it
};

enum class memory_kind {
  plain,   ///< mem_alloc
  mapped,  ///< a physical handle mapped into a reservation
  pool,    ///< reserved by a stream-ordered pool; allocations lie inside
  graph,   ///< owned by a graph
  managed,
  pinned,      ///< mem_host_alloc
  registered,  ///< mem_host_register
  imported,    ///< another process's memory
};

/// A part of a device's capacity, released with this object.
class capacity_claim {
 public:
  /// Null if the device has no room, not even after its pools released what they do not use.
  static std::shared_ptr<capacity_claim> take(state& machine, int device, std::uint64_t size);
  /// What take() makes; of nothing at first.
  capacity_claim(state& machine, int device) : machine_{machine}, device_{device} {}
  ~capacity_claim();
  capacity_claim(const capacity_claim&) = delete;
  capacity_claim& operator=(const capacity_claim&) = delete;

 private:
  state& machine_;
  int device_;
  std::uint64_t size_ = 0;
};

/// One mapped run of addresses. Regions never overlap. An address belongs to at most one.
struct region {
  std::uint64_t base = 0;
  std::uint64_t size = 0;
  memory_kind kind = memory_kind::plain;
  int device = 0;  ///< where the pages live; -1 for host memory
  std::shared_ptr<physical> pages{};
  std::uint64_t offset = 0;  ///< of `base` in the pages
  /// By device ordinal; empty: the device itself and those that have it as an enabled peer.
  std::vector<driver::CUmemAccess_flags> rights{};
  use_log uses{};
  std::uint64_t id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID: never used twice
  unsigned flags = 0;    ///< of pinned and managed memory; of mapped memory the host's own rights
  int owner = -1;        ///< the device whose context it was made in; -1: it belongs to no context
  std::shared_ptr<capacity_claim> claim{};  ///< the capacity behind it, where it has its own
  std::shared_ptr<allocation> mapped{};     ///< of mapped memory: the handle's pages and capacity
  std::shared_ptr<managed_pages> managed{};
  driver::CUmemoryPool pool = nullptr;
  /// The mapping that the region lies in, where that is larger: small allocations share one, and it
  /// stays when the region goes. 0: the mapping is the region.
  std::uint64_t mapping_base = 0;
  std::uint64_t mapping_size = 0;

  [[nodiscard]] std::uint64_t end() const noexcept { return base + size; }
};

/// The address space and the devices' capacity. Needs the machine's lock held.
///
/// Looking up an address costs a tree search, or nothing where it lies at the last one or behind
/// it.
class memory {
 public:
  explicit memory(state& machine);
  ~memory();
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  // --- Regions -----------------------------------------------------------------------------------

  /// The region that contains `address`; null where nothing is mapped.
  [[nodiscard]] region* find(std::uint64_t address) noexcept;
  /// Calls `visit(region&)` for each region that lies in [address, address + size), even partly.
  template <class Visit>
  void each_in(std::uint64_t address, std::uint64_t size, Visit&& visit) {
    auto next = first_after(address);
    if (next != regions_.begin() && std::prev(next)->second.end() > address) --next;
    for (; next != regions_.end() && next->second.base < address + size; ++next) {
      visit(next->second);
    }
  }
  /// Host memory that is pinned, allocated and registered together. Walks over all regions.
  [[nodiscard]] std::uint64_t pinned_bytes() const noexcept {
    std::uint64_t total = 0;
    for (const auto& [base, area] : regions_)
      if (area.kind == memory_kind::pinned || area.kind == memory_kind::registered)
        total += area.size;
    return total;
  }
  /// Adds a region whose pages are mapped already (physical::map_at). Gives it an id if it has
  /// none.
  region& insert(region area);
  /// Forgets the region and unmaps it (the addresses become inaccessible but stay reserved).
  void erase(std::uint64_t base);
  /// The same for every region that begins in the range.
  void erase_in(std::uint64_t address, std::uint64_t size);

  /// Calls `visit(region&, address, size)` for each region under [address, address + size), in
  /// order; false, and stops, where there is a hole.
  template <class Visit>
  bool each(std::uint64_t address, std::uint64_t size, Visit&& visit) {
    const std::uint64_t end = address + size;
    if (end < address) return false;
    while (address < end) {
      region* area = find(address);
      if (area == nullptr) return false;
      const std::uint64_t piece = std::min(end, area->end()) - address;
      if (!visit(*area, address, piece)) return false;
      address += piece;
    }
    return true;
  }

  template <class Visit>
  void for_each(Visit&& visit) {
    for (auto& [base, area] : regions_) visit(area);
  }

  /// Whether work of `device` may do `request`; pageable host memory is nobody's and not allowed.
  [[nodiscard]] bool permits(int device, const access& request, stage when);
  /// What `device` may do with a region.
  [[nodiscard]] driver::CUmemAccess_flags rights(const region& area, int device,
                                                 stage when = stage::queueing) const;

  // --- Capacity ----------------------------------------------------------------------------------

  /// Takes `size` bytes of a device's capacity; false if it has no room. Evicts managed pages
  /// first.
  [[nodiscard]] bool reserve_capacity(int device, std::uint64_t size);
  /// The same without evicting anything.
  [[nodiscard]] bool reserve_free_capacity(int device, std::uint64_t size);
  void release_capacity(int device, std::uint64_t size);
  [[nodiscard]] std::uint64_t used(int device) const;
  [[nodiscard]] std::uint64_t free(int device) const;

  // --- Addresses ---------------------------------------------------------------------------------

  /// Addresses that nobody else has, inaccessible, aligned to 2 MiB or `alignment`; 0 if there are
  /// none left.
  [[nodiscard]] std::uint64_t reserve_addresses(std::uint64_t size, std::uint64_t alignment = 0,
                                                std::uint64_t hint = 0);
  void free_addresses(std::uint64_t address, std::uint64_t size);

  // --- Whole life times --------------------------------------------------------------------------

  /// Makes a region of its own for plain, pinned or managed memory, as `request` describes it:
  /// small ones share a chunk, and only plain memory takes capacity. Null if there is no room.
  region* allocate(region request, const char* call);
  /// Takes a region of allocate() away, with its addresses; reports freed_in_use where queued work
  /// may still touch it.
  void release(region& area, const char* call);

  /// Lets other processes open the pages of a region of allocate(), in place.
  bool make_shareable(region& area);

  /// A primary context is reset: what was made in it goes. Physical handles belong to no context.
  void reset(int device);

  /// Checks, against everything still queued, that the host may take [region] away now; reports
  /// freed_in_use where it may not.
  void check_removal(const region& area, const char* call);
  /// The same where the host takes rights of `device` to [region] away: `before` becomes `after`.
  /// Only uses of the device that need what it loses count.
  void check_revocation(const region& area, int device, driver::CUmemAccess_flags before,
                        driver::CUmemAccess_flags after, const char* call);

  std::uint64_t next_id = 1;
  std::uint64_t touches = 0;          ///< of managed memory, counted to tell old from new
  std::uint64_t managed_regions = 0;  ///< how many there are
  std::unique_ptr<handle_set> handles;

 private:
  friend class physical;

  [[nodiscard]] std::uint64_t capacity(int device) const;
  bool place(region& area);
  void record_lifetime(region& area, access_kind kind, const char* call);
  void report_removal(const region& area, const access_record* use, const char* call);
  void drop(region& area);
  small_heap& heap_of(const region& area);

  using region_map = std::map<std::uint64_t, region>;
  /// The first region that begins behind `address`.
  [[nodiscard]] region_map::iterator first_after(std::uint64_t address) noexcept {
    if (regions_.empty() || regions_.rbegin()->first <= address) return regions_.end();
    if (near_ != regions_.end() && near_->first <= address) {
      const auto next = std::next(near_);
      if (next == regions_.end() || next->first > address) return next;
    }
    return search_after(address);
  }
  region_map::iterator search_after(std::uint64_t address) noexcept;

  state& machine_;
  region_map regions_;
  region_map::iterator near_ = regions_.end();  // found last; most look-ups stay near
  std::vector<std::uint64_t> used_;
  std::map<std::uint64_t, std::uint64_t> reservations_;  // base -> size, as mapped from the system
  std::map<std::pair<int, unsigned>, std::unique_ptr<small_heap>> small_;
  std::shared_ptr<page_file> file_;
};

}}}  // namespace weir::v0::sim
