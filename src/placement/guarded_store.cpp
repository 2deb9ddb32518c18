// SPDX-License-Identifier: Apache-2.0
// The debug policy's store: where blocks lie, and what is known of an address.
#include "placement/guarded_store.hpp"

#include <algorithm>
#include <iterator>

#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

constexpr std::uint64_t down(std::uint64_t address, std::uint64_t step) noexcept {
  return address / step * step;
}
constexpr std::uint64_t up(std::uint64_t address, std::uint64_t step) noexcept {
  return down(address + step - 1, step);
}

}  // namespace

// --- Places --------------------------------------------------------------------------------------

fenced_block place_alone(const request& wanted, std::uint64_t memory,
                         std::uint64_t memory_end) noexcept {
  const std::uint64_t size = wanted.units * unit;
  fenced_block place{.requested = size - wanted.waste};
  place.address = down(memory_end - size, wanted.alignment * unit);
  place.zone = place.address - std::min(place.address - memory, most_zone);
  place.zone_end = std::min(memory_end, place.address + size + most_zone);
  return place;
}

fenced_block place_beside(const request& wanted, std::uint64_t next) noexcept {
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t zone = zone_beside(size);
  fenced_block place{.zone = next, .requested = size - wanted.waste};
  place.address = up(next + zone, wanted.alignment * unit);
  place.zone = std::max(next, place.address - std::min(place.address, most_zone));
  place.zone_end = place.address + size + zone;
  return place;
}

// --- Requests and frees --------------------------------------------------------------------------

result<block_index> guarded_store::grow(const request& wanted, const context_scope& bound) {
  if (!bound) return bound.error();
  if (!shared_.blocks.prepare(1)) return no_host_memory();
  if (const std::size_t most = handed_out_count_ + freed_.size() + 1; most > freed_.capacity())
    freed_.reserve(most * 2);
  const fenced_block place = place_beside(wanted, 0);
  const bool shares = rules_.shares_memory && place.zone_end <= granule_ / 2;
  return shares ? grow_shared(wanted, bound) : grow_alone(wanted, bound);
}

result<block_index> guarded_store::grow_alone(const request& wanted, const context_scope& bound) {
  const std::uint64_t step = std::max<std::uint64_t>(granule_, wanted.alignment * unit);
  WEIR_TRY_VALUE(home, map_region(up(wanted.units * unit, step), step, bound));
  if (home == regions_.end()) return no_block;
  region& fresh = home->second;
  auto block = hand_out(fresh, place_alone(wanted, fresh.start, fresh.end()), wanted, bound);
  if (!block) detail::report_failure(unmap(home, bound));
  return block;
}

result<block_index> guarded_store::grow_shared(const request& wanted, const context_scope& bound) {
  if (open_ != 0) {
    const auto open = regions_.find(open_);
    const fenced_block place = place_beside(wanted, open->second.cells.back().place.zone_end);
    if (place.zone_end <= open->second.end()) return hand_out(open->second, place, wanted, bound);
    open_ = 0;
    if (open->second.uninspected == 0) detail::report_failure(let_go(open, bound));
  }
  WEIR_TRY_VALUE(home, map_region(granule_, granule_, bound));
  if (home == regions_.end()) return no_block;
  region& fresh = home->second;
  fresh.is_shared = true;
  auto block = hand_out(fresh, place_beside(wanted, fresh.start), wanted, bound);
  if (block) {
    open_ = home->first;
  } else {
    detail::report_failure(unmap(home, bound));
  }
  return block;
}

result<block_index> guarded_store::hand_out(region& home, const fenced_block& place,
                                            const request& wanted, const context_scope& bound) {
  home.cells.push_back({.place = place});
  const auto filled = [&]() -> result<void> {
    const std::uint64_t end = place.address + place.requested;
    WEIR_TRY(fill(place.zone, place.address - place.zone, red_byte, bound));
    WEIR_TRY(fill(place.address, place.requested, fresh_byte, bound));
    WEIR_TRY(fill(end, place.zone_end - end, red_byte, bound));
    return finish(bound);
  }();
  if (!filled) {
    static_cast<void>(finish(bound));  // what was queued before must not meet unmapped memory
    home.cells.pop_back();
    return filled.error();
  }
  const block_index index = shared_.blocks.make();
  block& block = shared_.blocks[index];
  block.address = place.address;
  block.units = wanted.units;
  block.stream = wanted.stream;
  block.out = {};
  block.out.waste = wanted.waste;
  block.become_live();
  home.cells.back().index = index;
  ++home.uninspected;
  ++handed_out_count_;
  handed_out_ += block.size();
  return index;
}

void guarded_store::free(block_index index, stamp freed) noexcept {
  const block& block = shared_.blocks[index];
  region& home = region_over(block.address)->second;
  cell& of = home.cells[cell_near(home, block.address)];
  of.index = no_block;
  of.freed = freed;
  freed_.push_back(block.address);  // there is room
  --handed_out_count_;
  handed_out_ -= block.size();
  shared_.blocks.recycle(index);
}

// --- What is where -------------------------------------------------------------------------------

