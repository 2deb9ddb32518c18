// SPDX-License-Identifier: Apache-2.0
// Following a recording's events to its end.
#include "formats/memory_map.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "formats/segment_ranges.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

constexpr std::uint64_t unit = 512;

std::uint64_t rounded(const trace_event& event) noexcept {
  if (event.extra >= event.size && event.extra != 0) return event.extra;
  const std::uint64_t size = std::max<std::uint64_t>(event.size, 1);
  return size > UINT64_MAX - unit ? size : (size + unit - 1) / unit * unit;
}

std::uint64_t end_of(std::uint64_t address, std::uint64_t size) noexcept {
  return size > UINT64_MAX - address ? UINT64_MAX : address + size;
}

}  // namespace

bool has_events(const recording& recording, trace_kind kind) {
  return std::any_of(recording.events.begin(), recording.events.end(),
                     [&](const trace_event& each) { return each.kind == kind; });
}

memory_map::memory_map(const recording& recording)
    : has_addresses_{recording.real_addresses},
      frees_{recording},
      has_reserved_{has_events(recording, trace_kind::reserve)} {
  if (has_reserved_ && has_addresses_ && has_events(recording, trace_kind::suspended))
    find_suspended_blocks(recording);
}

/// Allocations without reserved memory under them whose pool is suspended before anything else
/// happens to the block.
void memory_map::find_suspended_blocks(const recording& recording) {
  std::unordered_map<std::uint16_t, std::unordered_map<std::uint64_t, std::size_t>> unbacked;
  std::unordered_map<std::uint64_t, std::uint16_t> pools;  // by address of an unbacked block
  const auto forget = [&](std::uint64_t address) {
    const auto known = pools.find(address);
    if (known == pools.end()) return;
    unbacked[known->second].erase(address);
    pools.erase(known);
  };
  segment_ranges<char> reserved;
  for (std::size_t i = 0; i < recording.events.size(); ++i) {
    const trace_event& event = recording.events[i];
    switch (event.kind) {
      case trace_kind::reserve:
        reserved.add(event.address, event.size, {});
        break;
      case trace_kind::release:
        reserved.remove(event.address, event.size);
        break;
      case trace_kind::move:
        reserved.remove(event.extra, event.size);
        reserved.add(event.address, event.size, {});
        break;
      case trace_kind::allocate:
        forget(event.address);
        if (reserved.find(event.address) != nullptr) break;
        unbacked[event.pool].emplace(event.address, i);
        pools.emplace(event.address, event.pool);
        break;
      case trace_kind::deallocate:
        forget(event.address);
        break;
      case trace_kind::suspended: {
        const auto blocks = std::exchange(unbacked[event.pool], {});
        for (const auto& [address, index] : blocks) {
          without_memory_.insert(index);
          pools.erase(address);
        }
        break;
      }
      default:
        break;
    }
  }
}

trace_event memory_map::apply(const trace_event& event) {
  trace_event placed = event;
  changes_.clear();
  ++applied_;
  switch (event.kind) {
    case trace_kind::allocate:
      if (!has_addresses_) {
        placed.address = next_address_;
        next_address_ += rounded(event);
        addresses_[event.address] = placed.address;
      }
      end_overlapped(placed.address, rounded(event));
      blocks_[placed.address] = {.size = event.size,
                                 .rounded = rounded(event),
                                 .stream = event.stream,
                                 .stack = event.other};
      if (!without_memory_.contains(applied_ - 1)) reserve(placed.address, rounded(event));
      break;
    case trace_kind::deallocate:
    case trace_kind::reusable:
    case trace_kind::record_stream:
      if (!has_addresses_) placed.address = addresses_[event.address];
      if (event.kind == trace_kind::deallocate && is_pending_free()) {
        if (const auto entry = blocks_.find(placed.address); entry != blocks_.end())
          entry->second.pending = true;
      } else if (event.kind != trace_kind::record_stream) {
        end(placed.address);
      }
      break;
    case trace_kind::reserve:
      reserve(event.address, event.size);
      break;
    case trace_kind::release:
      release(event.address, event.size);
      break;
    case trace_kind::move:
      release(event.extra, event.size);
      reserve(event.address, event.size);
      break;
    default:
      break;
  }
  return placed;
}

void memory_map::end(std::uint64_t address) {
  const auto entry = blocks_.find(address);
  if (entry == blocks_.end()) return;
  if (!has_reserved_) release(address, entry->second.rounded);
  blocks_.erase(entry);
}

void memory_map::end_overlapped(std::uint64_t address, std::uint64_t size) {
  auto next = blocks_.upper_bound(address);
  if (next != blocks_.begin()) {
    const auto before = std::prev(next);
    if (before->first < address && end_of(before->first, before->second.rounded) > address)
      blocks_.erase(before);
  }
  const std::uint64_t last = end_of(address, size);
  while (next != blocks_.end() && next->first < last) next = blocks_.erase(next);
}

bool memory_map::has_memory(std::uint64_t address) const {
  const auto after = reserved_.upper_bound(address);
  return after != reserved_.begin() && std::prev(after)->second > address;
}

void memory_map::reserve(std::uint64_t address, std::uint64_t size) {
  std::uint64_t end = end_of(address, size);
  auto range = reserved_.upper_bound(address);
  if (range != reserved_.begin() && std::prev(range)->second >= address) --range;
  std::uint64_t first = address;
  while (range != reserved_.end() && range->first <= end) {
    if (range->first > address) changes_.push_back({true, address, range->first - address});
    first = std::min(first, range->first);
    address = std::max(address, range->second);
    range = reserved_.erase(range);
  }
  if (address < end) changes_.push_back({true, address, end - address});
  end = std::max(end, address);
  if (end != first) reserved_.emplace(first, end);
}

void memory_map::release(std::uint64_t address, std::uint64_t size) {
  const std::uint64_t end = end_of(address, size);
  if (address == end) return;
  auto range = reserved_.upper_bound(address);
  if (range != reserved_.begin()) --range;
  while (range != reserved_.end() && range->first < end) {
    const auto [first, last] = *range;
    if (last <= address) {
      ++range;
      continue;
    }
    range = reserved_.erase(range);
    if (first < address) reserved_.emplace(first, address);
    if (last > end) reserved_.emplace(end, last);
    const std::uint64_t from = std::max(first, address);
    changes_.push_back({false, from, std::min(last, end) - from});
  }
}

}}}  // namespace weir::v0::formats
