// Answers about managed memory: where its pages are, and what was advised.
#include "sim/answers.hpp"

namespace weir::sim_tests::answers {
namespace {

class managed_program final : public program {
 public:
  explicit managed_program(const setting& chosen) : program{chosen} {
    add(3, [this] { allocate(); });
    add(1, [this] { free(); });
    add(10, [this] { advise(); });
    add(8, [this] { prefetch(); });
    add(10, [this] { ask(); });
    add(8, [this] { work(pieces_); });
    add(6, [this] { touch(); });
    add(2, [this] { attach(); });
    add(2, [this] { crowd(); });
    add(3, [this] { fill(); });
    add(1, [this] { make_stream(); });
    add(3, [this] { synchronize(); });
    add(3, [this] { pass_time(); });
    add(2, [this] { switch_device(); });
  }

 private:
  void prepare() override {
    pieces_.clear();
    plain_.clear();
    for (int each = 0; each < 4; ++each) make_stream();
    for (int each = 0; each < 3; ++each) allocate();
  }
  void allocate() {
    if (pieces_.size() > 4) return;
    CUdeviceptr made = untouched;
    const std::uint64_t size = mib / 2 + dice.magnitude(12 * mib);
    const unsigned flags = dice.one_in(5) ? CU_MEM_ATTACH_HOST : CU_MEM_ATTACH_GLOBAL;
    if (!said("mem_alloc_managed", cuda->mem_alloc_managed(&made, size, flags))) return;
    pieces_.push_back({made, size, device});
    appear(made, size);
  }
  void free() {
    if (pieces_.size() < 3) return;
    const piece gone = take(pieces_);
    if (!said("mem_free", cuda->mem_free(gone.at))) return;
    if (wrong()) said("again", cuda->mem_free(gone.at));
    vanish(gone.at);
  }
  /// Plain memory takes the place of managed pages.
  void crowd() {
    if (plain_.size() > 1 || (!plain_.empty() && dice.one_in(2))) {
      const CUdeviceptr gone = take(plain_);
      said("mem_free", cuda->mem_free(gone));
      return vanish(gone);
    }
    CUdeviceptr made = untouched;
    const std::uint64_t size = 2 * mib + dice.magnitude(10 * mib);
    if (!said("mem_alloc", cuda->mem_alloc(&made, size))) return;
    plain_.push_back(made);
    appear(made, size);
  }
  CUmemLocation location() {
    if (wrong()) {
      const auto type = static_cast<CUmemLocationType>(dice.below(6));
      return {type, static_cast<int>(dice.below(4)) - 1};
    }
    if (dice.one_in(3)) return {CU_MEM_LOCATION_TYPE_HOST, 0};
    return {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(dice.below(2))};
  }
  void advise() {
    const piece part = any_part(any(pieces_));
    const auto advice = static_cast<CUmem_advise>(wrong() ? dice.below(9) : 1 + dice.below(6));
    values(place(part.at), part.size, advice);
    if (dice.one_in(4)) {
      const int to = static_cast<int>(dice.below(4)) - 1;
      said("advise_v1", cuda->mem_advise_v1(part.at, part.size, advice, to));
      return;
    }
    said("advise", cuda->mem_advise(part.at, part.size, advice, location()));
  }
  void prefetch() {
    const piece part = any_part(any(pieces_));
    const CUstream on = any_stream();
    values(place(part.at), part.size);
    if (dice.one_in(4)) {
      const int to = static_cast<int>(dice.below(4)) - 1;
      said("prefetch_v1", cuda->mem_prefetch_async_v1(part.at, part.size, to, on));
      return;
    }
    const unsigned flags = dice.one_in(30) ? 1 : 0;
    said("prefetch", cuda->mem_prefetch_async(part.at, part.size, location(), flags, on));
  }
  void ask() {
    const piece part = any_part(any(pieces_));
    for (int each = 1; each <= 9; ++each) {
      std::array<int, 4> value{99, 99, 99, 99};
      const bool listed = each == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
      std::size_t size = listed ? 4 * (1 + dice.below(4)) : 4;
      if (dice.one_in(20)) size = dice.below(9);
      said("range attribute",
           cuda->mem_range_get_attribute(
               value.data(), size, static_cast<CUmem_range_attribute>(each), part.at, part.size));
      for (const int found : value) values(found);
    }
  }
  void touch() {
    const piece part = any_part(any(pieces_));
    void* const at = reinterpret_cast<void*>(static_cast<std::uintptr_t>(part.at));
    dice.one_in(2) ? machine->host_read(at, part.size) : machine->host_write(at, part.size);
    values(machine->migrations(device_id{0}).to_host, machine->migrations(device_id{1}).to_host);
  }
  void attach() {
    const piece& whole = any(pieces_);
    const std::size_t size = wrong() ? 77 : dice.any_of<std::size_t>({0, whole.size});
    const unsigned flags = wrong() ? 3 : dice.any_of({1U, 2U, 4U});
    said("attach", cuda->stream_attach_mem_async(any_stream(), whole.at, size, flags));
  }
  void fill() {
    const piece part = any_part(any(pieces_));
    const auto value = static_cast<unsigned char>(dice.below(256));
    said("fill", cuda->memset_d8_async(part.at, value, part.size, any_stream()));
    if (dice.one_in(3)) contents(part.at, std::min<std::uint64_t>(part.size, 3000));
  }

  std::vector<piece> pieces_;
  std::vector<CUdeviceptr> plain_;
};

}  // namespace

std::unique_ptr<program> play_managed(const setting& chosen) {
  return std::make_unique<managed_program>(chosen);
}

}  // namespace weir::sim_tests::answers
