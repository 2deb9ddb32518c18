// SPDX-License-Identifier: Apache-2.0
// In which cells of an arena there may be free runs of which class of length.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weir { inline namespace v0 { namespace placement {

/// For each class of length the cells in which a run of that class may start, found from low to
/// high.
///
/// Runs of up to 64 units have a class for each length. Above, each power of two is divided into
/// 32, up to 2048 units. Three levels of 64 bits a class stand for 64 cells, 4096 cells and 64
/// times as many, so that a search reads three words, however many runs there are:
///
///   class 40    | 64 GiB | - > | 1 GiB | - > | 16 MiB | - > cell of 256 KiB
///                a bit for       for           for
///                each 1 GiB      each 16 MiB   each cell
///
/// A cell that is entered stays until it is forgotten: who finds that it has no such run any more
/// forgets it. That is cheaper than to look, whenever a run goes, for another of its class. Owned
/// by a fit_index, under the heap's lock.
class length_classes {
 public:
  static constexpr std::uint64_t longest = 2048;
  static constexpr std::uint64_t no_cell = ~std::uint64_t{0};

  /// The class of runs of so many units, 1 to `longest`. Longer runs have no lower class.
  [[nodiscard]] static constexpr std::size_t class_of(std::uint64_t units) noexcept {
    const auto shift = static_cast<unsigned>(std::bit_width(units | 63)) - 6;  // without a branch
    return static_cast<std::size_t>(shift * 32 + (units >> shift));
  }

  /// The longest runs of a class, in units.
  [[nodiscard]] static constexpr std::uint64_t longest_of(std::size_t in) noexcept {
    const std::size_t shift = std::max<std::size_t>(in / 32, 1) - 1;
    return ((in - shift * 32 + 1) << shift) - 1;
  }

  /// From then on cells of these 64 can be entered. False where the host has no memory.
  [[nodiscard]] bool prepare(std::uint64_t cell) noexcept;
  /// The cell must be prepared.
  void enter(std::size_t in, std::uint64_t cell) noexcept {
    const std::uint64_t chunk = cell / fan;
    std::uint64_t& cells = chunks_[chunk]->has[in];
    const std::uint64_t before = cells;
    cells |= bit(cell);
    if (before != 0) return;
    groups_[chunk / fan]->has[in] |= bit(chunk);
    tops_[chunk / fan / fan].has[in] |= bit(chunk / fan);
    any_[in / fan] |= bit(in);
  }
  void forget(std::size_t in, std::uint64_t cell) noexcept;
  /// Which of 64 classes from `from` on have a cell: its own bit is the lowest.
  [[nodiscard]] std::uint64_t classes_from(std::size_t from) const noexcept {
    const std::size_t word = from / fan;
    return any_[word] >> from % fan | any_[word + 1] << 1 << (fan - 1 - from % fan);
  }
  /// The lowest cell of the class from `from` on; no_cell if there is none.
  [[nodiscard]] std::uint64_t first(std::size_t in, std::uint64_t from) const noexcept;
  /// The lowest cell of the class.
  [[nodiscard]] std::uint64_t first(std::size_t in) const noexcept {
    for (std::size_t top = 0; top < tops_.size(); ++top)
      if (tops_[top].has[in] != 0) return lowest_under(top, in);
    return no_cell;
  }
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  static constexpr std::uint64_t fan = 64;
  static constexpr std::size_t classes = 64 + 5 * 32 + 1;

  struct node {
    std::array<std::uint64_t, classes> has{};
  };

  [[nodiscard]] static constexpr std::uint64_t bit(std::uint64_t which) noexcept {
    return std::uint64_t{1} << which % fan;
  }
  /// Of a node's bits those from `from` on.
  [[nodiscard]] static constexpr std::uint64_t since(std::uint64_t bits,
                                                     std::uint64_t from) noexcept {
    return bits & ~std::uint64_t{0} << from % fan;
  }
  [[nodiscard]] static constexpr std::uint64_t lowest(std::uint64_t bits) noexcept {
    return static_cast<std::uint64_t>(std::countr_zero(bits));
  }

  [[nodiscard]] std::uint64_t lowest_under(std::uint64_t top, std::size_t in) const noexcept {
    const std::uint64_t group = top * fan + lowest(tops_[top].has[in]);
    const std::uint64_t chunk = group * fan + lowest(groups_[group]->has[in]);
    return chunk * fan + lowest(chunks_[chunk]->has[in]);
  }

  std::vector<std::unique_ptr<node>> chunks_;  // by 64 cells
  std::vector<std::unique_ptr<node>> groups_;  // by 64 chunks
  std::vector<node> tops_;                     // by 64 groups
  // A bit for each class that has a cell, and a word behind them that stays empty.
  std::array<std::uint64_t, (classes + 63) / 64 + 1> any_{};
};
static_assert(length_classes::class_of(length_classes::longest) == 64 + 5 * 32);
static_assert(length_classes::longest_of(63) == 63 && length_classes::longest_of(64) == 65);

}}}  // namespace weir::v0::placement
