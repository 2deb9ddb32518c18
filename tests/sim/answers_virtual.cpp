// Answers about reserved addresses, physical handles, and mapping the one into the other.
#include <unistd.h>

#include "sim/answers.hpp"

namespace weir::sim_tests::answers {
namespace {

class virtual_program final : public program {
 public:
  explicit virtual_program(const setting& chosen) : program{chosen} {
    add(3, [this] { reserve(); });
    add(2, [this] { free_addresses(); });
    add(5, [this] { create(); });
    add(3, [this] { release(); });
    add(10, [this] { map(); });
    add(4, [this] { unmap(); });
    add(10, [this] { set_access(); });
    add(5, [this] { ask_access(); });
    add(4, [this] { ask_handle(); });
    add(3, [this] { retain(); });
    add(2, [this] { share(); });
    add(6, [this] { use(); });
    add(2, [this] { synchronize(); });
    add(1, [this] { pass_time(); });
    add(1, [this] { switch_device(); });
  }

 private:
  struct handle {
    CUmemGenericAllocationHandle number = 0;
    std::uint64_t size = 0;
  };

  void prepare() override {
    ranges_.clear();
    handles_.clear();
    for (int each = 0; each < 3; ++each) make_stream();
    for (int each = 0; each < 3; ++each) reserve();
  }

  void reserve() {
    if (ranges_.size() > 5) return;
    CUdeviceptr made = untouched;
    const std::uint64_t bytes =
        wrong() ? dice.any_of({std::uint64_t{0}, unit + 4096}) : unit * (1 + dice.below(10));
    const std::uint64_t alignment =
        wrong() ? 3 * mib : dice.any_of({std::uint64_t{0}, 2 * mib, 8 * mib});
    const CUdeviceptr hint = wrong() ? 4096 : 0;
    if (said("reserve",
             cuda->mem_address_reserve(&made, bytes, alignment, hint, dice.one_in(30) ? 1 : 0))) {
      ranges_.push_back({made, bytes, 0});
      appear(made, bytes);
      values(made % (alignment == 0 ? unit : alignment));
    }
    values(place(made));
  }
  void free_addresses() {
    if (ranges_.size() < 3) return;
    const piece gone = take(ranges_);
    if (wrong()) said("part", cuda->mem_address_free(gone.at, gone.size - unit));
    if (wrong()) said("inside", cuda->mem_address_free(gone.at + unit, gone.size));
    if (dice.one_in(2)) said("unmap", cuda->mem_unmap(gone.at, gone.size));
    if (!said("address_free", cuda->mem_address_free(gone.at, gone.size))) {
      ranges_.push_back(gone);
      return;
    }
    if (wrong()) said("again", cuda->mem_address_free(gone.at, gone.size));
    vanish(gone.at);
  }

  CUmemAllocationProp properties() {
    CUmemAllocationProp wanted{};
    wanted.type = dice.one_in(30) ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(dice.below(2))};
    if (wrong()) {
      wanted.location.type = static_cast<CUmemLocationType>(dice.below(5));
      wanted.location.id = static_cast<int>(dice.below(4)) - 1;
    }
    if (dice.one_in(3)) wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (dice.one_in(30))
      wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(dice.below(16));
    wanted.allocFlags.gpuDirectRDMACapable = static_cast<unsigned char>(dice.below(2));
    return wanted;
  }
  void create() {
    const CUmemAllocationProp wanted = properties();
    std::size_t granularity = untouched;
    const auto option = static_cast<CUmemAllocationGranularity_flags>(dice.below(wrong() ? 3 : 2));
    said("granularity", cuda->mem_get_allocation_granularity(&granularity, &wanted, option));
    values(granularity);
    if (handles_.size() > 12) return release();
    CUmemGenericAllocationHandle made = untouched;
    const std::uint64_t bytes =
        wrong() ? dice.any_of({std::uint64_t{0}, unit / 2}) : unit * (1 + dice.below(3));
    if (said("create", cuda->mem_create(&made, bytes, &wanted, dice.one_in(40) ? 1 : 0))) {
      handles_.push_back({made, bytes});
    }
    values(known(made));
  }
  void release() {
    if (handles_.empty() || wrong()) {
      said("release", cuda->mem_release(dice.any_of(
                          {CUmemGenericAllocationHandle{0}, CUmemGenericAllocationHandle{0x77}})));
      return;
    }
    const handle gone = take(handles_);
    said("release", cuda->mem_release(gone.number));
    if (wrong()) said("again", cuda->mem_release(gone.number));
  }
  void retain() {
    if (ranges_.empty()) return;
    CUmemGenericAllocationHandle kept = untouched;
    const piece part = somewhere();
    if (said("retain", cuda->mem_retain_allocation_handle(
                           &kept, reinterpret_cast<void*>(static_cast<std::uintptr_t>(part.at))))) {
      CUdeviceptr base = 0;
      std::size_t size = unit;
      said("range", cuda->mem_get_address_range(&base, &size, part.at));
      handles_.push_back({kept, size == 0 ? unit : size});
    }
    values(known(kept));
  }

  // --- Mapping -----------------------------------------------------------------------------------