guarded_store::region_map::const_iterator guarded_store::region_over(
    std::uint64_t address) const noexcept {
  const auto above = regions_.upper_bound(address);
  if (above == regions_.begin()) return regions_.end();
  const auto below = std::prev(above);
  return address - below->first < below->second.size ? below : regions_.end();
}

guarded_store::region_map::iterator guarded_store::region_over(std::uint64_t address) noexcept {
  const auto above = regions_.upper_bound(address);
  if (above == regions_.begin()) return regions_.end();
  const auto below = std::prev(above);
  return address - below->first < below->second.size ? below : regions_.end();
}

std::size_t guarded_store::cell_near(const region& home, std::uint64_t address) noexcept {
  const auto above =
      std::upper_bound(home.cells.begin(), home.cells.end(), address,
                       [](std::uint64_t at, const cell& each) { return at < each.place.zone; });
  return above == home.cells.begin() ? 0 : static_cast<std::size_t>(above - home.cells.begin()) - 1;
}

const guarded_store::cell* guarded_store::cell_near(std::uint64_t address) const noexcept {
  const auto home = region_over(address);
  if (home == regions_.end() || home->second.cells.empty()) return nullptr;
  return &home->second.cells[cell_near(home->second, address)];
}

std::optional<nearest_block> guarded_store::block_near(std::uint64_t address) const noexcept {
  const cell* const near = cell_near(address);
  if (near == nullptr) return {};
  return nearest_block{near->place.address, near->place.requested, near->index != no_block};
}

block_index guarded_store::block_over(std::uint64_t address) const noexcept {
  const cell* const near = cell_near(address);
  if (near == nullptr || near->index == no_block) return no_block;
  const block& block = shared_.blocks[near->index];
  return address >= block.address && address < block.end() ? near->index : no_block;
}

result<block_handles> guarded_store::handles_under(block_index index) const {
  if (!rules_.properties.posix_descriptor) return errc::not_supported;
  const std::uint64_t address = shared_.blocks[index].address;
  const region& home = region_over(address)->second;
  return block_handles{.handles = {home.memory}, .offset = bytes{address - home.start}};
}

void guarded_store::describe(pool_snapshot& into) const {
  for (const auto& [base, home] : regions_) {
    if (!home.has_memory()) continue;
    std::uint64_t reached = home.start;
    const auto add_free = [&](std::uint64_t until) {
      if (until == reached) return;
      into.blocks.push_back({.address = reached,
                             .size = bytes{until - reached},
                             .state = block_state::free,
                             .pool = pool_});
    };
    for (const cell& each : home.cells) {
      if (each.index == no_block) continue;
      const block& block = shared_.blocks[each.index];
      add_free(block.address);
      const bool is_live = block.is() == block_kind::live;
      into.blocks.push_back({.address = block.address,
                             .size = bytes{block.size()},
                             .requested = bytes{is_live ? each.place.requested : 0},
                             .state = is_live ? block_state::live : block_state::pending,
                             .stream = shared_.order.id(block.stream),
                             .pool = pool_});
      reached = block.end();
    }
    add_free(home.end());
    into.physical.push_back({home.start, home.memory.size});
  }
}

std::size_t guarded_store::footprint() const noexcept {
  // A node of the map has three links and a colour besides what it holds.
  constexpr std::size_t node = sizeof(region_map::value_type) + 4 * sizeof(void*);
  std::size_t total = sizeof *this + regions_.size() * node;
  for (const auto& [base, home] : regions_) total += home.cells.capacity() * sizeof(cell);
  return total + freed_.capacity() * sizeof(freed_.front());
}

std::string guarded_store::check() const {
  std::uint64_t reserved = 0;
  std::uint64_t handed_out = 0;
  std::uint64_t quarantined = 0;
  std::size_t live = 0;
  std::size_t waiting = 0;
  std::uint64_t end = 0;
  for (const auto& [base, home] : regions_) {
    if (base < end) return "regions overlap";
    end = base + home.size;
    reserved += home.memory.size.count();
    if (!home.has_memory()) quarantined += home.size;
    std::uint64_t reached = home.start;
    std::uint32_t uninspected = 0;
    for (const cell& each : home.cells) {
      const fenced_block& at = each.place;
      if (at.zone < reached || at.address < at.zone || at.zone_end < at.address + at.requested)
        return "blocks of a region overlap, or are not between their zones";
      reached = at.zone_end;
      if (each.inspected) continue;
      ++uninspected;
      if (each.index == no_block) {
        ++waiting;
        continue;
      }
      const block& block = shared_.blocks[each.index];
      if (block.address != at.address) return "a record is of another block";
      ++live;
      handed_out += block.size();
    }
    if (uninspected != home.uninspected) return "a region counts its blocks wrongly";
    if (home.has_memory() && reached > home.end()) return "a block leaves its memory";
    if (!home.has_memory() && uninspected != 0) return "a block that may be in use has no memory";
  }
  if (reserved != reserved_) return "reserved is not the sum of the regions";
  if (handed_out != handed_out_ || live != handed_out_count_) return "handed_out is wrong";
  if (waiting != freed_.size()) return "freed blocks are not those that wait";
  if (quarantined != quarantined_) return "the quarantine is not the regions without memory";
  if (open_ != 0 && !regions_.contains(open_)) return "the open region is gone";
  return {};
}

}}}  // namespace weir::v0::placement
