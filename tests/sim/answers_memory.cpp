// Answers about plain, pinned, managed and registered memory, pointers, copies, fills and devices.
#include <algorithm>
#include <cstring>

#include "sim/answers.hpp"

namespace weir::sim_tests::answers {
namespace {

class memory_program final : public program {
 public:
  explicit memory_program(const setting& chosen) : program{chosen} {
    add(4, [this] { allocate(); });
    add(2, [this] { allocate_rows(); });
    add(2, [this] { pin(); });
    add(2, [this] { allocate_managed(); });
    add(2, [this] { register_host(); });
    add(4, [this] { free(); });
    add(8, [this] { copy(); });
    add(8, [this] { copy_box(); });
    add(2, [this] { copy_batch(); });
    add(6, [this] { fill(); });
    add(5, [this] { ask_pointer(); });
    add(4, [this] { ask_range(); });
    add(4, [this] { ask_device(); });
    add(3, [this] { use_contexts(); });
    add(3, [this] { read(); });
    add(2, [this] { make_stream(); });
    add(2, [this] { synchronize(); });
    add(2, [this] { pass_time(); });
    add(2, [this] { share(); });
    add(2, [this] {
      for (piece& each : all_) pieces_.push_back(each);
      work(pieces_);
      pieces_.clear();
    });
  }

 private:
  enum class kind : std::uint8_t { plain, pinned, managed };
  struct held : piece {
    kind is = kind::plain;
  };

  void prepare() override {
    all_.clear();
    registered_.clear();
    appear(reinterpret_cast<std::uintptr_t>(registerable_.data()), registerable_.size(), page);
    for (int i = 0; i < 3; ++i) make_stream();
  }

  bool few_small() const {
    return std::count_if(all_.begin(), all_.end(),
                         [](const held& each) { return each.size < mib; }) < 10;
  }
  /// Small enough to share a chunk with others, or of a chunk's own; both odd.
  std::uint64_t size() {
    return few_small() && dice.one_in(2) ? dice.magnitude(60 * kib) : mib + dice.magnitude(7 * mib);
  }
  bool full() {
    if (all_.size() < 18) return false;
    free();
    return true;
  }
  void keep(CUdeviceptr at, std::uint64_t size, kind is) {
    appear(at, size);
    all_.push_back({{at, size, device}, is});
    values(place(at));
  }

