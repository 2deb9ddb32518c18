// Following a recording's events to its end.
#include "formats/final_state.hpp"

#include <algorithm>
#include <iterator>

namespace weir::inline v0::formats {
namespace {

constexpr std::uint64_t unit = 512;

std::uint64_t rounded(const trace_event& what) noexcept {
  if (what.extra >= what.size && what.extra != 0) return what.extra;
  const std::uint64_t size = std::max<std::uint64_t>(what.size, 1);
  return size > UINT64_MAX - unit ? size : (size + unit - 1) / unit * unit;
}

}  // namespace

memory_map::memory_map(const recording& of) noexcept
    : real_{of.real_addresses},
      tells_reusable_{std::any_of(of.events.begin(), of.events.end(), [](const trace_event& each) {
        return each.kind == trace_kind::reusable;
      })} {}

trace_event memory_map::take(const trace_event& what) {
  trace_event placed = what;
  switch (what.kind) {
    case trace_kind::allocate:
      if (!real_) {
        placed.address = next_;
        next_ += rounded(what);
        places_[what.address] = placed.address;
      }
      blocks_[placed.address] = {
          .size = what.size, .rounded = rounded(what), .stream = what.stream, .stack = what.other};
      break;
    case trace_kind::deallocate:
    case trace_kind::reusable:
    case trace_kind::record_stream:
      if (!real_) placed.address = places_[what.address];
      if (what.kind == trace_kind::deallocate && tells_reusable_) {
        if (const auto found = blocks_.find(placed.address); found != blocks_.end())
          found->second.pending = true;
      } else if (what.kind != trace_kind::record_stream) {
        blocks_.erase(placed.address);
      }
      break;
    case trace_kind::reserve:
      reserve(what.address, what.size);
      break;
    case trace_kind::release:
      release(what.address, what.size);
      break;
    case trace_kind::move:
      release(what.extra, what.size);
      reserve(what.address, what.size);
      break;
    default:
      break;
  }
  return placed;
}

void memory_map::reserve(std::uint64_t address, std::uint64_t size) {
  std::uint64_t end = size > UINT64_MAX - address ? UINT64_MAX : address + size;
  auto after = reserved_.upper_bound(address);
  if (after != reserved_.begin() && std::prev(after)->second >= address) {
    --after;
    address = after->first;
  }
  while (after != reserved_.end() && after->first <= end) {
    end = std::max(end, after->second);
    after = reserved_.erase(after);
  }
  if (end != address) reserved_.emplace(address, end);
}

void memory_map::release(std::uint64_t address, std::uint64_t size) {
  const std::uint64_t end = size > UINT64_MAX - address ? UINT64_MAX : address + size;
  auto each = reserved_.upper_bound(address);
  if (each != reserved_.begin()) --each;
  while (each != reserved_.end() && each->first < end) {
    const auto [first, last] = *each;
    if (last <= address) {
      ++each;
      continue;
    }
    each = reserved_.erase(each);
    if (first < address) reserved_.emplace(first, address);
    if (last > end) reserved_.emplace(end, last);
  }
}

std::map<std::uint64_t, std::uint64_t> memory_map::reserved() const {
  memory_map all = *this;  // also covers blocks that nothing was reserved for
  for (const auto& [address, each] : blocks_) all.reserve(address, each.rounded);
  return all.reserved_;
}

}  // namespace weir::inline v0::formats
