// Answers about stream-ordered pools: reuse, limits, attributes, access, and sharing.
#include <unistd.h>

#include <algorithm>

#include "sim/answers.hpp"

namespace weir::sim_tests::answers {
namespace {

constexpr std::uint64_t page = 32 * mib;

class pools_program final : public program {
 public:
  explicit pools_program(const setting& chosen) : program{chosen}, capacity_{chosen.capacity} {
    add(2, [this] { create(); });
    add(1, [this] { destroy(); });
    add(14, [this] { allocate(); });
    add(12, [this] { free(); });
    add(3, [this] { set(); });
    add(5, [this] { ask(); });
    add(2, [this] { trim(); });
    add(2, [this] { grant(); });
    add(2, [this] { choose(); });
    add(3, [this] { share(); });
    add(3, [this] { ask_pointer(); });
    add(6, [this] { use(); });
    add(6, [this] { record(); });
    add(6, [this] { wait(); });
    add(2, [this] { make_event(); });
    add(2, [this] { make_stream(); });
    add(4, [this] { synchronize(); });
    add(4, [this] { pass_time(); });
    add(1, [this] { switch_device(); });
    add(1, [this] { plain(); });
  }

 private:
  struct pool {
    CUmemoryPool handle = nullptr;
    std::uint64_t room = 0;  // of its addresses
    CUdeviceptr origin = 0;  // its first address, once it is known
  };

  void prepare() override {
    pools_.clear();
    live_.clear();
    imported_.clear();
    for (int each = 0; each < 4; ++each) make_stream();
    for (int each = 0; each < 4; ++each) make_event();
    for (int each = 0; each < 2; ++each) {
      CUmemoryPool found = nullptr;
      said("default pool", cuda->device_get_default_mem_pool(&found, each));
      pools_.push_back({found, room(0)});
      values(known(found));
    }
    for (int each = 0; each < 2; ++each) create();
  }
  std::uint64_t room(std::uint64_t limit) const {
    return ((limit == 0 ? capacity_ : std::min(limit, capacity_)) / page + 1) * page * 4;
  }

