// SPDX-License-Identifier: Apache-2.0
// Shadow memory: for each byte, who wrote it last and who has read it since.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/clock.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

class block_book;

/// Collects hazards, adds what the book knows of their bytes, and hands them to the listener.
class hazard_log {
 public:
  explicit hazard_log(const block_book& blocks) : blocks_{blocks} {}
  void report(hazard entry);
  [[nodiscard]] const std::vector<hazard>& all() const noexcept { return all_; }
  void clear() { all_.clear(); }
  void listen(std::function<void(const hazard&)> listener) { listener_ = std::move(listener); }

 private:
  /// A broken program can race millions of times; the first reports suffice.
  static constexpr std::size_t most = 10'000;
  const block_book& blocks_;
  std::vector<hazard> all_;
  std::function<void(const hazard&)> listener_;
};

/// A free and an allocation count as writes, and distinguish a race from a use of memory that is
/// not there any more.
enum class access_kind { read, write, allocate, free };

/// One access, in order, and who made it. The accessor is shared by all accesses of an operation.
struct access_record {
  moment when{};
  std::shared_ptr<const party> accessor{};

  /// Whether the access comes after that moment, for which it was noted first. This happens to what
  /// a host function accesses: that is known when the function runs, and later work may be queued.
  [[nodiscard]] bool comes_after(const moment& other) const noexcept {
    return accessor != nullptr && other.at != when.at && when.includes(other.at);
  }
};

/// The access history of one physical memory object, by offset: races are found also between two
/// addresses of the same memory. Cells are disjoint and cover only what was touched. An access
/// costs a map look-up and one comparison a recorded reader.
class shadow {
 public:
  /// Checks an access of [offset, offset + size) against the history and adds it. `address` is
  /// where the accessing side sees `offset`.
  void touch(std::uint64_t offset, std::uint64_t size, access_kind kind, const moment& when,
             const std::shared_ptr<const party>& accessor, std::uint64_t address, hazard_log& log);

  /// Forgets the history of a range: its memory was released to the system and comes back as new.
  void forget(std::uint64_t offset, std::uint64_t size);

 private:
  struct cell {
    std::uint64_t end = 0;
    access_record last_write{};
    bool freed = false;
    std::vector<access_record> readers{};
  };
  using cell_map = std::map<std::uint64_t, cell>;

  /// Notes a write, checked before, in a cell whose every later access stays noted.
  static void note_write(cell& written, access_kind kind, const moment& when,
                         const std::shared_ptr<const party>& accessor);

  /// Makes `offset` a cell boundary and returns the first cell at or after it.
  cell_map::iterator cut(std::uint64_t offset);
  /// Calls visit(offset, cell) for the cells of a range, and makes those that are missing.
  template <class Visitor>
  void each_cell(std::uint64_t offset, std::uint64_t end, Visitor&& visit);

  cell_map cells_;
};

/// What the device of a use is that belongs to none: the begin or the end of a lifetime.
inline constexpr int no_device = -1;

/// Who has used one mapping, so that taking it away, or a device's access to it, can be checked.
/// One record an actor, a device and a kind of access: a use replaces those that come before it.
class use_log {
 public:
  /// `device` is the one whose right to access the memory the use needs.
  void add(const moment& when, const std::shared_ptr<const party>& accessor, int device);
  /// The latest use that does not come before `when`; null if all do.
  [[nodiscard]] const access_record* not_before(const moment& when) const noexcept;
  /// The same for uses of one device, or for its writes only.
  [[nodiscard]] const access_record* not_before(const moment& when, int device,
                                                bool only_writes = false) const noexcept;

 private:
  struct use {
    access_record record{};
    int device = no_device;
  };
  template <class Matches>
  [[nodiscard]] const access_record* latest(const moment& when, Matches&& matches) const noexcept;

  std::vector<use> uses_;
};

}}}  // namespace weir::v0::sim
