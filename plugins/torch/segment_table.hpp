// SPDX-License-Identifier: Apache-2.0
// Where physical memory is mapped, as torch's histories tell it: segments that are allocated,
// extended, cut and freed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "weir/observe/events.hpp"

namespace weir_torch {

/// What becomes one entry of a history.
struct segment_change {
  enum class kind : std::uint8_t {
    alloc,  ///< a segment of its own
    map,    ///< memory beside a segment that exists
    unmap,  ///< the same, gone
    free,   ///< a segment as it was allocated, gone
  };
  kind what{};
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  weir::pool_id pool{};

  friend bool operator==(const segment_change&, const segment_change&) = default;
};

/// The segments of one device, told apart from what was mapped beside them later.
///
/// Whoever registers segments with a network (NCCL) does so for those that it hears of as `alloc`
/// or sees in a snapshot, and must hear of a `free` at the same address before other memory comes
/// to lie there. So a segment of which a part goes away is freed as a whole, and what remains of it
/// is allocated anew.
///
/// Not for several threads at a time.
class segment_table {
 public:
  using changes = std::vector<segment_change>;
  struct segment {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    weir::pool_id pool{};
    bool whole = false;
  };

  /// `whole`: a segment, whatever lies beside it.
  void reserve(std::uint64_t address, std::uint64_t size, weir::pool_id pool, bool whole,
               changes& told) {
    changes forgotten;  // in case that the table knows of it already
    release(address, size, pool, forgotten);
    const bool is_extension = !whole && touches(address, size, pool);
    pieces_[address] = {size, pool, !is_extension, whole, {}};
    told.push_back({is_extension ? segment_change::kind::map : segment_change::kind::alloc, address,
                    size, pool});
  }

  /// Memory that the table does not know of is `unmap`.
  void release(std::uint64_t address, std::uint64_t size, weir::pool_id pool, changes& told) {
    const std::uint64_t end = address + size;
    std::uint64_t unknown = address;
    for (auto at = first_over(address); at != pieces_.end() && at->first < end;) {
      const std::uint64_t start = at->first;
      const piece gone = std::move(at->second);
      const std::uint64_t gone_end = start + gone.size;
      const std::uint64_t cut_start = std::max(start, address);
      const std::uint64_t cut_end = std::min(gone_end, end);
      if (unknown < cut_start) tell_unmap(unknown, cut_start, pool, told);
      unknown = cut_end;
      pieces_.erase(at);
      if (gone.is_segment) {
        for (const auto& [inner, inner_size] : gone.merged)
          told.push_back({segment_change::kind::free, inner, inner_size, gone.pool});
        told.push_back({segment_change::kind::free, start, gone.size, gone.pool});
      } else {
        tell_unmap(cut_start, cut_end, gone.pool, told);
      }
      for (const auto& [rest, rest_end] :
           {std::pair{start, cut_start}, std::pair{cut_end, gone_end}}) {
        if (rest == rest_end) continue;
        pieces_[rest] = {rest_end - rest, gone.pool, gone.is_segment, gone.whole, {}};
        if (gone.is_segment)
          told.push_back({segment_change::kind::alloc, rest, rest_end - rest, gone.pool});
      }
      at = pieces_.lower_bound(cut_end);
    }
    if (unknown < end) tell_unmap(unknown, end, pool, told);
  }

  /// From now on segments are as a snapshot shows them, whatever lies side by side in a pool. Those
  /// that are inside one then are freed with it.
  void merge() {
    for (auto at = pieces_.begin(); at != pieces_.end(); ++at) {
      piece& joined = at->second;
      for (auto next = std::next(at);
           next != pieces_.end() && at->first + joined.size == next->first &&
           joined.pool == next->second.pool && !joined.whole && !next->second.whole;
           next = pieces_.erase(next)) {
        if (next->second.is_segment) joined.merged.emplace_back(next->first, next->second.size);
        joined.merged.insert(joined.merged.end(), next->second.merged.begin(),
                             next->second.merged.end());
        joined.size += next->second.size;
      }
      joined.is_segment = true;
    }
  }

  void clear() { pieces_.clear(); }
  [[nodiscard]] std::vector<segment> all() const {
    std::vector<segment> pieces;
    for (const auto& [address, known] : pieces_)
      pieces.push_back({address, known.size, known.pool, known.whole});
    return pieces;
  }

 private:
  struct piece {
    std::uint64_t size = 0;
    weir::pool_id pool{};
    bool is_segment = false;  // told as `alloc`, or shown by a snapshot
    bool whole = false;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> merged;  // segments inside, by address
  };
  using piece_map = std::map<std::uint64_t, piece>;

  [[nodiscard]] bool touches(std::uint64_t address, std::uint64_t size, weir::pool_id pool) const {
    const auto after = pieces_.find(address + size);
    if (after != pieces_.end() && after->second.pool == pool) return true;
    auto before = pieces_.lower_bound(address);
    if (before == pieces_.begin()) return false;
    --before;
    return before->first + before->second.size == address && before->second.pool == pool;
  }
  /// The first piece that ends behind the address.
  [[nodiscard]] piece_map::iterator first_over(std::uint64_t address) {
    auto at = pieces_.upper_bound(address);
    if (at == pieces_.begin()) return at;
    const auto before = std::prev(at);
    return before->first + before->second.size > address ? before : at;
  }
  static void tell_unmap(std::uint64_t from, std::uint64_t to, weir::pool_id pool, changes& told) {
    told.push_back({segment_change::kind::unmap, from, to - from, pool});
  }

  piece_map pieces_;  // by address, disjoint
};

}  // namespace weir_torch
