// SPDX-License-Identifier: Apache-2.0
// Free runs of one owner, found by lowest address or by shortest length.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "placement/block.hpp"
#include "placement/length_classes.hpp"
#include "placement/ordered_keys.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// The free runs that one stream, or everybody, may use.
///
/// close_fit() and lowest() serve small requests. A run that is hardly longer leaves little over:
/// what is left is often too short for anything, and stays for as long as its neighbours live. Low
/// addresses, where nothing fits closely, keep whole handles free above. The arena is cut into
/// cells of 256 KiB; each knows the longest run that starts in it, and two levels of maxima above
/// let lowest() skip 16 MiB and 1 GiB at a time. It scans a few hundred bytes of maxima, whatever
/// the number of runs; close_fit() reads some words of bits (length_classes.hpp). shortest() serves
/// large requests: runs of more than 1 MiB stand in order of (length, address).
///
/// Links runs through block.in.left and .right. Owned by an arena, under the heap's lock.
class fit_index {
 public:
  /// Runs of more units than this can be found by shortest().
  static constexpr std::uint32_t large = length_classes::longest;
  /// What lowest() can tell apart from longer runs.
  static constexpr std::uint32_t most_low = std::numeric_limits<std::uint16_t>::max();

  fit_index(block_store& blocks, std::uint64_t base) noexcept : blocks_{blocks}, base_{base} {}

  /// Where the host has no memory for the index, the run stays out of it: it can then be found by
  /// walking the arena only.
  void insert(block_index index) noexcept;
  void remove(block_index index) noexcept { settle(detach(index)); }

  /// A run that left the index, while the maxima still count it.
  struct detached {
    std::uint64_t cell = none;
    std::uint16_t length = 0;
    static constexpr std::uint64_t none = ~std::uint64_t{0};
  };
  /// The two halves of remove(), for runs that are joined: once the longer one is in, the maxima
  /// need no search for what comes after the shorter. Nothing may be looked for in between.
  [[nodiscard]] detached detach(block_index index) noexcept;
  void settle(const detached& gone) noexcept {
    if (gone.cell == detached::none) return;
    chunk& home = *chunks_[gone.cell / fan];
    if (gone.length == home.longest[gone.cell % fan]) find_longest(home, gone.cell);
  }
  /// The run's start moves up by `units`, its end stays: remove and insert in one, for what is
  /// carved off a run's low end.
  void shrink(block_index index, unit_count units) noexcept;
  /// The lengths that fit a request closely: up to an eighth longer. For requests up to `large`
  /// units.
  struct close_lengths {
    explicit constexpr close_lengths(std::uint64_t request) noexcept
        : units{request},
          longest{request + request / 8},
          own_class{length_classes::class_of(request)},
          classes{~(~std::uint64_t{1}
                    << (length_classes::class_of(std::min<std::uint64_t>(longest, large)) -
                        own_class))} {}

    std::uint64_t units;
    std::uint64_t longest;
    std::size_t own_class;
    std::uint64_t classes;  // a bit for each class of these lengths, from the own one on
  };
  /// A run that fits closely: of the classes of length from the request's own up to an eighth more
  /// the first that has one that is long enough, and there one of the lowest cell. no_block if
  /// there is none.
  [[nodiscard]] block_index close_fit(const close_lengths& wanted) noexcept;
  [[nodiscard]] block_index close_fit(std::uint64_t units) noexcept {
    return close_fit(close_lengths{units});
  }
  /// The run of at least `units` at the lowest address; up to `most_low` units.
  [[nodiscard]] block_index lowest(std::uint64_t units) const noexcept;
  /// The shortest run of at least `units`, more than `large`; the lowest of equals.
  [[nodiscard]] block_index shortest(std::uint64_t units) const noexcept;
  /// The run over an address, if it is one that shortest() can find.
  [[nodiscard]] block_index over(std::uint64_t address) const noexcept;
  /// Calls `see` with runs of at least `units`, from lower to higher cells, with so many at most.
  /// Where `see` answers that it has seen enough, only the rest of that cell follows.
  template <class Function>
  void see_lowest(std::uint64_t units, std::size_t most, Function see) const {
    const std::uint16_t wanted =
        static_cast<std::uint16_t>(std::min<std::uint64_t>(units, most_low));
    for (std::size_t number = 0; number < chunks_.size(); ++number) {
      if (number % fan == 0 && group_longest_[number / fan] < wanted) {
        number += fan - 1;
        continue;
      }
      if (chunk_longest_[number] < wanted || chunks_[number] == nullptr) continue;
      const chunk& home = *chunks_[number];
      for (std::size_t cell = 0; cell < fan; ++cell) {
        if (home.longest[cell] < wanted) continue;
        bool enough = false;
        const auto look = [&](block_index at) {
          if (most == 0 || blocks_[at].units < units) return;
          --most;
          enough = see(at) || enough;
        };
        for (block_index at = home.inside[cell]; at != no_block; at = blocks_[at].in.right)
          look(at);
        if (home.over_end[cell] != no_block) look(home.over_end[cell]);
        if (most == 0 || enough) return;
      }
    }
  }
  /// Calls `see` with runs of at least `units`, more than `large`, from the shortest on, the lower
  /// of equals first, with so many at most, until `see` answers that it has seen enough.
  template <class Function>
  void see_shortest(std::uint64_t units, std::size_t most, Function see) const {
    if (units > unit_count::most) return;
    by_length_.see_from(key_of(units, 0), [&](std::uint64_t key) {
      if (most == 0) return true;
      --most;
      return static_cast<bool>(see(run_of(key)));
    });
  }
  [[nodiscard]] std::uint32_t longest() const noexcept;
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  static constexpr unsigned cell_shift = 18;
  static constexpr std::uint64_t cell_bytes = std::uint64_t{1} << cell_shift;
  static constexpr std::size_t fan = 64;

