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

std::uint64_t end_of(std::uint64_t address, std::uint64_t size) noexcept {
  return size > UINT64_MAX - address ? UINT64_MAX : address + size;
}

}  // namespace

bool tells_of(const recording& what, trace_kind kind) {
  return std::any_of(what.events.begin(), what.events.end(),
                     [&](const trace_event& each) { return each.kind == kind; });
}

memory_map::memory_map(const recording& of) noexcept
    : real_{of.real_addresses},
      tells_reusable_{tells_of(of, trace_kind::reusable)},
      tells_reserved_{tells_of(of, trace_kind::reserve)} {}

trace_event memory_map::take(const trace_event& what) {
  trace_event placed = what;
  changes_.clear();
  switch (what.kind) {
    case trace_kind::allocate:
      if (!real_) {
        placed.address = next_;
        next_ += rounded(what);
        places_[what.address] = placed.address;
      }
      blocks_[placed.address] = {
          .size = what.size, .rounded = rounded(what), .stream = what.stream, .stack = what.other};
      reserve(placed.address, rounded(what));
      break;
    case trace_kind::deallocate:
    case trace_kind::reusable:
    case trace_kind::record_stream:
      if (!real_) placed.address = places_[what.address];
      if (what.kind == trace_kind::deallocate && tells_reusable_) {
        if (const auto found = blocks_.find(placed.address); found != blocks_.end())
          found->second.pending = true;
      } else if (what.kind != trace_kind::record_stream) {
        end(placed.address);
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

void memory_map::end(std::uint64_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  if (!tells_reserved_) release(address, found->second.rounded);
  blocks_.erase(found);
}

void memory_map::reserve(std::uint64_t address, std::uint64_t size) {
  std::uint64_t end = end_of(address, size);
  auto after = reserved_.upper_bound(address);
  if (after != reserved_.begin() && std::prev(after)->second >= address) --after;
  std::uint64_t first = address;
  while (after != reserved_.end() && after->first <= end) {
    if (after->first > address) changes_.push_back({true, address, after->first - address});
    first = std::min(first, after->first);
    address = std::max(address, after->second);
    after = reserved_.erase(after);
  }
  if (address < end) changes_.push_back({true, address, end - address});
  end = std::max(end, address);
  if (end != first) reserved_.emplace(first, end);
}

void memory_map::release(std::uint64_t address, std::uint64_t size) {
  const std::uint64_t end = end_of(address, size);
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
    const std::uint64_t from = std::max(first, address);
    changes_.push_back({false, from, std::min(last, end) - from});
  }
}

}  // namespace weir::inline v0::formats
