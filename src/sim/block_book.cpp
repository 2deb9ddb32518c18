// SPDX-License-Identifier: Apache-2.0
// The book of blocks.
#include "sim/block_book.hpp"

#include <algorithm>
#include <iterator>
#include <new>

#include "observe/own_work.hpp"
#include "sim/dispatch.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {
namespace {

constexpr std::size_t most_lives = 8;                             // that a story tells
constexpr std::uint64_t nearest_within = std::uint64_t{4} << 20;  // two granules of a device

/// The driver's own number of a stream: weir's ids have the runtime's number above it.
stream_id of_driver(stream_id id) noexcept {
  return stream_id{id.number() & ((std::uint64_t{1} << 48) - 1)};
}

party act(const char* what, const block_life& block, time_point when, std::uint64_t step) {
  return {.label = what,
          .extent = block.extent,
          .writes = true,
          .queued = when,
          .action = party_action::lifetime,
          .step = step};
}

}  // namespace

// --- Pieces --------------------------------------------------------------------------------------

block_book::piece_map::iterator block_book::cut(std::uint64_t address) {
  auto next = pieces_.lower_bound(address);
  if (next == pieces_.begin()) return next;
  piece& before = std::prev(next)->second;
  if (before.end <= address) return next;
  next = pieces_.emplace_hint(next, address, before);
  before.end = address;
  return next;
}

block_book::piece_map::const_iterator block_book::first_at(std::uint64_t address) const {
  auto next = pieces_.upper_bound(address);
  if (next != pieces_.begin() && std::prev(next)->second.end > address) --next;
  return next;
}

void block_book::forget(std::uint64_t address, std::uint64_t size) noexcept {
  if (pieces_.empty() || size == 0) return;
  // Where a boundary cannot be made the whole piece is forgotten.
  const auto boundary = [&](std::uint64_t at) {
    try {
      static_cast<void>(cut(at));
    } catch (const std::bad_alloc&) {
    }
  };
  const std::uint64_t end = address + size;
  boundary(address);
  boundary(end);
  auto next = pieces_.lower_bound(address);
  if (next != pieces_.begin() && std::prev(next)->second.end > address) --next;
  while (next != pieces_.end() && next->first < end) next = pieces_.erase(next);
}

void block_book::leave(std::uint64_t teller) noexcept {
  std::erase_if(pieces_, [&](const auto& each) { return each.second.teller == teller; });
  std::erase_if(graph_pools_, [&](const pool_name& each) { return each.first == teller; });
}

// --- What allocators tell ------------------------------------------------------------------------

void block_book::on_event(std::uint64_t teller, const memory_event& event, time_point now,
                          std::uint64_t step, bool capturing) noexcept {
  try {
    tell(teller, event, now, step, capturing);
  } catch (const std::bad_alloc&) {
    forget(event.address, std::max(event.size, event.rounded));
  }
}

void block_book::tell(std::uint64_t teller, const memory_event& event, time_point now,
                      std::uint64_t step, bool capturing) {
  switch (event.kind) {
    case memory_event_kind::allocate:
      // A capture need not have been declared: what it takes and gives is its graph's.
      if (capturing && event.pool != pool_id{}) graph_pools_.emplace(teller, event.pool);
      return allocated(teller, event, now, step);
    case memory_event_kind::deallocate:
      if (capturing && event.pool != pool_id{}) graph_pools_.emplace(teller, event.pool);
      return freed(teller, event, now, step);
    case memory_event_kind::record_stream:
      if (const auto found = pieces_.find(event.address);
          found != pieces_.end() && found->second.of)
        found->second.of->told.recorded.push_back(of_driver(event.stream));
      return;
    case memory_event_kind::reserve:
    case memory_event_kind::move:
      return reserved(teller, event);
    case memory_event_kind::release:
      return released(event);
    case memory_event_kind::capture_begin:
      graph_pools_.emplace(teller, event.pool);
      return;
    case memory_event_kind::pool_released:
      graph_pools_.erase({teller, event.pool});
      return;
    default:
      return;
  }
}

