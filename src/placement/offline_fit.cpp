// SPDX-License-Identifier: Apache-2.0
// Best fit of blocks whose lifetimes are known.
#include "placement/offline_fit.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Finds the smallest gap of at least `size` bytes between ranges that are seen in the order of
/// their offsets.
class gap_search {
 public:
  explicit gap_search(std::uint64_t size) noexcept : size_{size} {}

  void see(std::uint64_t from, std::uint64_t to) noexcept {
    if (from >= end_ + size_ && from - end_ < smallest_) {
      smallest_ = from - end_;
      offset_ = end_;
    }
    end_ = std::max(end_, to);
  }
  /// The begin of that gap; the end of all ranges where there is none.
  [[nodiscard]] std::uint64_t offset() const noexcept { return smallest_ == none ? end_ : offset_; }

 private:
  static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t size_;
  std::uint64_t smallest_ = none;
  std::uint64_t offset_ = 0;
  std::uint64_t end_ = 0;  // of the ranges seen so far
};

}  // namespace

offline_fit::offline_fit(const std::vector<timed_block>& blocks, std::uint32_t period)
    : blocks_{blocks}, period_{period} {
  if (repeats()) {
    by_offset_.reserve(blocks.size());
    return;
  }
  while (leaves_ < blocks.size()) leaves_ *= 2;
  latest_end_.assign(2 * leaves_, 0);
}

std::uint64_t offline_fit::most_alive() const {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> ends;
  ends.reserve(blocks_.size());
  std::uint64_t alive = 0;
  for (const timed_block& each : blocks_) {
    // What begins late in a period is alive at the begin of the next one, which is alike.
    const bool lives_on = repeats() && each.end > period_;
    if (lives_on) alive += each.size;
    ends.emplace_back(lives_on ? each.end - period_ : each.end, each.size);
  }
  std::sort(ends.begin(), ends.end());
  std::uint64_t most = 0;
  auto ended = ends.begin();
  for (const timed_block& each : blocks_) {
    for (; ended != ends.end() && ended->first <= each.begin; ++ended) alive -= ended->second;
    alive += each.size;
    most = std::max(most, alive);
  }
  return most;
}

std::uint64_t offline_fit::place(const std::vector<std::uint32_t>& order,
                                 std::vector<std::uint64_t>& offsets, std::uint64_t limit,
                                 clock::time_point deadline) {
  clear();
  std::uint64_t height = 0;
  for (const std::uint32_t number : order) {
    if (deadline != no_deadline && clock::now() >= deadline) return out_of_time;
    const std::uint64_t offset = best_offset(blocks_[number], offsets);
    offsets[number] = offset;
    height = std::max(height, offset + blocks_[number].size);
    if (height >= limit) return height;
    add(number, offset);
  }
  return height;
}

/// Of two blocks in repeated steps: the one that begins later in a period begins earlier in the
/// next.
bool offline_fit::alive_together(const timed_block& one, const timed_block& other) const noexcept {
  const std::uint32_t after =
      other.begin > one.begin ? other.begin - one.begin : other.begin + period_ - one.begin;
  return after < one.end - one.begin || period_ - after < other.end - other.begin;
}

void offline_fit::clear() {
  by_offset_.clear();
  std::fill(latest_end_.begin(), latest_end_.end(), 0U);
}

void offline_fit::add(std::uint32_t number, std::uint64_t offset) {
  if (repeats()) {
    const auto above =
        std::upper_bound(by_offset_.begin(), by_offset_.end(), offset,
                         [](std::uint64_t at, const placed_block& b) { return at < b.offset; });
    by_offset_.insert(above, {offset, number});
    return;
  }
  for (std::size_t node = leaves_ + number; node != 0; node /= 2)
    latest_end_[node] = std::max(latest_end_[node], blocks_[number].end);
}

std::uint64_t offline_fit::best_offset(const timed_block& block,
                                       const std::vector<std::uint64_t>& offsets) {
  gap_search search{block.size};
  if (repeats()) {
    for (const placed_block& each : by_offset_) {
      const timed_block& other = blocks_[each.number];
      if (alive_together(block, other)) search.see(each.offset, each.offset + other.size);
    }
    return search.offset();
  }
  taken_.clear();
  const auto later =
      std::partition_point(blocks_.begin(), blocks_.end(),
                           [&](const timed_block& each) { return each.begin < block.end; });
  collect(1, 0, leaves_, static_cast<std::size_t>(later - blocks_.begin()), block.begin, offsets);
  std::sort(taken_.begin(), taken_.end());
  for (const auto& [from, to] : taken_) search.see(from, to);
  return search.offset();
}

/// Below a node of the tree, over the blocks first … last - 1: the ranges of placed blocks that
/// begin before the block `limit` does and end after the step `begin`.
void offline_fit::collect(std::size_t node, std::size_t first, std::size_t last, std::size_t limit,
                          std::uint32_t begin, const std::vector<std::uint64_t>& offsets) {
  if (first >= limit || latest_end_[node] <= begin) return;
  if (last - first == 1) {
    taken_.emplace_back(offsets[first], offsets[first] + blocks_[first].size);
    return;
  }
  const std::size_t middle = (first + last) / 2;
  collect(2 * node, first, middle, limit, begin, offsets);
  collect(2 * node + 1, middle, last, limit, begin, offsets);
}

}}}  // namespace weir::v0::placement