  /// Whole units of a reservation, as a rule.
  piece somewhere() {
    const piece& range = any(ranges_);
    const std::uint64_t from = dice.below(range.size / unit) * unit;
    const std::uint64_t size = unit * (1 + dice.below((range.size - from) / unit));
    if (wrong())
      return {range.at + from + dice.any_of<std::uint64_t>({1, 4096, unit / 2}), size - unit / 2};
    return {range.at + from, size};
  }
  void map() {
    if (ranges_.empty() || handles_.empty()) return;
    const piece to = somewhere();
    const handle& from = any(handles_);
    const std::uint64_t bytes = dice.one_in(20) ? to.size : from.size;
    const std::uint64_t offset = dice.one_in(30) ? unit : 0;
    values(place(to.at), bytes);
    if (!said("map", cuda->mem_map(to.at, bytes, offset, from.number, dice.one_in(40) ? 1 : 0)))
      return;
    if (wrong()) said("again", cuda->mem_map(to.at, bytes, 0, from.number, 0));
    if (dice.one_in(2)) grant({to.at, bytes});
  }
  void unmap() {
    if (ranges_.empty()) return;
    const piece part = dice.one_in(8) ? any(ranges_) : somewhere();
    said("unmap", cuda->mem_unmap(part.at, part.size));
    if (wrong()) said("beyond", cuda->mem_unmap(part.at, part.size + 64 * mib));
    if (wrong()) said("nothing", cuda->mem_unmap(part.at, 0));
  }
  void set_access() {
    if (ranges_.empty()) return;
    grant(dice.one_in(6) ? any(ranges_) : somewhere());
  }
  void grant(const piece& to) {
    std::vector<CUmemAccessDesc> wanted;
    for (std::uint64_t left = 1 + dice.below(2); left > 0; --left) {
      CUmemAccessDesc each{
          {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(dice.below(2))},
          dice.any_of({CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                       CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_NONE})};
      if (wrong()) each.location.type = static_cast<CUmemLocationType>(dice.below(5));
      if (dice.one_in(30)) each.location.id = 2;
      if (dice.one_in(30)) each.flags = static_cast<CUmemAccess_flags>(2);
      wanted.push_back(each);
    }
    values(place(to.at), to.size);
    said("set_access", cuda->mem_set_access(to.at, to.size, wanted.data(), wanted.size()));
    if (dice.one_in(30)) said("nobody", cuda->mem_set_access(to.at, to.size, wanted.data(), 0));
  }

  // --- Questions and use
  // --------------------------------------------------------------------------

  void ask_access() {
    if (ranges_.empty()) return;
    const piece part = somewhere();
    for (int each = 0; each < 3; ++each) {
      unsigned long long flags = untouched;
      const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, each};
      said("get_access", cuda->mem_get_access(&flags, &location, part.at));
      values(flags);
    }
    CUdeviceptr base = untouched;
    std::size_t size = untouched;
    said("range", cuda->mem_get_address_range(&base, &size, part.at + part.size - 1));
    values(place(base), size);
    for (int each = 1; each <= 21; ++each) {
      ask_attribute(static_cast<CUpointer_attribute>(each), part.at);
    }
    auto start = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
    base = untouched;
    void* target = &base;
    said("attributes", cuda->pointer_get_attributes(1, &start, &target, part.at));
    values(place(base));
  }
  void ask_handle() {
    CUmemAllocationProp found{};
    const CUmemGenericAllocationHandle of =
        handles_.empty() || wrong() ? 0x77 : any(handles_).number;
    said("properties", cuda->mem_get_allocation_properties(&found, of));
    values(found.type, found.requestedHandleTypes, found.location.type, found.location.id,
           found.allocFlags.gpuDirectRDMACapable);
  }
  void share() {
    if (handles_.empty()) return;
    const handle from = any(handles_);
    int descriptor = -1;
    const auto type =
        wrong() ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const bool exported =
        said("export", cuda->mem_export_to_shareable_handle(&descriptor, from.number, type, 0));
    CUmemGenericAllocationHandle made = untouched;
    void* const travelling = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
    if (said("import", cuda->mem_import_from_shareable_handle(&made, travelling, type))) {
      handles_.push_back({made, from.size});
    }
    values(known(made));
    if (exported) ::close(descriptor);
  }
  void use() {
    if (ranges_.empty()) return;
    piece part = somewhere();
    part.size -= dice.below(part.size);
    values(place(part.at), part.size);
    switch (dice.below(4)) {
      case 0: {
        const auto value = static_cast<unsigned char>(dice.below(256));
        said("fill", cuda->memset_d8_async(part.at, value, part.size, any_stream()));
        return;
      }
      case 1:
        return contents(part.at, std::min<std::uint64_t>(part.size, 3000));
      case 2: {
        const piece from = somewhere();
        const std::uint64_t size = std::min({part.size, from.size, 5 * kib});
        said("copy", cuda->memcpy_async(part.at, from.at, size, any_stream()));
        return;
      }
      default: {
        // Work where nothing is mapped breaks the device down: seldom.
        CUdeviceptr base = 0;
        std::size_t size = 0;
        const bool mapped = cuda->mem_get_address_range(&base, &size, part.at) == CUDA_SUCCESS;
        if (!mapped && !wrong()) return;
        std::vector<piece> pieces{
            {part.at,
             mapped ? std::min<std::uint64_t>(part.size, base + size - part.at) : part.size}};
        work(pieces);
      }
    }
  }

  std::vector<piece> ranges_;
  std::vector<handle> handles_;
};

}  // namespace

std::unique_ptr<program> play_virtual_memory(const setting& chosen) {
  return std::make_unique<virtual_program>(chosen);
}

}  // namespace weir::sim_tests::answers
