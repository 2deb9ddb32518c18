// The live allocations of a resource, by pointer: what adaptors know about memory they passed on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"

namespace weir::inline v0::resources {

/// What a resource remembers of each allocation it handed out. A Record has a member `size`, the
/// size that was asked for.
///
/// Always: a pointer is in the table from when it was handed out until just before it is given to
/// the upstream, because the upstream may hand it out again at once. The latest frees are
/// remembered, so that a second free can be told from a foreign pointer if it comes soon. Any
/// thread; the table has parts with a lock each, held for a look-up, never around a call.
template <class Record>
class live_table {
  using map = std::unordered_map<void*, Record>;

 public:
  using entry = typename map::node_type;

  /// system: no host memory for the books.
  result<void> put(void* pointer, Record record) {
    try {
      part& home = part_of(pointer);
      const std::lock_guard lock{home.mutex};
      home.live.insert_or_assign(pointer, std::move(record));
      return {};
    } catch (const std::bad_alloc&) {
      return error{.code = errc::system, .detail = "no host memory for the books"};
    }
  }

  /// double_free or foreign_pointer where it is not live.
  result<entry> take(void* pointer) {
    part& home = part_of(pointer);
    const std::lock_guard lock{home.mutex};
    entry found = home.live.extract(pointer);
    if (found.empty()) return home.why_not(pointer);
    home.freed[home.next_freed++ % home.freed.size()] = pointer;
    return found;
  }

  /// The allocation is live after all: the upstream did not take it back.
  void put_back(entry taken) {
    part& home = part_of(taken.key());
    const std::lock_guard lock{home.mutex};
    home.live.insert(std::move(taken));
  }

  /// Calls what(pointer, record) for each; parts are locked meanwhile, one at a time.
  template <class What>
  void for_each(What&& what) const {
    for (const part& each : parts_) {
      const std::lock_guard lock{each.mutex};
      for (const auto& [pointer, record] : each.live) what(pointer, record);
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

 private:
  struct part {
    mutable std::mutex mutex;
    map live;
    std::array<void*, 32> freed{};
    std::size_t next_freed = 0;

    [[nodiscard]] error why_not(void* pointer) const {
      for (void* const each : freed)
        if (each == pointer) return {.code = errc::double_free};
      return {.code = errc::foreign_pointer};
    }
  };

  [[nodiscard]] part& part_of(void* pointer) noexcept {
    // Blocks are 256 bytes apart at least; the multiplication spreads what remains.
    const auto number = reinterpret_cast<std::uintptr_t>(pointer) >> 8;
    return parts_[(number * 0x9e3779b97f4a7c15U) >> 60];
  }

  std::array<part, 16> parts_;
};

/// Takes `pointer` out of the books and has `free(record)` give it to the upstream; if that fails
/// it is live again. A wrong size is told, but the memory goes back all the same, with the size
/// that was asked for.
template <class Record, class Free>
result<void> give_back(live_table<Record>& books, void* pointer, bytes size, Free&& free) {
  if (pointer == nullptr) return {};
  WEIR_TRY_VALUE(taken, books.take(pointer));
  const bytes asked = taken.mapped().size;
  if (auto freed = free(taken.mapped()); !freed) {
    // What a driver held is gone with it: nobody can give it back any more.
    if (freed.code() != errc::driver_gone) books.put_back(std::move(taken));
    return freed;
  }
  if (size == asked) return {};
  return error{.code = errc::invalid_argument,
               .requested = size,
               .detail = "freed with another size than it was allocated with, " + to_string(asked)};
}

}  // namespace weir::inline v0::resources
