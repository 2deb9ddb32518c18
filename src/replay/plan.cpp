// SPDX-License-Identifier: Apache-2.0
// The search for an order of blocks whose best fit is low.
#include "replay/plan.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <random>
#include <set>

#include "placement/offline_fit.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

using placement::offline_fit;
using placement::timed_block;

constexpr std::uint64_t granule = 512;

std::uint64_t rounded(std::uint64_t size) {
  if (size > std::numeric_limits<std::uint64_t>::max() - granule) return size;
  return (size + granule - 1) / granule * granule;
}

/// Places blocks when they begin, each into the smallest gap that fits: as fast as a program ran.
class placing_in_time {
 public:
  /// The height of the result.
  std::uint64_t place(const std::vector<lifetime>& blocks, std::vector<std::uint64_t>& offsets) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      for (; !ends_.empty() && ends_.top().first <= blocks[i].begin; ends_.pop())
        free(offsets[ends_.top().second], blocks[ends_.top().second].size);
      offsets[i] = take(blocks[i].size);
      ends_.emplace(blocks[i].end, i);
    }
    return height_;
  }

 private:
  using end = std::pair<std::uint32_t, std::size_t>;

  std::uint64_t take(std::uint64_t size) {
    const auto gap = by_size_.lower_bound({size, 0});
    if (gap == by_size_.end()) {
      height_ += size;
      return height_ - size;
    }
    const auto [length, offset] = *gap;
    by_size_.erase(gap);
    by_offset_.erase(offset);
    if (length > size) add(offset + size, length - size);
    return offset;
  }

  void free(std::uint64_t offset, std::uint64_t size) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + size) {
      size += next->second;
      by_size_.erase({next->second, next->first});
      next = by_offset_.erase(next);
    }
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        by_size_.erase({before->second, before->first});
        by_offset_.erase(before);
      }
    }
    add(offset, size);
  }

  void add(std::uint64_t offset, std::uint64_t size) {
    by_size_.emplace(size, offset);
    by_offset_.emplace(offset, size);
  }

  std::uint64_t height_ = 0;
  std::priority_queue<end, std::vector<end>, std::greater<>> ends_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // gaps: size, offset
  std::map<std::uint64_t, std::uint64_t> by_offset_;           // gaps: offset, size
};

/// Largest first; of equals the one that lives longest.
std::vector<std::uint32_t> order_by_size(const std::vector<lifetime>& blocks) {
  std::vector<std::uint32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const lifetime& x = blocks[a];
    const lifetime& y = blocks[b];
    return x.size != y.size ? x.size > y.size : x.end - x.begin > y.end - y.begin;
  });
  return order;
}

/// Largest area of size and time first, compared as floating point: the product may overflow.
std::vector<std::uint32_t> order_by_area(const std::vector<lifetime>& blocks) {
  auto order = order_by_size(blocks);
  const auto area = [&](std::uint32_t i) {
    return static_cast<double>(blocks[i].size) * (blocks[i].end - blocks[i].begin);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return area(a) > area(b); });
  return order;
}

class search {
 public:
  search(const std::vector<lifetime>& blocks, const plan_settings& settings)
      : blocks_{blocks}, settings_{settings}, timed_{timed(blocks)}, rng_{settings.seed} {}

  plan run() {
    const auto start = clock::now();
    deadline_ = start + std::max(settings_.improve, settings_.first);
    best_.bound = fit_.most_alive();
    best_.offsets.resize(blocks_.size());
    order_ = order_by_size(blocks_);
    best_.height = fit_.place(order_, best_.offsets, offline_fit::no_limit, deadline_);
    if (best_.height == offline_fit::out_of_time) {
      best_.height = placing_in_time{}.place(blocks_, best_.offsets);
      best_.search_time = clock::now() - start;
      return std::move(best_);
    }
    best_.first_height = best_.height;
    deadline_ = start + settings_.improve;
    const auto is_over = [&] {
      return best_.height == best_.bound || best_.tries >= settings_.tries ||
             clock::now() >= deadline_;
    };
    if (!is_over()) try_order(order_by_area(blocks_));
    while (!is_over()) {
      try_order(with_one_earlier());
      if (settings_.progress) settings_.progress(best_.height);
    }
    best_.search_time = clock::now() - start;
    return std::move(best_);
  }

