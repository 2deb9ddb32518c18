// Best fit by order, and the search for a better order.
#include "replay/plan.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <random>
#include <set>

namespace weir { inline namespace v0 { namespace replay {

namespace {

constexpr std::uint64_t granule = 512;

std::uint64_t rounded(std::uint64_t size) {
  if (size > std::numeric_limits<std::uint64_t>::max() - granule) return size;
  return (size + granule - 1) / granule * granule;
}

/// The blocks placed so far, found by their lifetimes: a tree over the blocks in the order in which
/// they begin, whose nodes know the latest end below them.
class placed_blocks {
 public:
  explicit placed_blocks(const std::vector<lifetime>& blocks) : blocks_{blocks} {
    while (leaves_ < blocks.size()) leaves_ *= 2;
    latest_.assign(2 * leaves_, 0);
  }

  void clear() { std::fill(latest_.begin(), latest_.end(), 0U); }

  void add(std::size_t block) {
    for (std::size_t node = leaves_ + block; node != 0; node /= 2)
      latest_[node] = std::max(latest_[node], blocks_[block].end);
  }

  /// Calls `visit` with each that is alive together with `other`.
  template <class Visit>
  void each_meeting(const lifetime& other, const Visit& visit) const {
    const auto after = std::partition_point(blocks_.begin(), blocks_.end(),
                                            [&](const lifetime& b) { return b.begin < other.end; });
    descend(1, 0, leaves_, static_cast<std::size_t>(after - blocks_.begin()), other.begin, visit);
  }

 private:
  template <class Visit>
  void descend(std::size_t node, std::size_t first, std::size_t last, std::size_t limit,
               std::uint32_t begin, const Visit& visit) const {
    if (first >= limit || latest_[node] <= begin) return;
    if (last - first == 1) {
      visit(first);
      return;
    }
    const std::size_t middle = (first + last) / 2;
    descend(2 * node, first, middle, limit, begin, visit);
    descend(2 * node + 1, middle, last, limit, begin, visit);
  }

  const std::vector<lifetime>& blocks_;
  std::size_t leaves_ = 1;
  std::vector<std::uint32_t> latest_;
};

/// Places blocks in a given order, each by best fit.
class best_fit {
 public:
  explicit best_fit(const std::vector<lifetime>& blocks) : blocks_{blocks}, placed_{blocks} {}

  using clock = std::chrono::steady_clock;

  /// The height of the result; stops, with the height so far, once it reaches `limit`, and with the
  /// largest number there is at the deadline.
  std::uint64_t place(const std::vector<std::uint32_t>& order, std::vector<std::uint64_t>& offsets,
                      std::uint64_t limit, clock::time_point deadline) {
    placed_.clear();
    std::uint64_t height = 0;
    for (const std::uint32_t block : order) {
      if (clock::now() >= deadline) return std::numeric_limits<std::uint64_t>::max();
      offsets[block] = best_gap(blocks_[block], offsets);
      height = std::max(height, offsets[block] + blocks_[block].size);
      if (height >= limit) return height;
      placed_.add(block);
    }
    return height;
  }

  /// The blocks that end at `height`.
  [[nodiscard]] std::vector<std::uint32_t> on_top(const std::vector<std::uint64_t>& offsets,
                                                  std::uint64_t height) const {
    std::vector<std::uint32_t> top;
    for (std::uint32_t i = 0; i < blocks_.size(); ++i)
      if (offsets[i] + blocks_[i].size == height) top.push_back(i);
    return top;
  }

 private:
  std::uint64_t best_gap(const lifetime& block, const std::vector<std::uint64_t>& offsets) {
    taken_.clear();
    placed_.each_meeting(block, [&](std::size_t other) {
      taken_.emplace_back(offsets[other], offsets[other] + blocks_[other].size);
    });
    std::sort(taken_.begin(), taken_.end());
    std::uint64_t smallest = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t offset = 0;
    std::uint64_t end = 0;
    for (const auto& [from, to] : taken_) {
      if (from >= end + block.size && from - end < smallest) {
        smallest = from - end;
        offset = end;
      }
      end = std::max(end, to);
    }
    return smallest == std::numeric_limits<std::uint64_t>::max() ? end : offset;
  }

  const std::vector<lifetime>& blocks_;
  placed_blocks placed_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_;
};

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

std::uint64_t most_alive(const std::vector<lifetime>& blocks) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> ends;
  for (const lifetime& each : blocks) ends.emplace_back(each.end, each.size);
  std::sort(ends.begin(), ends.end());
  std::uint64_t alive = 0;
  std::uint64_t most = 0;
  auto ended = ends.begin();
  for (const lifetime& each : blocks) {
    for (; ended != ends.end() && ended->first <= each.begin; ++ended) alive -= ended->second;
    alive += each.size;
    most = std::max(most, alive);
  }
  return most;
}

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
      : blocks_{blocks}, settings_{settings}, best_fit_{blocks}, rng_{settings.seed} {}

  plan run() {
    const auto start = clock::now();
    deadline_ = start + std::max(settings_.improve, settings_.first);
    best_.bound = most_alive(blocks_);
    best_.offsets.resize(blocks_.size());
    order_ = order_by_size(blocks_);
    best_.height = best_fit_.place(order_, best_.offsets, never, deadline_);
    if (best_.height == never) {
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
  using clock = best_fit::clock;
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  void try_order(std::vector<std::uint32_t> order) {
    ++best_.tries;
    std::vector<std::uint64_t> offsets(blocks_.size());
    // As high as the best is good enough: it leads out of dead ends.
    const std::uint64_t height = best_fit_.place(order, offsets, best_.height + 1, deadline_);
    if (height > best_.height) return;
    best_.height = height;
    best_.offsets = std::move(offsets);
    order_ = std::move(order);
  }

  /// The order with one of the blocks that stick out placed earlier.
  std::vector<std::uint32_t> with_one_earlier() {
    const auto top = best_fit_.on_top(best_.offsets, best_.height);
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
  best_fit best_fit_;
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
