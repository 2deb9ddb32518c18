// SPDX-License-Identifier: Apache-2.0
// Searching and shifting in leaves of sorted keys.
#include "placement/ordered_keys.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace weir { inline namespace v0 { namespace placement {

std::size_t ordered_keys::leaf_of(std::uint64_t key) const noexcept {
  const auto above = std::upper_bound(bounds_.begin() + 1, bounds_.end(), key);
  return static_cast<std::size_t>(above - bounds_.begin()) - 1;
}

/// How many keys of the leaf are less. Which half it is in nobody can foretell: no branch asks.
std::size_t ordered_keys::place_in(const leaf& in, std::uint64_t key) noexcept {
  const std::uint64_t* from = in.keys.data();
  std::size_t count = in.count;
  while (count > 1) {
    const std::size_t half = count / 2;
    from += from[half - 1] < key ? half : 0;
    count -= half;
  }
  return static_cast<std::size_t>(from - in.keys.data()) + (count == 1 && *from < key ? 1 : 0);
}

bool ordered_keys::cut_in_two(std::size_t number) noexcept {
  try {
    leaves_.reserve(leaves_.size() + 1);
    bounds_.reserve(bounds_.size() + 1);
    auto upper = std::make_unique<leaf>();
    leaf& lower = *leaves_[number];
    const std::size_t kept = lower.count / 2;
    upper->count = lower.count - kept;
    std::copy_n(&lower.keys[kept], upper->count, upper->keys.begin());
    lower.count = kept;
    bounds_.insert(bounds_.begin() + static_cast<std::ptrdiff_t>(number) + 1, upper->keys[0]);
    leaves_.insert(leaves_.begin() + static_cast<std::ptrdiff_t>(number) + 1, std::move(upper));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool ordered_keys::insert(std::uint64_t key) noexcept {
  if (leaves_.empty()) {
    try {
      leaves_.reserve(1);
      bounds_.push_back(0);
      leaves_.push_back(std::make_unique<leaf>());
    } catch (const std::bad_alloc&) {
      bounds_.clear();
      return false;
    }
  }
  std::size_t number = leaf_of(key);
  if (leaves_[number]->count == most) {
    if (!cut_in_two(number)) return false;
    if (bounds_[number + 1] <= key) ++number;
  }
  leaf& into = *leaves_[number];
  const std::size_t at = place_in(into, key);
  std::memmove(&into.keys[at] + 1, &into.keys[at], (into.count - at) * sizeof key);
  into.keys[at] = key;
  ++into.count;
  return true;
}

void ordered_keys::remove(std::uint64_t key) noexcept {
  const std::size_t number = leaf_of(key);
  leaf& from = *leaves_[number];
  const std::size_t at = place_in(from, key);
  --from.count;
  std::memmove(&from.keys[at], &from.keys[at] + 1, (from.count - at) * sizeof key);
  if (from.count != 0 || leaves_.size() == 1) return;
  leaves_.erase(leaves_.begin() + static_cast<std::ptrdiff_t>(number));
  bounds_.erase(bounds_.begin() + static_cast<std::ptrdiff_t>(number));
  bounds_.front() = 0;
}

bool ordered_keys::lower(std::uint64_t from, std::uint64_t to) noexcept {
  const std::size_t number = leaf_of(from);
  if (bounds_[number] > to) {
    remove(from);
    return insert(to);
  }
  leaf& of = *leaves_[number];
  const std::size_t there = place_in(of, from);
  const std::size_t here = place_in(of, to);
  std::memmove(&of.keys[here] + 1, &of.keys[here], (there - here) * sizeof to);
  of.keys[here] = to;
  return true;
}

std::uint64_t ordered_keys::at_least(std::uint64_t key) const noexcept {
  if (leaves_.empty()) return none;
  const std::size_t number = leaf_of(key);
  const leaf& in = *leaves_[number];
  const std::size_t at = place_in(in, key);
  if (at < in.count) return in.keys[at];
  return number + 1 < leaves_.size() ? leaves_[number + 1]->keys[0] : none;
}

std::uint64_t ordered_keys::last() const noexcept {
  if (leaves_.empty() || leaves_.back()->count == 0) return none;
  return leaves_.back()->keys[leaves_.back()->count - 1];
}

std::size_t ordered_keys::footprint() const noexcept {
  return leaves_.size() * sizeof(leaf) +
         leaves_.capacity() * (sizeof(leaves_[0]) + sizeof(bounds_[0]));
}

}}}  // namespace weir::v0::placement
