// The live allocations of a resource, by pointer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "observe/misuse.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/tag.hpp"

namespace weir::inline v0::resources {

/// One record for each live allocation of a resource. A Record has a member `size`, the requested
/// size.
///
/// Always: a pointer is in the table from when it was handed out until just before the upstream
/// frees it, because the upstream may hand it out again at once. The latest frees are remembered,
/// so that a second free can be told from a foreign pointer if it comes soon. Any thread; the table
/// is sharded, and a shard's lock is held for a look-up, never around a call of the upstream.
template <class Record>
class live_table {
  /// With what is told where something is wrong with it.
  struct held {
    Record record;
    weir::tag tag{};
    stream_id stream{};
  };
  using map = std::unordered_map<void*, held>;

 public:
  using entry = typename map::node_type;

  /// The allocation was made for that stream, with the thread's tag. no_host_memory: for the
  /// record.
  result<void> put(void* pointer, Record record, const stream_ref& stream) {
    try {
      shard& home = shard_of(pointer);
      const detail::mutex_lock lock{home.mutex};
      home.live.insert_or_assign(pointer,
                                 held{std::move(record), current_tag(), stream.known_id()});
      return {};
    } catch (const std::bad_alloc&) {
      return detail::no_host_memory();
    }
  }

  /// double_free or foreign_pointer where it is not live.
  result<entry> take(void* pointer) {
    shard& home = shard_of(pointer);
    const detail::mutex_lock lock{home.mutex};
    entry taken = home.live.extract(pointer);
    if (taken.empty()) return home.not_live(pointer);
    home.freed[home.next_freed++ % home.freed.size()] = {pointer, taken.mapped().record.size,
                                                         taken.mapped().tag, taken.mapped().stream};
    return taken;
  }

  /// The allocation is live after all: the upstream did not free it.
  void put_back(entry taken) {
    shard& home = shard_of(taken.key());
    const detail::mutex_lock lock{home.mutex};
    home.live.insert(std::move(taken));
  }

  /// Calls visit(pointer, record) for each; shards are locked meanwhile, one at a time.
  template <class Visitor>
  void for_each(Visitor&& visit) const {
    for (const shard& each : shards_) {
      const detail::mutex_lock lock{each.mutex};
      for (const auto& [pointer, entry] : each.live) visit(pointer, entry.record);
    }
  }

  struct totals {
    std::uint64_t count = 0;
    bytes size{};
  };
  [[nodiscard]] totals total() const {
    totals sum;
    for_each([&](void*, const Record& record) {
      ++sum.count;
      sum.size += record.size;
    });
    return sum;
  }
  /// Of a resource that ends with live allocations: what they are. `what` says who ended.
  [[nodiscard]] error leak(std::string_view what) const noexcept {
    const totals sum = total();
    try {
      std::vector<observe::accused_block> blocks;
      for (const shard& each : shards_) {
        const detail::mutex_lock lock{each.mutex};
        for (const auto& [pointer, entry] : each.live)
          blocks.push_back(accused(pointer, entry.record.size, entry.tag, entry.stream));
      }
      return observe::leak(what, sum.count, sum.size, std::move(blocks));
    } catch (const std::bad_alloc&) {
      return observe::leak(what, sum.count, sum.size, {});
    }
  }

 private:
  struct freed_entry {
    void* pointer = nullptr;
    bytes size{};
    weir::tag tag{};
    stream_id stream{};
  };
  [[nodiscard]] static observe::accused_block accused(const void* pointer, bytes size,
                                                      weir::tag tag, stream_id stream) {
    return {.address = reinterpret_cast<std::uintptr_t>(pointer),
            .size = size,
            .tag = tag,
            .stream = stream,
            .life = {}};
  }

  struct shard {
    mutable detail::mutex mutex;
    map live WEIR_GUARDED_BY(mutex);
    std::array<freed_entry, 32> freed WEIR_GUARDED_BY(mutex){};
    std::size_t next_freed WEIR_GUARDED_BY(mutex) = 0;

    [[nodiscard]] error not_live(void* pointer) const WEIR_REQUIRES(mutex) {
      for (const freed_entry& each : freed)
        if (each.pointer == pointer)
          return observe::double_free(accused(pointer, each.size, each.tag, each.stream));
      return observe::foreign_pointer(reinterpret_cast<std::uintptr_t>(pointer), "resource");
    }
  };

  [[nodiscard]] shard& shard_of(void* pointer) noexcept {
    // Blocks are 256 bytes apart at least; the multiplication spreads what remains.
    const auto number = reinterpret_cast<std::uintptr_t>(pointer) >> 8;
    return shards_[(number * 0x9e3779b97f4a7c15U) >> 60];
  }

  std::array<shard, 16> shards_;
};

/// Takes `pointer` out of the table and has `free(record)` free it with the upstream; if that fails
/// it is live again. A wrong size is an error, but the memory is freed all the same, with the size
/// that was requested.
template <class Record, class Free>
result<void> deallocate(live_table<Record>& live, void* pointer, bytes size, Free&& free) {
  if (pointer == nullptr) return {};
  WEIR_TRY_VALUE(taken, live.take(pointer));
  const bytes requested = taken.mapped().record.size;
  if (auto freed = free(taken.mapped().record); !freed) {
    // The driver's memory went with the driver: nobody can free it any more.
    if (freed.code() != errc::driver_gone) live.put_back(std::move(taken));
    return freed;
  }
  if (size == requested) return {};
  return error{
      .code = errc::invalid_argument,
      .requested = size,
      .detail = "freed with another size than it was allocated with, " + to_string(requested)};
}

}  // namespace weir::inline v0::resources
