// SPDX-License-Identifier: Apache-2.0
// The debug policy's store: reading what should be red, and telling what is not.
#include <algorithm>

#include "observe/own_work.hpp"
#include "placement/guarded_store.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace placement {

void damage_search::look(std::uint64_t address, std::span<const std::byte> bytes) noexcept {
  const auto expected = static_cast<std::byte>(found_.expected);
  for (auto at = bytes.begin();; ++at) {
    at = std::find_if(at, bytes.end(), [&](std::byte each) { return each != expected; });
    if (at == bytes.end()) return;
    found_.last = address + static_cast<std::uint64_t>(at - bytes.begin());
    if (found_.count++ == 0) {
      found_.first = found_.last;
      const auto shown =
          std::min<std::size_t>(found_.seen.size(), static_cast<std::size_t>(bytes.end() - at));
      std::transform(at, at + static_cast<std::ptrdiff_t>(shown), found_.seen.begin(),
                     [](std::byte each) { return static_cast<std::uint8_t>(each); });
      found_.seen_count = static_cast<std::uint8_t>(shown);
    }
  }
}

result<damage_search> guarded_store::compare(std::uint64_t from, std::uint64_t to,
                                             std::uint8_t expected,
                                             const context_scope& bound) const {
  const observe::own_work_scope own;
  damage_search search{expected};
  for (std::uint64_t at = from; at < to; at += most_zone) {
    const std::uint64_t size = std::min(most_zone, to - at);
    WEIR_TRY(driver::check(driver::call::memcpy_dtoh_async,
                           bound.driver().memcpy_dtoh_async(buffer_.get(), at, size, stream_),
                           bytes{size}));
    WEIR_TRY(finish(bound));
    search.look(at, {buffer_.get(), size});
  }
  return search;
}

void guarded_store::tell(const cell& of, const damage_search& search) const noexcept {
  if (!search.any() || shared_.damaged == nullptr) return;
  damage found = search.found();
  found.block = of.place.address;
  found.requested = of.place.requested;
  found.after_free = of.inspected;
  shared_.damaged->on_damage(found);
}

result<void> guarded_store::inspect(region& home, cell& freed, const context_scope& bound) const {
  const fenced_block& at = freed.place;
  // Once: a fill that failed half-way may have changed the zones.
  if (!freed.compared) {
    WEIR_TRY_VALUE(before, compare(at.zone, at.address, red_byte, bound));
    WEIR_TRY_VALUE(behind, compare(at.address + at.requested, at.zone_end, red_byte, bound));
    freed.compared = true;
    tell(freed, before);
    tell(freed, behind);
  }
  if (home.is_shared) {
    WEIR_TRY(fill(at.zone, at.zone_end - at.zone, freed_byte, bound));
    WEIR_TRY(finish(bound));
  }
  freed.inspected = true;
  --home.uninspected;
  return {};
}

result<void> guarded_store::look_after_frees(region& home, const context_scope& bound) const {
  for (cell& each : home.cells) {
    if (!home.is_shared || !each.inspected || each.told) continue;
    WEIR_TRY_VALUE(since, compare(each.place.zone, each.place.zone_end, freed_byte, bound));
    tell(each, since);
    each.told = since.any();
  }
  return {};
}

result<void> guarded_store::let_go(region_map::iterator position, const context_scope& bound) {
  WEIR_TRY(look_after_frees(position->second, bound));
  return unmap(position, bound);
}

result<void> guarded_store::inspect(const context_scope& bound) {
  if (freed_.empty()) return {};
  if (!bound) return bound.error();
  std::size_t kept = 0;
  std::size_t at = 0;
  result<void> outcome;
  for (; at < freed_.size() && outcome; ++at) {
    const std::uint64_t address = freed_[at];
    const auto position = region_over(address);
    region& home = position->second;
    cell& freed = home.cells[cell_near(home, address)];
    if (!shared_.order.completed(freed.freed)) {
      freed_[kept++] = address;
      continue;
    }
    outcome = inspect(home, freed, bound);
    if (!outcome) {
      freed_[kept++] = address;
    } else if (home.uninspected == 0 && position->first != open_) {
      outcome = let_go(position, bound);
    }
  }
  freed_.erase(freed_.begin() + static_cast<std::ptrdiff_t>(kept),
               freed_.begin() + static_cast<std::ptrdiff_t>(at));
  return outcome;
}

}}}  // namespace weir::v0::placement
