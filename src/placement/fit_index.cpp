// SPDX-License-Identifier: Apache-2.0
// Maxima by cell, chunk and group; and large runs by length.
#include "placement/fit_index.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace weir { inline namespace v0 { namespace placement {
namespace {

constexpr std::uint16_t capped(std::uint64_t units) noexcept {
  return static_cast<std::uint16_t>(
      std::min<std::uint64_t>(units, std::numeric_limits<std::uint16_t>::max()));
}

using lanes [[gnu::vector_size(16)]] = std::uint16_t;
constexpr std::size_t lane_count = 8;

lanes load(const std::uint16_t* from) noexcept {
  lanes loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

/// Of 16 values, those that are at least `wanted`: a bit each.
std::uint32_t at_least(const std::uint16_t* values, std::uint16_t wanted) noexcept {
  const auto low = load(values) >= wanted;  // all bits of a lane, or none
  const auto high = load(values + lane_count) >= wanted;
#ifdef __SSE2__
  // One instruction that no compiler finds; elsewhere the loop is made of vectors, too.
  return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(
      reinterpret_cast<const __m128i&>(low), reinterpret_cast<const __m128i&>(high))));
#else
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < lane_count; ++i)
    bits |= (low[i] & 1u) << i | (high[i] & 1u) << (i + lane_count);
  return bits;
#endif
}

/// The first of `count` values that is at least `wanted`; `count` if none is. `count` is 64 or
/// few.
std::size_t first_at_least(const std::uint16_t* values, std::size_t count,
                           std::uint16_t wanted) noexcept {
  std::size_t at = 0;
  for (; at + 2 * lane_count <= count; at += 2 * lane_count)
    if (const std::uint32_t bits = at_least(values + at, wanted); bits != 0)
      return at + static_cast<std::size_t>(std::countr_zero(bits));
  while (at < count && values[at] < wanted) ++at;
  return at;
}

/// Of 64 values, those that are at least `wanted`: a bit each.
std::uint64_t bits_of_64(const std::uint16_t* values, std::uint16_t wanted) noexcept {
  std::uint64_t bits = 0;
  for (std::size_t at = 0; at < 64; at += 2 * lane_count)
    bits |= std::uint64_t{at_least(values + at, wanted)} << at;
  return bits;
}

/// The same as first_at_least() of 64, of which one is, without a branch: where it is, nobody can
/// foretell.
std::size_t first_of_64(const std::uint16_t* values, std::uint16_t wanted) noexcept {
  return static_cast<std::size_t>(std::countr_zero(bits_of_64(values, wanted)));
}

/// The last of the first `count` of 64 values that is at least `wanted`; 64 if none is.
std::size_t last_of(const std::uint16_t* values, std::size_t count, std::uint16_t wanted) noexcept {
  const std::uint64_t among = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
  const std::uint64_t bits = bits_of_64(values, wanted) & among;
  return bits == 0 ? 64 : 63 - static_cast<std::size_t>(std::countl_zero(bits));
}

/// The greatest of 64 values.
std::uint16_t greatest(const std::uint16_t* values) noexcept {
  lanes most = load(values);
  for (std::size_t at = lane_count; at < 64; at += lane_count) {
    const lanes next = load(values + at);
    most = most > next ? most : next;
  }
  std::array<std::uint16_t, lane_count> each;
  std::memcpy(each.data(), &most, sizeof each);
  return *std::max_element(each.begin(), each.end());
}

}  // namespace

// --- Cells ---------------------------------------------------------------------------------------