  void allocate() {
    if (full()) return;
    CUdeviceptr made = untouched;
    if (wrong()) {
      said("mem_alloc", cuda->mem_alloc(&made, dice.any_of<std::size_t>({0, 1ULL << 60, ~0ULL})));
      said("mem_alloc nowhere", cuda->mem_alloc(nullptr, 512));
      return values(place(made));
    }
    const std::uint64_t bytes = size();
    if (said("mem_alloc", cuda->mem_alloc(&made, bytes))) keep(made, bytes, kind::plain);
    info();
  }
  void allocate_rows() {
    if (full()) return;
    CUdeviceptr made = untouched;
    std::size_t pitch = untouched;
    const std::size_t width = dice.magnitude(4000);
    const std::size_t height = dice.one_in(2) ? 1 + dice.below(12) : 4000 / width + 400;
    const unsigned element = wrong() ? dice.any_of({0U, 2U, 32U}) : dice.any_of({4U, 8U, 16U});
    const std::size_t rows = wrong() ? dice.any_of<std::size_t>({0, ~0ULL}) : height;
    // What is neither small nor large would need more than one chunk.
    const std::uint64_t total = (width + 511) / 512 * 512 * height;
    if (total <= mib && (total > 60 * kib || !few_small())) return;
    const bool made_rows =
        said("pitch", cuda->mem_alloc_pitch(&made, &pitch, width, rows, element));
    values(pitch);
    if (made_rows) keep(made, pitch * rows, kind::plain);
  }
  void pin() {
    if (full()) return;
    void* made = nullptr;
    const std::uint64_t bytes = wrong() ? 0 : size();
    const unsigned flags = wrong() ? 8 : static_cast<unsigned>(dice.below(8));
    if (said("mem_host_alloc", cuda->mem_host_alloc(&made, bytes, flags)) && bytes != 0) {
      keep(reinterpret_cast<std::uintptr_t>(made), bytes, kind::pinned);
    }
  }
  void allocate_managed() {
    if (full()) return;
    CUdeviceptr made = untouched;
    const std::uint64_t bytes = wrong() ? 0 : mib + dice.magnitude(4 * mib);
    const unsigned flags = wrong() ? 4 : 1 + static_cast<unsigned>(dice.below(2));
    if (said("mem_alloc_managed", cuda->mem_alloc_managed(&made, bytes, flags))) {
      keep(made, bytes, kind::managed);
    }
  }
  void register_host() {
    const bool whole = dice.one_in(2);  // pages, or any bytes
    const std::uint64_t offset = dice.below(200 * kib);
    unsigned char* const from = registerable_.data() + (whole ? offset / page * page : offset);
    if (registered_.size() > 3 || dice.one_in(4)) {
      const bool known = !registered_.empty() && !wrong();
      void* const gone = known ? pointer(take(registered_)) : from;
      if (!said("unregister", cuda->mem_host_unregister(gone)) && known) return;
      if (wrong()) said("again", cuda->mem_host_unregister(gone));
      return;
    }
    const std::size_t length = dice.magnitude(40 * kib);
    const std::size_t bytes = wrong() ? 0 : whole ? (length / page + 1) * page : length;
    const unsigned flags = wrong() ? 16 : static_cast<unsigned>(dice.below(16));
    if (said("register", cuda->mem_host_register(from, bytes, flags))) {
      registered_.push_back({reinterpret_cast<std::uintptr_t>(from), bytes, device});
    }
  }
  void free() {
    if (all_.empty() || wrong()) {
      said("mem_free", cuda->mem_free(dice.any_of({CUdeviceptr{0}, nowhere})));
      said("mem_free_host", cuda->mem_free_host(host.data()));
      if (all_.empty()) return;
      const held& inside = any(all_);
      said("inside", cuda->mem_free(inside.at + inside.size / 2 + 1));
      return;
    }
    const held gone = take(all_);
    void* const pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(gone.at));
    const bool as_pinned = (gone.is == kind::pinned) != wrong();
    const bool in_order = gone.is != kind::pinned && dice.one_in(4);
    bool freed = false;
    if (in_order) {
      freed = said("mem_free_async", cuda->mem_free_async(gone.at, any_stream()));
    } else if (as_pinned) {
      freed = said("mem_free_host", cuda->mem_free_host(pointer));
    } else {
      freed = said("mem_free", cuda->mem_free(gone.at));
    }
    if (!freed) {
      all_.push_back(gone);
      return;
    }
    if (dice.one_in(3)) said("again", cuda->mem_free(gone.at));
    if (dice.one_in(3)) said("again", cuda->mem_free_host(pointer));
    // Until the stream has come to it, memory that is freed in order lies where it was.
    if (in_order) said("ctx_synchronize", cuda->ctx_synchronize());
    if (in_order) machine->run_until_idle();
    vanish(gone.at);
    info();
  }
  void info() {
    std::size_t left = untouched;
    std::size_t total = untouched;
    said("mem_get_info", cuda->mem_get_info(&left, &total));
    values(left, total);
  }

  // --- Copies and fills --------------------------------------------------------------------------