void block_book::allocated(std::uint64_t teller, const memory_event& event, time_point now,
                           std::uint64_t step) {
  const std::uint64_t end = event.address + event.size;
  const std::uint64_t rounded_end = event.address + std::max(event.rounded, event.size);
  auto begun = std::make_shared<life>();
  begun->told = {.extent = {event.address, event.size},
                 .rounded = rounded_end - event.address,
                 .tag = event.tag == 0 ? tag{} : tag::numbered(event.tag).value_or(tag{}),
                 .allocated_on = of_driver(event.stream),
                 .allocated = now,
                 .allocated_step = step};
  const auto first = cut(event.address);
  const auto last = cut(rounded_end);
  constexpr std::size_t most_before = 64;
  for (auto each = first; each != last && begun->before.size() < most_before; ++each) {
    const auto& earlier = each->second.of;
    if (!earlier || (!begun->before.empty() && begun->before.back() == earlier)) continue;
    earlier->before.clear();  // what lay there still earlier is not told
    begun->before.push_back(earlier);
  }
  auto next = pieces_.erase(first, last);
  if (rounded_end != end) {
    next = pieces_.emplace_hint(
        next, end, piece{rounded_end, piece_state::rounding, teller, event.pool, begun});
  }
  pieces_.emplace_hint(
      next, event.address,
      piece{end, piece_state::live, teller, event.pool, std::move(begun), event.other_address});
}

void block_book::freed(std::uint64_t teller, const memory_event& event, time_point now,
                       std::uint64_t step) {
  const auto found = pieces_.find(event.address);
  const bool known = found != pieces_.end() && found->second.state == piece_state::live &&
                     found->second.teller == teller;
  if (!known) return;  // it was handed out before anybody listened
  piece& block = found->second;
  block.of->told.freed_on = of_driver(event.stream);
  block.of->told.freed = now;
  block.of->told.freed_step = step;
  block.state = piece_state::free;
  const auto rounding = std::next(found);
  if (rounding == pieces_.end() || rounding->second.of != block.of) return;
  block.end = rounding->second.end;
  pieces_.erase(rounding);
}

/// Memory where there was none. Blocks that were suspended are live all the while.
void block_book::reserved(std::uint64_t teller, const memory_event& event) {
  const std::uint64_t end = event.address + event.size;
  auto next = cut(event.address);
  static_cast<void>(cut(end));
  const piece unused{0, piece_state::free, teller, event.pool, {}};
  for (std::uint64_t at = event.address; at < end;) {
    if (next == pieces_.end() || next->first > at) {
      piece fresh = unused;
      fresh.end = next == pieces_.end() ? end : std::min(end, next->first);
      next = pieces_.emplace_hint(next, at, std::move(fresh));
    } else if (next->second.state == piece_state::gone) {
      next->second.state = piece_state::free;
    }
    at = next->second.end;
    ++next;
  }
}

void block_book::released(const memory_event& event) {
  const auto last = cut(event.address + event.size);
  for (auto next = cut(event.address); next != last; ++next)
    if (next->second.state == piece_state::free) next->second.state = piece_state::gone;
}

// --- Uses ----------------------------------------------------------------------------------------

bool block_book::judged_otherwise(const piece& touched, occasion when) const {
  if (when == occasion::queued) return false;
  const bool of_graphs = graph_pools_.contains({touched.teller, touched.pool});
  return of_graphs != (when == occasion::captured);
}