fit_index::chunk* fit_index::add_chunk(std::uint64_t number) noexcept {
  try {
    if (number >= chunks_.size()) {
      const std::size_t groups = number / fan + 1;
      group_longest_.resize(groups);
      chunk_longest_.resize(groups * fan);
      chunks_.resize(groups * fan);
    }
    if (!classes_.prepare(number * fan)) return nullptr;
    chunks_[number] = std::make_unique<chunk>();
    return chunks_[number].get();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

/// A longer run than the cell had.
void fit_index::raise(chunk& home, std::uint64_t cell, std::uint16_t length) noexcept {
  home.longest[cell % fan] = length;
  std::uint16_t& of_chunk = chunk_longest_[cell / fan];
  if (length <= of_chunk) return;
  of_chunk = length;
  std::uint16_t& of_group = group_longest_[cell / fan / fan];
  if (length > of_group) of_group = length;
}

/// The cell's longest run went from `before` to `now`, which is less.
void fit_index::lower(chunk& home, std::uint64_t cell, std::uint16_t before,
                      std::uint16_t now) noexcept {
  home.longest[cell % fan] = now;
  std::uint16_t& of_chunk = chunk_longest_[cell / fan];
  if (before < of_chunk) return;
  of_chunk = greatest(home.longest.data());
  std::uint16_t& of_group = group_longest_[cell / fan / fan];
  if (before < of_group) return;
  of_group = greatest(&chunk_longest_[cell / fan / fan * fan]);
}

void fit_index::find_longest(chunk& home, std::uint64_t cell) noexcept {
  const std::uint16_t before = home.longest[cell % fan];
  std::uint64_t most = 0;
  for (block_index at = home.inside[cell % fan]; at != no_block;) {
    const block& run = blocks_[at];
    most = std::max<std::uint64_t>(most, run.units);
    at = run.in.right;
  }
  if (const block_index over = home.over_end[cell % fan]; over != no_block)
    most = std::max<std::uint64_t>(most, blocks_[over].units);
  const std::uint16_t now = capped(most);
  if (now < before) lower(home, cell, before, now);
}

// --- Runs ----------------------------------------------------------------------------------------

void fit_index::enter(block_index index, block& run, chunk& home, std::uint64_t cell) noexcept {
  run.in.left = run.in.right = no_block;
  if (reaches_over_end(run)) {
    home.over_end[cell % fan] = index;
  } else {
    block_index& first = home.inside[cell % fan];
    run.in.right = first;
    if (first != no_block) blocks_[first].in.left = index;
    first = index;
  }
  const std::uint16_t length = capped(run.units);
  if (length > home.longest[cell % fan]) raise(home, cell, length);
  if (run.units <= large) classes_.enter(length_classes::class_of(run.units), cell);
}

void fit_index::leave(block_index index, block& run, chunk& home, std::size_t cell) noexcept {
  if (home.over_end[cell] == index) {
    home.over_end[cell] = no_block;
    return;
  }
  if (run.in.right != no_block) blocks_[run.in.right].in.left = run.in.left;
  if (run.in.left != no_block) {
    blocks_[run.in.left].in.right = run.in.right;
  } else {
    home.inside[cell] = run.in.right;
  }
}

void fit_index::insert(block_index index) noexcept {
  block& run = blocks_[index];
  total_ += run.size();
  const std::uint64_t cell = cell_of(run.address);
  chunk* const home = chunk_of(cell);
  if (home == nullptr || (run.units > large && !by_length_.insert(key_of(run.units, cell)))) {
    run.in.left = index;  // a link to itself: not in the index
    return;
  }
  enter(index, run, *home, cell);
}

fit_index::detached fit_index::detach(block_index index) noexcept {
  block& run = blocks_[index];
  total_ -= run.size();
  if (run.in.left == index) return {};
  const std::uint64_t cell = cell_of(run.address);
  if (run.units > large) by_length_.remove(key_of(run.units, cell));
  chunk& home = *chunks_[cell / fan];
  leave(index, run, home, cell % fan);
  // Where others are left the class is forgotten when a search finds that they are not of it.
  if (run.units <= large && home.inside[cell % fan] == no_block &&
      home.over_end[cell % fan] == no_block)
    classes_.forget(length_classes::class_of(run.units), cell);
  return {cell, capped(run.units)};
}

void fit_index::shrink(block_index index, unit_count units) noexcept {
  block& run = blocks_[index];
  const std::uint64_t cell = cell_of(run.address);
  const bool indexed = run.in.left != index;
  if (indexed && run.units - units > large) return shrink_large(index, units);
  if (!indexed || run.units > large || cell_of(run.address + units * unit) != cell) {
    remove(index);
    run.address += units * unit;
    run.units -= units;
    insert(index);
    return;
  }
  // The same cell, and the same place in it: a run over the end stays one, one inside stays inside.
  const std::uint16_t before = capped(run.units);
  total_ -= units * unit;
  run.address += units * unit;
  run.units -= units;
  chunk& home = *chunks_[cell / fan];
  classes_.enter(length_classes::class_of(run.units), cell);
  if (before == home.longest[cell % fan]) find_longest(home, cell);
}

/// The same for a run that stays large: its key moves down among the others.
void fit_index::shrink_large(block_index index, unit_count units) noexcept {
  block& run = blocks_[index];
  const std::uint64_t cell = cell_of(run.address);
  const std::uint64_t key = key_of(run.units, cell);
  const detached gone{cell, capped(run.units)};
  leave(index, run, *chunks_[cell / fan], cell % fan);
  total_ -= units * unit;
  run.address += units * unit;
  run.units -= units;
  const std::uint64_t now = cell_of(run.address);
  chunk* const home = chunk_of(now);
  if (home == nullptr) by_length_.remove(key);
  if (home == nullptr || !by_length_.lower(key, key_of(run.units, now))) {
    run.in.left = index;
  } else {
    enter(index, run, *home, now);
  }
  settle(gone);
}

/// The shortest of the cell's runs from `units` to `longest` units. What is shortest, and how many
/// there are, nobody can foretell: no branch asks for lengths.
block_index fit_index::shortest_in(const chunk& home, std::size_t cell, std::uint64_t units,
                                   std::uint64_t longest) const noexcept {
  block_index found = no_block;
  std::uint64_t least = longest - units + 1;  // what a run would have left, and one
  const auto look = [&](block_index at) {
    const std::uint64_t left = std::uint64_t{blocks_[at].units} - units;
    found = left < least ? at : found;
    least = left < least ? left : least;
  };
  for (block_index at = home.inside[cell]; at != no_block; at = blocks_[at].in.right) look(at);
  if (const block_index over = home.over_end[cell]; over != no_block) look(over);
  return found;
}

bool fit_index::has_class(const chunk& home, std::size_t cell, std::size_t in) const noexcept {
  const std::uint64_t most = length_classes::longest_of(in);
  const std::uint64_t least = length_classes::longest_of(in - 1) + 1;
  return shortest_in(home, cell, least, most) != no_block;
}

/// A close fit in the lowest cell of a class.
block_index fit_index::close_fit_of(std::size_t in, const close_lengths& wanted) noexcept {
  const std::uint64_t longest = std::min<std::uint64_t>(wanted.longest, large);
  int tries = 8;  // in how many cells the runs of the class may all be too short, or too long
  for (std::uint64_t cell = classes_.first(in); cell != length_classes::no_cell;
       cell = classes_.first(in, cell + 1)) {
    const chunk& home = *chunks_[cell / fan];
    const block_index found = shortest_in(home, cell % fan, wanted.units, longest);
    if (found != no_block) return found;
    if (!has_class(home, cell % fan, in)) {
      classes_.forget(in, cell);
    } else if (--tries == 0) {
      break;
    }
  }
  return no_block;
}

block_index fit_index::close_fit(const close_lengths& wanted) noexcept {
  std::uint64_t classes = classes_.classes_from(wanted.own_class) & wanted.classes;
  for (; classes != 0; classes &= classes - 1) {
    const std::size_t in = wanted.own_class + static_cast<std::size_t>(std::countr_zero(classes));
    if (const block_index match = close_fit_of(in, wanted); match != no_block) return match;
  }
  if (wanted.longest <= large) return no_block;
  const block_index match = shortest(large + 1);
  return match != no_block && blocks_[match].units <= wanted.longest ? match : no_block;
}

block_index fit_index::lowest(std::uint64_t units) const noexcept {
  const std::uint16_t wanted = capped(units);
  const std::size_t group = first_at_least(group_longest_.data(), group_longest_.size(), wanted);
  if (group == group_longest_.size()) return no_block;
  const std::size_t number =
      group * fan + first_at_least(&chunk_longest_[group * fan], fan, wanted);
  const chunk& home = *chunks_[number];
  const std::size_t cell = first_of_64(home.longest.data(), wanted);
  block_index match = no_block;
  std::uint64_t lowest_address = ~std::uint64_t{0};
  for (block_index at = home.inside[cell]; at != no_block;) {
    const block& run = blocks_[at];
    if (run.units >= units && run.address < lowest_address) {
      match = at;
      lowest_address = run.address;
    }
    at = run.in.right;
  }
  // What reaches over the end begins above all others.
  return match != no_block ? match : home.over_end[cell];
}

std::uint32_t fit_index::longest() const noexcept {
  if (const std::uint64_t key = by_length_.last(); key != ordered_keys::none)
    return static_cast<std::uint32_t>(key >> 32);
  std::uint16_t most = 0;
  for (const std::uint16_t each : group_longest_) most = std::max(most, each);
  return most;
}

std::size_t fit_index::footprint() const noexcept {
  std::size_t total = by_length_.footprint() + classes_.footprint() +
                      chunks_.capacity() * (sizeof(chunks_[0]) + sizeof(std::uint16_t));
  for (const auto& each : chunks_) total += each == nullptr ? 0 : sizeof(chunk);
  return total;
}

block_index fit_index::over(std::uint64_t address) const noexcept {
  // Runs do not overlap: it is the last that starts at or below the address, or none is.
  const auto match = [&](std::uint64_t number, std::size_t cell) {
    const block_index run = chunks_[number]->over_end[cell];
    return blocks_[run].end() > address ? run : no_block;
  };
  constexpr std::uint16_t wanted = large + 1;
  std::uint64_t number = cell_of(address) / fan;
  if (number < chunks_.size() && chunks_[number] != nullptr) {
    const chunk& home = *chunks_[number];
    const std::size_t own = cell_of(address) % fan;
    const bool starts_above =
        home.longest[own] >= wanted && blocks_[home.over_end[own]].address > address;
    const std::size_t cell = last_of(home.longest.data(), own + (starts_above ? 0 : 1), wanted);
    if (cell != fan) return match(number, cell);
  }
  number = std::min<std::uint64_t>(number, chunk_longest_.size());
  std::size_t group = number / fan;
  std::size_t below = number % fan;  // chunks of the group
  for (;; below = fan) {
    if (below != 0 && group_longest_[group] >= wanted) {
      const std::size_t last = last_of(&chunk_longest_[group * fan], below, wanted);
      if (last != fan) {
        number = group * fan + last;
        return match(number, last_of(chunks_[number]->longest.data(), fan, wanted));
      }
    }
    if (group-- == 0) return no_block;
  }
}

block_index fit_index::shortest(std::uint64_t units) const noexcept {
  if (units > unit_count::most) return no_block;
  const std::uint64_t key = by_length_.at_least(key_of(units, 0));
  return key == ordered_keys::none ? no_block : run_of(key);
}

}}}  // namespace weir::v0::placement