 private:
  using clock = offline_fit::clock;

  static std::vector<timed_block> timed(const std::vector<lifetime>& blocks) {
    std::vector<timed_block> all;
    all.reserve(blocks.size());
    for (const lifetime& each : blocks) all.push_back({each.size, each.begin, each.end});
    return all;
  }

  void try_order(std::vector<std::uint32_t> order) {
    ++best_.tries;
    std::vector<std::uint64_t> offsets(blocks_.size());
    // As high as the best is good enough: it leads out of dead ends.
    const std::uint64_t height = fit_.place(order, offsets, best_.height + 1, deadline_);
    if (height > best_.height) return;
    best_.height = height;
    best_.offsets = std::move(offsets);
    order_ = std::move(order);
  }

  /// The blocks that end at the height of the best plan.
  [[nodiscard]] std::vector<std::uint32_t> on_top() const {
    std::vector<std::uint32_t> top;
    for (std::uint32_t i = 0; i < blocks_.size(); ++i)
      if (best_.offsets[i] + blocks_[i].size == best_.height) top.push_back(i);
    return top;
  }

  /// The order with one of the blocks that stick out placed earlier.
  std::vector<std::uint32_t> with_one_earlier() {
    const auto top = on_top();
    const std::uint32_t block = top[rng_() % top.size()];
    auto order = order_;
    const auto current = std::find(order.begin(), order.end(), block);
    const auto steps = static_cast<std::size_t>(current - order.begin());
    if (steps == 0) {
      std::swap(order.front(), order[rng_() % order.size()]);
      return order;
    }
    const auto target = order.begin() + static_cast<std::ptrdiff_t>(rng_() % steps);
    std::rotate(target, current, current + 1);
    return order;
  }

  const std::vector<lifetime>& blocks_;
  const plan_settings& settings_;
  const std::vector<timed_block> timed_;
  offline_fit fit_{timed_};
  std::mt19937_64 rng_;
  clock::time_point deadline_;
  std::vector<std::uint32_t> order_;
  plan best_;
};

}  // namespace

std::vector<lifetime> lifetimes_between(const script& script, std::size_t from, std::size_t to) {
  const auto at = [&](std::size_t index) {
    return script.steps.begin() + static_cast<std::ptrdiff_t>(std::min(index, script.steps.size()));
  };
  const auto first = at(from);
  const auto last = at(std::max(from, to));
  const auto length = static_cast<std::uint32_t>(last - first);
  std::vector<lifetime> lifetimes(script.blocks);  // of no bytes until they are allocated
  // Step 0 is the moment before the first: what is alive then was there already.
  for (auto step_at = script.steps.begin(); step_at != last; ++step_at) {
    const auto index = step_at < first ? 0U : static_cast<std::uint32_t>(step_at - first) + 1;
    if (step_at->action == action::allocate)
      lifetimes[step_at->block] = {rounded(step_at->size), index, length + 1};
    if (step_at->action == action::free) lifetimes[step_at->block].end = index;
  }
  std::erase_if(lifetimes,
                [](const lifetime& each) { return each.size == 0 || each.begin >= each.end; });
  return lifetimes;
}

double plan::ratio() const noexcept {
  return bound == 0 ? 0 : static_cast<double>(height) / static_cast<double>(bound);
}

plan make_plan(const std::vector<lifetime>& blocks, const plan_settings& settings) {
  if (blocks.empty()) return {};
  return search{blocks, settings}.run();
}

}}}  // namespace weir::v0::replay