  /// 64 cells. A run that reaches over the end of its cell is the last that starts there, so a cell
  /// has one at most; the others are in a list.
  struct alignas(64) chunk {
    std::array<std::uint16_t, fan> longest{};
    std::array<block_index, fan> inside{};
    std::array<block_index, fan> over_end{};
  };

  [[nodiscard]] std::uint64_t cell_of(std::uint64_t address) const noexcept {
    return (address - base_) >> cell_shift;
  }
  [[nodiscard]] bool reaches_over_end(const block& run) const noexcept {
    return ((run.address - base_) & (cell_bytes - 1)) + run.size() > cell_bytes;
  }
  [[nodiscard]] chunk* chunk_of(std::uint64_t cell) noexcept {
    const std::uint64_t number = cell / fan;
    if (number < chunks_.size() && chunks_[number] != nullptr) return chunks_[number].get();
    return add_chunk(number);
  }
  [[nodiscard]] chunk* add_chunk(std::uint64_t number) noexcept;
  void enter(block_index index, block& run, chunk& home, std::uint64_t cell) noexcept;
  void leave(block_index index, block& run, chunk& home, std::size_t cell) noexcept;
  void find_longest(chunk& home, std::uint64_t cell) noexcept;
  void raise(chunk& home, std::uint64_t cell, std::uint16_t length) noexcept;
  void lower(chunk& home, std::uint64_t cell, std::uint16_t before, std::uint16_t now) noexcept;

  /// The place of a large run in the order of lengths. Such a run reaches over the end of its cell,
  /// where no other does: the cell stands for its address, and names it.
  [[nodiscard]] static std::uint64_t key_of(std::uint64_t units, std::uint64_t cell) noexcept {
    return std::uint64_t{units} << 32 | cell;
  }
  [[nodiscard]] block_index run_of(std::uint64_t key) const noexcept {
    const std::uint64_t cell = key & 0xffff'ffff;
    return chunks_[cell / fan]->over_end[cell % fan];
  }
  void shrink_large(block_index index, unit_count units) noexcept;
  [[nodiscard]] block_index shortest_in(const chunk& home, std::size_t cell, std::uint64_t units,
                                        std::uint64_t longest) const noexcept;
  [[nodiscard]] bool has_class(const chunk& home, std::size_t cell, std::size_t in) const noexcept;
  [[nodiscard]] block_index close_fit_of(std::size_t in, const close_lengths& wanted) noexcept;

  block_store& blocks_;
  std::uint64_t base_;
  std::vector<std::unique_ptr<chunk>> chunks_;
  std::vector<std::uint16_t> chunk_longest_;  // by chunk, in whole groups of 64
  std::vector<std::uint16_t> group_longest_;  // by 64 chunks
  ordered_keys by_length_;                    // key_of() the large runs
  length_classes classes_;                    // of the others
  std::uint64_t total_ = 0;                   // bytes
};

}}}  // namespace weir::v0::placement
