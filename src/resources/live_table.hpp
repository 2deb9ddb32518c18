// SPDX-License-Identifier: Apache-2.0
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
#include "pools/guarded.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace resources {

/// One record for each live allocation of a resource. A Record has a member `size`, the requested
/// size.
///
/// Always: a pointer is in the table from when it was handed out until just before the upstream
/// frees it, because the upstream may hand it out again at once. There is room in the table for
/// every record that was taken out, so that putting one back cannot fail. The latest frees are
/// remembered, so that a second free can be told from a foreign pointer if it comes soon. Any
/// thread; the table is sharded, and a shard's lock is held for a look-up, never around a call of
/// the upstream.
template <class Record>
class live_table {
  /// With what is told where something is wrong with it.
  struct held {
    Record record;
    weir::tag tag{};
    stream_id stream{};
  };
  using map = std::unordered_map<void*, held>;
  struct shard;

 public:
  /// A record that was taken out, for an allocation that the upstream is about to free.
  class taken_record {
   public:
    taken_record(taken_record&& other) noexcept
        : home_{std::exchange(other.home_, nullptr)}, entry_{std::move(other.entry_)} {}
    taken_record& operator=(taken_record&&) = delete;
    ~taken_record() {
      if (home_ == nullptr) return;
      const detail::mutex_lock lock{home_->mutex};
      --home_->taken;
    }

    [[nodiscard]] const Record& record() const noexcept { return entry_.mapped().record; }
    /// The allocation is live after all: the upstream did not free it.
    void put_back() noexcept {
      shard& home = *std::exchange(home_, nullptr);
      const detail::mutex_lock lock{home.mutex};
      home.live.insert(std::move(entry_));
      --home.taken;
    }

   private:
    friend class live_table;
    taken_record(shard& home, typename map::node_type entry) noexcept
        : home_{&home}, entry_{std::move(entry)} {}

    shard* home_;
    typename map::node_type entry_;
  };

  /// The allocation was made for that stream, with the thread's tag. no_host_memory: for the
  /// record.
  result<void> put(void* pointer, Record record, const stream_ref& stream) {
    try {
      shard& home = shard_of(pointer);
      const detail::mutex_lock lock{home.mutex};
      home.make_room();
      home.live.insert_or_assign(pointer,
                                 held{std::move(record), current_tag(), stream.known_id()});
      return {};
    } catch (const std::bad_alloc&) {
      return detail::no_host_memory();
    }
  }

  /// double_free or foreign_pointer where it is not live.
  result<taken_record> take(void* pointer) {
    shard& home = shard_of(pointer);
    const detail::mutex_lock lock{home.mutex};
    auto entry = home.live.extract(pointer);
    if (entry.empty()) return home.not_live(pointer);
    ++home.taken;
    home.freed[home.next_freed++ % home.freed.size()] = {pointer, entry.mapped().record.size,
                                                         entry.mapped().tag, entry.mapped().stream};
    return taken_record{home, std::move(entry)};
  }

  /// A copy of the record. double_free or foreign_pointer where it is not live.
  [[nodiscard]] result<Record> find(void* pointer) const {
    const shard& home = shard_of(pointer);
    return pools::guarded([&]() -> result<Record> {
      const detail::mutex_lock lock{home.mutex};
      const auto entry = home.live.find(pointer);
      if (entry == home.live.end()) return home.not_live(pointer);
      return entry->second.record;
    });
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
      return error{{.code = errc::still_live, .requested = sum.size}};
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
    std::size_t taken WEIR_GUARDED_BY(mutex) = 0;  // records that may be put back
    std::array<freed_entry, 32> freed WEIR_GUARDED_BY(mutex){};
    std::size_t next_freed WEIR_GUARDED_BY(mutex) = 0;

    /// For one more record, and for those that may be put back.
    void make_room() WEIR_REQUIRES(mutex) {
      const std::size_t needed = live.size() + taken + 1;
      const float room = live.max_load_factor() * static_cast<float>(live.bucket_count());
      if (static_cast<float>(needed) >= room) live.reserve(2 * needed + 8);
    }
    [[nodiscard]] error not_live(void* pointer) const WEIR_REQUIRES(mutex) {
      for (const freed_entry& each : freed)
        if (each.pointer == pointer)
          return observe::double_free(accused(pointer, each.size, each.tag, each.stream));
      return observe::foreign_pointer(reinterpret_cast<std::uintptr_t>(pointer), "resource");
    }
  };

  // Blocks are 256 bytes apart at least; the multiplication spreads what remains.
  [[nodiscard]] static std::size_t shard_index(const void* pointer) noexcept {
    const auto number = reinterpret_cast<std::uintptr_t>(pointer) >> 8;
    return (number * 0x9e3779b97f4a7c15U) >> 60;
  }
  [[nodiscard]] shard& shard_of(const void* pointer) noexcept {
    return shards_[shard_index(pointer)];
  }
  [[nodiscard]] const shard& shard_of(const void* pointer) const noexcept {
    return shards_[shard_index(pointer)];
  }

  std::array<shard, 16> shards_;
};

/// Takes `pointer` out of the table and has `free(record)` free it with the upstream; if that fails
/// or throws it is live again. A wrong size is an error, but the memory is freed all the same, with
/// the size that was requested.
template <class Record, class Free>
result<void> deallocate(live_table<Record>& live, void* pointer, bytes size, Free&& free) {
  if (pointer == nullptr) return {};
  WEIR_TRY_VALUE(taken, pools::guarded([&] { return live.take(pointer); }));
  const bytes requested = taken.record().size;
  result<void> freed;
  try {
    freed = pools::guarded([&]() -> result<void> { return free(taken.record()); });
  } catch (...) {
    taken.put_back();
    throw;
  }
  if (!freed) {
    // The driver's memory went with the driver: nobody can free it any more.
    if (freed.code() != errc::driver_gone) taken.put_back();
    return freed;
  }
  if (size == requested) return {};
  error wrong{{.code = errc::invalid_argument, .requested = size}};
  try {
    wrong.set_detail("the block was freed with another size than it was allocated with, " +
                     to_string(requested));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return wrong;
}

}}}  // namespace weir::v0::resources