  /// Memory of any kind, the host's own, or none.
  piece side(std::uint64_t most) {
    if (dice.one_in(20)) return {dice.any_of({CUdeviceptr{0}, nowhere}), most};
    if (!registered_.empty() && dice.one_in(8)) return any(registered_);
    if (all_.empty() || dice.one_in(5)) {
      const std::uint64_t from = dice.below(host.size() / 2);
      return {reinterpret_cast<std::uintptr_t>(host.data()) + from, host.size() / 2};
    }
    return any_part(any(all_), most);
  }
  static void* pointer(const piece& to) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(to.at));
  }
  void copy() {
    const std::uint64_t most = host.size() / 2;
    const piece to = side(most);
    const piece from = side(most);
    const std::uint64_t size = dice.one_in(12) ? 0 : std::min(to.size, from.size);
    const CUstream on = any_stream();
    values(place(to.at), place(from.at), size);
    switch (dice.below(9)) {
      case 0:
        return void(said("memcpy_sync", cuda->memcpy_sync(to.at, from.at, size)));
      case 1:
        return void(said("memcpy_async", cuda->memcpy_async(to.at, from.at, size, on)));
      case 2:
        return void(said("htod", cuda->memcpy_htod(to.at, pointer(from), size)));
      case 3:
        return void(said("dtoh", cuda->memcpy_dtoh(pointer(to), from.at, size)));
      case 4:
        return void(said("dtod", cuda->memcpy_dtod(to.at, from.at, size)));
      case 5:
        return void(said("htod_async", cuda->memcpy_htod_async(to.at, pointer(from), size, on)));
      case 6:
        return void(said("dtoh_async", cuda->memcpy_dtoh_async(pointer(to), from.at, size, on)));
      case 7:
        return void(said("dtod_async", cuda->memcpy_dtod_async(to.at, from.at, size, on)));
      default: {
        const CUcontext other = wrong() ? nullptr : contexts[1];
        said("peer", cuda->memcpy_peer_async(to.at, contexts[0], from.at, other, size, on));
      }
    }
  }
  /// With room for all rows of a box: they must not run into memory that is there by chance.
  piece box_side() {
    constexpr std::uint64_t room = 32 * kib;
    if (all_.empty() || wrong()) return side(room);
    const held& of = any(all_);
    if (of.size < 2 * room) return {reinterpret_cast<std::uintptr_t>(host.data()), host.size()};
    return {of.at + dice.below(of.size - room), room};
  }
  void copy_box() {
    const piece to = box_side();
    const piece from = box_side();
    CUDA_MEMCPY3D box{};
    box.srcMemoryType =
        wrong() ? CU_MEMORYTYPE_ARRAY
                : dice.any_of({CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED});
    box.dstMemoryType =
        wrong() ? CU_MEMORYTYPE_ARRAY
                : dice.any_of({CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_HOST});
    box.srcHost = pointer(from);
    box.srcDevice = from.at;
    box.dstHost = pointer(to);
    box.dstDevice = to.at;
    box.WidthInBytes = dice.magnitude(300);
    box.Height = dice.below(7);
    box.Depth = dice.below(4);
    box.srcPitch = box.WidthInBytes + dice.below(30) - (wrong() ? 1 : 0);
    box.dstPitch = box.WidthInBytes + dice.below(30);
    box.srcHeight = box.Height + dice.below(3);
    box.dstHeight = box.Height + dice.below(3);
    box.srcXInBytes = dice.below(20);
    box.dstXInBytes = dice.below(20);
    box.srcY = dice.below(3);
    box.dstY = dice.below(3);
    box.srcZ = dice.below(2);
    box.dstZ = dice.below(2);
    if (dice.one_in(2)) {
      box.srcLOD = dice.one_in(20) ? 1 : 0;
      said("memcpy_3d", cuda->memcpy_3d_async(wrong() ? nullptr : &box, any_same_stream()));
      return;
    }
    CUDA_MEMCPY2D flat{};
    flat.srcXInBytes = box.srcXInBytes;
    flat.srcY = box.srcY;
    flat.srcMemoryType = box.srcMemoryType;
    flat.srcHost = box.srcHost;
    flat.srcDevice = box.srcDevice;
    flat.srcPitch = box.srcPitch;
    flat.dstXInBytes = box.dstXInBytes;
    flat.dstY = box.dstY;
    flat.dstMemoryType = box.dstMemoryType;
    flat.dstHost = box.dstHost;
    flat.dstDevice = box.dstDevice;
    flat.dstPitch = box.dstPitch;
    flat.WidthInBytes = box.WidthInBytes;
    flat.Height = box.Height;
    said("memcpy_2d", cuda->memcpy_2d_async(&flat, any_stream()));
  }
  CUstream any_same_stream() const { return streams.empty() ? nullptr : streams.front(); }
  void copy_batch() {
    std::vector<CUdeviceptr> to;
    std::vector<CUdeviceptr> from;
    std::vector<std::size_t> sizes;
    for (std::uint64_t left = 1 + dice.below(4); left > 0; --left) {
      const piece target = side(5000);
      const piece source = side(5000);
      to.push_back(target.at);
      from.push_back(source.at);
      sizes.push_back(dice.one_in(15) ? 0 : std::min(target.size, source.size));
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder =
        wrong() ? CU_MEMCPY_SRC_ACCESS_ORDER_INVALID : CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = wrong() ? 1 : 0;
    std::size_t failed = untouched;
    const std::size_t count = wrong() ? 0 : 1;
    said("batch", cuda->memcpy_batch_async(to.data(), from.data(), sizes.data(), sizes.size(),
                                           &attributes, &first, count, &failed, any_stream()));
    values(failed);
  }
  void fill() {
    const piece to = side(60 * kib);
    if (to.at >= reinterpret_cast<std::uintptr_t>(host.data()) &&
        to.at < reinterpret_cast<std::uintptr_t>(host.data() + host.size()) && !wrong()) {
      return;
    }
    const unsigned value = static_cast<unsigned>(dice.below(~0U));
    const auto byte = static_cast<unsigned char>(value);
    const CUstream on = any_stream();
    const CUdeviceptr aligned = wrong() ? to.at : to.at / 4 * 4;
    switch (dice.below(5)) {
      case 0:
        return void(said("d8", cuda->memset_d8(to.at, byte, to.size)));
      case 1:
        return void(said("d8_async", cuda->memset_d8_async(to.at, byte, to.size, on)));
      case 2:
        return void(said("d32", cuda->memset_d32(aligned, value, to.size / 4)));
      case 3:
        return void(said("d32_async", cuda->memset_d32_async(aligned, value, to.size / 4, on)));
      default: {
        const std::uint64_t rows = 1 + dice.below(5);
        const std::uint64_t pitch = to.size / rows;
        const std::uint64_t width = wrong() ? pitch + 1 : 1 + pitch / 2;
        said("d2d8", cuda->memset_d2d8_async(to.at, pitch, byte, width, rows - dice.below(2), on));
      }
    }
  }
  void read() {
    if (all_.empty()) return;
    const piece part = any_part(any(all_), 20'000);
    contents(part.at, part.size);
    testing_support::digest pageable;
    for (const unsigned char each : host) pageable.add(each);
    values(pageable.value());
  }

  // --- Questions ---------------------------------------------------------------------------------

  /// Its first byte, its last one, the one behind it, or one inside; or memory of another kind.
  CUdeviceptr edge() {
    if (!registered_.empty() && dice.one_in(5)) {
      const piece& of = any(registered_);
      return dice.any_of({of.at, of.at + of.size - 1, of.at + of.size / 2});
    }
    if (all_.empty() || wrong()) return dice.any_of({CUdeviceptr{0}, nowhere});
    const held& of = any(all_);
    const bool behind = (of.at + of.size) % unit != 0;
    return dice.any_of(
        {of.at, of.at + of.size - 1, of.at + (behind ? of.size : 0), of.at + of.size / 2});
  }
  void ask_pointer() {
    const CUdeviceptr at = edge();
    std::vector<CUpointer_attribute> attributes;
    std::vector<std::array<std::uint64_t, 2>> data(24, {untouched, untouched});
    std::vector<void*> targets;
    for (int each = 1; each <= 21; ++each) {
      const auto attribute = static_cast<CUpointer_attribute>(each);
      attributes.push_back(attribute);
      targets.push_back(data[static_cast<std::size_t>(each)].data());
      ask_attribute(attribute, at);
    }
    const unsigned count = wrong() ? 0 : 21;
    said("all", cuda->pointer_get_attributes(count, attributes.data(), targets.data(), at));
    for (int each = 1; each <= 21; ++each) {
      attribute_value(static_cast<CUpointer_attribute>(each),
                      data[static_cast<std::size_t>(each)][0]);
    }
    said("none",
         cuda->pointer_get_attribute(data[0].data(), static_cast<CUpointer_attribute>(22), at));
    unsigned flags = 99;
    said("flags", cuda->mem_host_get_flags(&flags, reinterpret_cast<void*>(at)));
    CUdeviceptr mapped = untouched;
    const unsigned no_flags = wrong() ? 1 : 0;
    said("device pointer",
         cuda->mem_host_get_device_pointer(&mapped, reinterpret_cast<void*>(at), no_flags));
    values(flags, place(mapped));
  }
  void ask_range() {
    CUdeviceptr base = untouched;
    std::size_t size = untouched;
    const CUdeviceptr at = edge();
    said("range", cuda->mem_get_address_range(wrong() ? nullptr : &base, &size, at));
    values(place(base), size);
    unsigned long long flags = untouched;
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(dice.below(3))};
    said("access", cuda->mem_get_access(&flags, &location, at));
    values(flags);
  }
  void ask_device() {
    const int of = static_cast<int>(dice.below(wrong() ? 4 : 2)) - (wrong() ? 1 : 0);
    std::array<char, 40> name{};
    const int length = dice.any_of({40, 13, 5, 12, 0});
    said("name", cuda->device_get_name(name.data(), length, of));
    text(name.data());
    name.fill(0);
    said("bus", cuda->device_get_pci_bus_id(name.data(), length, of));
    text(name.data());
    CUuuid uuid{};
    said("uuid", cuda->device_get_uuid(&uuid, of));
    for (const char each : uuid.bytes) values(static_cast<unsigned char>(each));
    std::size_t total = untouched;
    said("total", cuda->device_total_mem(&total, of));
    int found = 99;
    for (int i = 0; i < 12; ++i) {
      const auto attribute = static_cast<CUdevice_attribute>(dice.below(150));
      said("attribute", cuda->device_get_attribute(&found, attribute, of));
      values(static_cast<int>(attribute), found);
    }
    said("get", cuda->device_get(&found, of));
    int can = 99;
    const int peer = static_cast<int>(dice.below(3));
    said("peer", cuda->device_can_access_peer(&can, of, peer));
    int value = 99;
    const auto p2p = static_cast<CUdevice_P2PAttribute>(dice.below(7));
    said("p2p", cuda->device_get_p2p_attribute(&value, p2p, of, peer));
    int count = 99;
    int version = 99;
    said("count", cuda->device_get_count(&count));
    said("version", cuda->driver_get_version(&version));
    int least = 99;
    int greatest = 99;
    said("priorities", cuda->ctx_get_stream_priority_range(&least, &greatest));
    values(total, found, can, value, count, version, least, greatest);
    const auto error = static_cast<CUresult>(dice.below(1000));
    const char* words = nullptr;
    said("error name", cuda->get_error_name(error, &words));
    if (words != nullptr) text(words);
    said("error text",
         cuda->get_error_string(dice.one_in(3) ? CUDA_ERROR_OUT_OF_MEMORY : error, &words));
    if (words != nullptr) text(words);
  }
  void use_contexts() {
    const CUcontext other = contexts[dice.below(2)];
    auto found = reinterpret_cast<CUcontext>(untouched);
    switch (dice.below(7)) {
      case 0:
        return switch_device();
      case 1:
        said("enable", cuda->ctx_enable_peer_access(other, wrong() ? 1 : 0));
        return;
      case 2:
        said("disable", cuda->ctx_disable_peer_access(wrong() ? nullptr : other));
        return;
      case 3:  // a context on top, and what can be asked for without one
        said("push", cuda->ctx_push_current(wrong() ? nullptr : other));
        said("current", cuda->ctx_get_current(&found));
        values(known(found));
        said("pop", cuda->ctx_pop_current(&found));
        values(known(found));
        return set_current();
      case 4:
        said("none", cuda->ctx_set_current(nullptr));
        info();
        said("no context", cuda->ctx_synchronize());
        said("no stream", cuda->stream_query(nullptr));
        said("nothing to pop", cuda->ctx_pop_current(&found));
        return set_current();
      case 5: {
        unsigned flags = 99;
        int active = 99;
        const int of = static_cast<int>(dice.below(3));
        said("state", cuda->device_primary_ctx_get_state(of, &flags, &active));
        values(flags, active);
        return;
      }
      default:
        said("retain", cuda->device_primary_ctx_retain(&found, static_cast<int>(dice.below(3))));
        if (known(found) != untouched) {
          said("release", cuda->device_primary_ctx_release(found == contexts[0] ? 0 : 1));
        }
        values(known(found));
    }
  }
  void set_current() {
    said("set current", cuda->ctx_set_current(contexts[static_cast<std::size_t>(device)]));
  }
  /// Handles of memory, which nobody can open in the process that made them.
  void share() {
    CUipcMemHandle handle{};
    const bool made = said("ipc", cuda->ipc_get_mem_handle(&handle, edge()));
    CUdeviceptr opened = untouched;
    if (made) said("ipc open", cuda->ipc_open_mem_handle(&opened, handle, wrong() ? 0 : 1));
    values(place(opened));
    said("ipc close", cuda->ipc_close_mem_handle(edge()));
  }

  std::vector<held> all_;
  std::vector<piece> pieces_;
  std::vector<piece> registered_;
  static constexpr std::uint64_t page = 4096;
  alignas(page) static inline std::array<unsigned char, 256 * kib> registerable_{};
};

}  // namespace

std::unique_ptr<program> play_memory(const setting& chosen) {
  return std::make_unique<memory_program>(chosen);
}

}  // namespace weir::sim_tests::answers