std::optional<block_fault> block_book::check(const range& touched, occasion when) const {
  const std::uint64_t end = touched.address + touched.size;
  const life* inside = nullptr;  // the block that the use began in
  std::uint64_t range = 0;       // … and the growable memory that this is a page of
  std::uint64_t reached = touched.address;
  for (auto next = first_at(touched.address); next != pieces_.end() && next->first < end; ++next) {
    const auto& [start, found] = *next;
    const std::uint64_t from = std::max<std::uint64_t>(start, touched.address);
    if (from != reached) inside = nullptr;  // bytes in between that nobody told of
    reached = found.end;
    const bool next_page = range != 0 && found.range == range;
    const bool continues = inside != nullptr && found.of.get() != inside && !next_page;
    if (found.state == piece_state::gone || judged_otherwise(found, when)) {
      inside = nullptr;
      continue;
    }
    if (found.state == piece_state::live && !continues) {
      inside = found.of.get();
      range = found.range;
      continue;
    }
    block_fault wrong{hazard_kind::out_of_bounds, {from, std::min(end, found.end) - from}, {}};
    if (continues) {
      wrong.before =
          act("allocate", inside->told, inside->told.allocated, inside->told.allocated_step);
    } else if (found.state == piece_state::rounding) {
      const block_life& block = found.of->told;
      wrong.before = act("allocate", block, block.allocated, block.allocated_step);
    } else if (found.of) {
      const block_life& block = found.of->told;
      wrong.kind = hazard_kind::use_after_free;
      wrong.before = act("deallocate", block, block.freed, block.freed_step);
    }
    return wrong;
  }
  return {};
}

std::vector<block_life> block_book::lives(const range& of) const {
  std::vector<block_life> all;
  const std::uint64_t end = of.address + of.size;
  const auto add = [&](const block_life& each) {
    const bool overlaps =
        each.extent.address < end && each.extent.address + each.rounded > of.address;
    const bool known = std::any_of(all.begin(), all.end(), [&](const block_life& other) {
      return other.allocated_step == each.allocated_step;
    });
    if (overlaps && !known && all.size() < most_lives) all.push_back(each);
  };
  for (auto next = first_at(of.address); next != pieces_.end() && next->first < end; ++next) {
    if (!next->second.of) continue;
    for (const auto& each : next->second.of->before) add(each->told);
    add(next->second.of->told);
  }
  std::sort(all.begin(), all.end(), [](const block_life& a, const block_life& b) {
    return a.allocated_step < b.allocated_step;
  });
  return all;
}

std::optional<block_life> block_book::nearest(const range& to) const {
  const block_life* best = nullptr;
  std::uint64_t distance = nearest_within;
  const auto consider = [&](const piece& candidate, std::uint64_t away) {
    if (!candidate.of || away >= distance) return;
    best = &candidate.of->told;
    distance = away;
  };
  const auto at = first_at(to.address);
  for (auto before = at; before != pieces_.begin();) {
    --before;
    const std::uint64_t away = to.address - before->second.end;
    if (away >= distance) break;
    consider(before->second, away);
  }
  const std::uint64_t end = to.address + to.size;
  for (auto behind = at; behind != pieces_.end(); ++behind) {
    const std::uint64_t away = behind->first < end ? 0 : behind->first - end;
    if (away >= distance) break;
    consider(behind->second, away);
  }
  return best == nullptr ? std::nullopt : std::optional{*best};
}

// --- The sink ------------------------------------------------------------------------------------

block_watch::block_watch(state& machine) : machine_{machine} {
  const machine_lock guard{machine};
  number_ = machine.blocks.join();
}

block_watch::~block_watch() {
  if (machine_.fork_generation != fork_generation()) return;  // the lock may be another's for ever
  const machine_lock guard{machine_};
  machine_.blocks.leave(number_);
}

void block_watch::on_event(const memory_event& event) noexcept {
  if (machine_.fork_generation != fork_generation()) return;
  std::optional<machine_lock> guard;
  if (!holds_lock(machine_)) guard.emplace(machine_);  // not in the middle of a kernel
  const bool capturing = event.pool != pool_id{} && machine_.is_capturing(of_driver(event.stream));
  machine_.blocks.on_event(number_, event, machine_.clock, ++machine_.steps, capturing);
}

segment_owner_scope::segment_owner_scope() noexcept { ++observe::own_work_depth; }
segment_owner_scope::~segment_owner_scope() { --observe::own_work_depth; }

}}}  // namespace weir::v0::sim
