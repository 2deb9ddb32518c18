// SPDX-License-Identifier: Apache-2.0
// The addresses of one pool, cut into blocks, and indexes that find a free block by size.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "sim/clock.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

class fit_index;
struct block;

/// What pools count in. The driver aligns to 512 bytes and takes memory 32 MiB at a time.
inline constexpr std::uint64_t pool_unit = 512;
inline constexpr std::uint64_t pool_page = std::uint64_t{32} << 20;

/// The place of a free block in an index: by size, then in the order of insertion.
struct fit_key {
  std::uint64_t size = 0;
  std::uint64_t order = 0;
  block* run = nullptr;

  friend bool operator<(const fit_key& a, const fit_key& b) noexcept {
    return std::tie(a.size, a.order) < std::tie(b.size, b.order);
  }
};

/// A run of addresses: allocated, or free and then in exactly one index.
struct block {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< whole units
  block* before = nullptr;
  block* after = nullptr;

  // Allocated.
  std::uint64_t requested = 0;
  std::uint64_t id = 0;

  // Free.
  fit_index* index = nullptr;  ///< null: allocated
  std::uint64_t order = 0;     ///< among equal ones in its index
  std::uint64_t sequence = 0;
  moment freed{};

  // Of its last allocation and its last free, for whoever meets them.
  std::shared_ptr<party> allocated_by{};
  std::shared_ptr<party> freed_by{};

  // The index's business: where it stands, or the node to stand in again without a heap call.
  std::set<fit_key>::iterator place{};
  std::set<fit_key>::node_type node{};

  [[nodiscard]] std::uint64_t end() const noexcept { return address + size; }
  [[nodiscard]] bool allocated() const noexcept { return index == nullptr; }
};

/// Free blocks by size. Of equal ones the first inserted comes first, as in the driver.
class fit_index {
 public:
  void insert(block& run);
  void remove(block& run);
  /// The smallest block of at least `size` that `suits`; null if there is none.
  template <class Suits>
  [[nodiscard]] block* best(std::uint64_t size, Suits&& suits) const {
    for (auto it = runs_.lower_bound({.size = size}); it != runs_.end(); ++it) {
      if (suits(*it->run)) return it->run;
    }
    return nullptr;
  }
  [[nodiscard]] block* best(std::uint64_t size) const {
    const auto it = runs_.lower_bound({.size = size});
    return it == runs_.end() ? nullptr : it->run;
  }
  [[nodiscard]] bool empty() const noexcept { return runs_.empty(); }
  [[nodiscard]] const std::set<fit_key>& all() const noexcept { return runs_; }

 private:
  std::set<fit_key> runs_;
};

/// Blocks that cover [base, base + size) without gap or overlap, linked by address. Finding a block
/// by its start costs two loads; by an address inside, a walk over one page's starts. Metadata is
/// made where blocks start, so a large map costs nothing until it is cut.
class block_map {
 public:
  block_map(std::uint64_t base, std::uint64_t size);
  block_map(const block_map&) = delete;
  block_map& operator=(const block_map&) = delete;

  [[nodiscard]] block& first() noexcept { return storage_.front(); }
  /// `address` must lie in the map. Null if no block starts there.
  [[nodiscard]] block* starting_at(std::uint64_t address) const noexcept;
  /// The block that `address`, which must lie in the map, belongs to.
  [[nodiscard]] block& containing(std::uint64_t address) const noexcept;

  /// Cuts what exceeds `size` off and returns it; null if the block is just as large.
  block* cut(block& from, std::uint64_t size);
  /// Makes the block after `into` a part of it.
  void merge_next(block& into);

 private:
  struct free_deleter {
    void operator()(block** starts) const noexcept { std::free(starts); }
  };
  struct page_starts {
    std::unique_ptr<block* [], free_deleter> starts {};  // by unit; null where none begins
    std::uint32_t count = 0;
  };

  void note_start(block& run);
  void forget_start(const block& run);

  std::uint64_t base_;
  std::vector<page_starts> pages_;
  std::deque<block> storage_;  // front() starts at base_, always
  std::vector<block*> spare_;
};

}}}  // namespace weir::v0::sim