  void create() {
    if (pools_.size() > 5) return destroy();
    CUmemPoolProps wanted{};
    wanted.allocType =
        dice.one_in(30) ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(dice.below(2))};
    if (wrong())
      wanted.location = {static_cast<CUmemLocationType>(dice.below(5)),
                         static_cast<int>(dice.below(3))};
    if (dice.one_in(2)) wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (dice.one_in(15))
      wanted.handleTypes = static_cast<CUmemAllocationHandleType>(dice.below(16));
    wanted.maxSize = dice.any_of<std::size_t>({0, 20 * mib, page, 3 * page, 100 * mib});
    if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE) wanted.maxSize = page;
    if (dice.one_in(30)) wanted.maxSize = std::size_t{1} << 48;
    if (dice.one_in(30)) wanted.reserved[53] = 1;
    auto made = reinterpret_cast<CUmemoryPool>(untouched);
    if (said("pool_create", cuda->mem_pool_create(&made, &wanted))) {
      pools_.push_back({made, room(wanted.maxSize)});
      if (dice.one_in(2))
        set_figure(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                   dice.any_of({page, 3 * page, ~std::uint64_t{0}}));
    }
    values(known(made));
  }
  void destroy() {
    if (pools_.size() < 3 || wrong()) {
      said("pool_destroy", cuda->mem_pool_destroy(dice.any_of({CUmemoryPool{}, pools_[0].handle})));
      return;
    }
    const std::size_t index = 2 + dice.below(pools_.size() - 2);
    const pool gone = pools_[index];
    pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(index));
    said("pool_destroy", cuda->mem_pool_destroy(gone.handle));
    if (wrong()) said("again", cuda->mem_pool_destroy(gone.handle));
    if (gone.origin != 0) vanish(gone.origin);
  }

  std::uint64_t size() {
    if (dice.one_in(12)) return page + dice.magnitude(40 * mib);
    return dice.one_in(40) ? 0 : dice.magnitude(16 * mib);
  }
  void allocate() {
    if (live_.size() > 24) return free();
    CUdeviceptr made = untouched;
    const std::uint64_t bytes = size();
    const CUstream on = any_stream();
    const CUmemoryPool from = dice.one_in(30) ? nullptr : any(pools_).handle;
    const bool done =
        dice.one_in(4)
            ? said("alloc_async", cuda->mem_alloc_async(&made, bytes, on))
            : said("alloc_from_pool", cuda->mem_alloc_from_pool_async(&made, bytes, from, on));
    if (!done || bytes == 0) return values(place(made));
    CUmemoryPool owner = nullptr;
    said("pool of", cuda->pointer_get_attribute(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, made));
    const auto found = std::find_if(pools_.begin(), pools_.end(),
                                    [&](const pool& each) { return each.handle == owner; });
    if (found != pools_.end() && found->origin == 0) {
      found->origin = made;
      appear(made, found->room);
    }
    values(known(owner), place(made));
    live_.push_back({made, bytes, device});
  }
  void free() {
    if (live_.empty() || wrong()) {
      said("free_async",
           cuda->mem_free_async(dice.any_of({CUdeviceptr{0}, nowhere}), any_stream_once()));
      if (!live_.empty() && any(live_).size > 1)
        said("inside", cuda->mem_free_async(live_[0].at + live_[0].size / 2 + 1, nullptr));
      return;
    }
    const piece gone = take(live_);
    const bool done = dice.one_in(8)
                          ? said("mem_free", cuda->mem_free(gone.at))
                          : said("free_async", cuda->mem_free_async(gone.at, any_stream()));
    if (!done) {
      live_.push_back(gone);
      return;
    }
    if (wrong()) said("again", cuda->mem_free_async(gone.at, nullptr));
  }
  CUstream any_stream_once() const { return streams.empty() ? nullptr : streams.front(); }
  /// Memory that is not a pool's, of a size that makes the pools give way.
  void plain() {
    CUdeviceptr made = untouched;
    if (!said("mem_alloc", cuda->mem_alloc(&made, 2 * mib + dice.magnitude(300 * mib)))) return;
    said("mem_free", cuda->mem_free(made));
  }

  // --- Attributes and access ---------------------------------------------------------------------

  void set_figure(CUmemoryPool of, CUmemPool_attribute which, std::uint64_t value) {
    said("set", cuda->mem_pool_set_attribute(of, which, &value));
  }
  void set() {
    const auto which = static_cast<CUmemPool_attribute>(
        wrong() ? dice.below(10) : dice.any_of<std::uint64_t>({1, 2, 3, 4, 6, 8}));
    const std::uint64_t value = which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                                    ? dice.below(5) * page
                                    : dice.below(wrong() ? 3 : 1 + (which < 4 ? 1 : 0));
    set_figure(dice.one_in(30) ? nullptr : any(pools_).handle, which, value);
  }
  void ask() {
    const CUmemoryPool of = dice.one_in(30) ? nullptr : any(pools_).handle;
    for (int each = 0; each < 10; ++each) {
      std::uint64_t value = 0;
      said("figure",
           cuda->mem_pool_get_attribute(of, static_cast<CUmemPool_attribute>(each), &value));
      values(value);
    }
  }
  void trim() {
    const CUmemoryPool of = dice.one_in(30) ? nullptr : any(pools_).handle;
    said("trim",
         cuda->mem_pool_trim_to(of, dice.any_of<std::size_t>({0, 1, page, page + 1, 2 * page})));
    ask();
  }
  void grant() {
    const CUmemoryPool of = any(imported_.empty() || dice.one_in(2) ? pools_ : imported_).handle;
    CUmemAccessDesc wanted{
        {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(dice.below(2))},
        dice.any_of({CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_NONE})};
    if (wrong()) wanted.location.type = CU_MEM_LOCATION_TYPE_HOST;
    if (wrong()) wanted.location.id = 2;
    if (wrong()) wanted.flags = static_cast<CUmemAccess_flags>(1 + dice.below(2));
    said("set_access", cuda->mem_pool_set_access(of, &wanted, 1));
    for (int each = 0; each < 3; ++each) {
      auto flags = static_cast<CUmemAccess_flags>(9);
      CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, each};
      if (wrong()) location.type = CU_MEM_LOCATION_TYPE_HOST;
      said("get_access", cuda->mem_pool_get_access(&flags, of, &location));
      values(flags);
    }
  }
  void choose() {
    const int of = static_cast<int>(dice.below(wrong() ? 3 : 2));
    said("set pool", cuda->device_set_mem_pool(of, any(pools_).handle));
    auto found = reinterpret_cast<CUmemoryPool>(untouched);
    said("get pool", cuda->device_get_mem_pool(&found, of));
    values(known(found));
    said("default pool", cuda->device_get_default_mem_pool(&found, of));
    values(known(found));
  }

  // --- Sharing and use ---------------------------------------------------------------------------

  void share() {
    const pool from = any(pools_);
    int descriptor = -1;
    const auto type =
        wrong() ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const bool exported = said(
        "export", cuda->mem_pool_export_to_shareable_handle(&descriptor, from.handle, type, 0));
    auto made = reinterpret_cast<CUmemoryPool>(untouched);
    void* const travelling = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
    const bool imported =
        said("import", cuda->mem_pool_import_from_shareable_handle(&made, travelling, type, 0));
    values(known(made));
    if (exported) ::close(descriptor);
    if (!imported) return;
    imported_ = {{made, from.room}};
    for (std::size_t i = 0; i < std::min<std::size_t>(live_.size(), 6); ++i)
      share_pointer(from, made, any(live_));
    if (dice.one_in(2)) said("pool_destroy", cuda->mem_pool_destroy(made));
  }
  void share_pointer(const pool& from, CUmemoryPool to, const piece& shared) {
    CUmemPoolPtrExportData data{};
    said("export pointer", cuda->mem_pool_export_pointer(&data, shared.at));
    if (wrong()) data.reserved[20] ^= 1;
    CUdeviceptr made = untouched;
    if (!said("import pointer", cuda->mem_pool_import_pointer(&made, to, &data))) return;
    // It lies as far from the begin as it does there.
    const std::uint64_t distance = shared.at - from.origin;
    values(distance, (made - distance) % unit);
    const std::uint64_t size = std::min<std::uint64_t>(shared.size, 2000);
    contents(made, size);
    for (int each = 1; each <= 21; ++each)
      ask_attribute(static_cast<CUpointer_attribute>(each), made);
    said("fill", cuda->memset_d8_async(made, 7, size, any_stream()));
    if (dice.one_in(2)) said("free imported", cuda->mem_free_async(made, nullptr));
  }
  void ask_pointer() {
    if (live_.empty()) return;
    const piece& of = any(live_);
    const CUdeviceptr at = dice.any_of({of.at, of.at + of.size - 1, of.at + of.size / 2});
    for (int each = 1; each <= 21; ++each)
      ask_attribute(static_cast<CUpointer_attribute>(each), at);
    CUdeviceptr base = untouched;
    std::size_t size = untouched;
    said("range", cuda->mem_get_address_range(&base, &size, at));
    values(place(base), size);
  }
  void use() {
    if (live_.empty()) return;
    const piece part = any_part(any(live_), 4 * mib);
    switch (dice.below(3)) {
      case 0:
        return contents(part.at, std::min<std::uint64_t>(part.size, 3000));
      case 1: {
        const auto value = static_cast<unsigned char>(dice.below(256));
        said("fill", cuda->memset_d8_async(part.at, value, part.size, any_stream()));
        return;
      }
      default: {
        const piece& whole = any(live_);
        std::vector<piece> pieces{{whole.at, std::min<std::uint64_t>(whole.size, 4 * mib), 0}};
        // The other device may not reach it; that is for the programs about hazards.
        if (streams.empty()) return;
        work(pieces);
      }
    }
  }

  std::uint64_t capacity_;
  std::vector<pool> pools_;
  std::vector<pool> imported_;
  std::vector<piece> live_;
};

}  // namespace

std::unique_ptr<program> play_pools(const setting& chosen) {
  return std::make_unique<pools_program>(chosen);
}

}  // namespace weir::sim_tests::answers
