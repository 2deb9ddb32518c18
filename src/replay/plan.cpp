// Best fit by order, and the search for a better order.
#include "replay/plan.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace weir::inline v0::replay {

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
    for (std::size_t at = leaves_ + block; at != 0; at /= 2)
      latest_[at] = std::max(latest_[at], blocks_[block].end);
  }

  /// Calls `visit` with each that is alive together with `with`.
  template <class Visit>
  void each_meeting(const lifetime& with, const Visit& visit) const {
    const auto after = std::partition_point(blocks_.begin(), blocks_.end(),
                                            [&](const lifetime& b) { return b.begin < with.end; });
    descend(1, 0, leaves_, static_cast<std::size_t>(after - blocks_.begin()), with.begin, visit);
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

/// Places blocks in a given order.
class packer {
 public:
  explicit packer(const std::vector<lifetime>& blocks) : blocks_{blocks}, placed_{blocks} {}

  /// The height of the result; gives up, with the height so far, once it reaches `hopeless`.
  std::uint64_t pack(const std::vector<std::uint32_t>& order, std::vector<std::uint64_t>& offsets,
                     std::uint64_t hopeless) {
    placed_.clear();
    std::uint64_t height = 0;
    for (const std::uint32_t block : order) {
      offsets[block] = best_gap(blocks_[block], offsets);
      height = std::max(height, offsets[block] + blocks_[block].size);
      if (height >= hopeless) return height;
      placed_.add(block);
    }
    return height;
  }

  /// The blocks that end at `height`.
  [[nodiscard]] std::vector<std::uint32_t> on_top(const std::vector<std::uint64_t>& offsets,
                                                  std::uint64_t height) const {
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < blocks_.size(); ++i)
      if (offsets[i] + blocks_[i].size == height) found.push_back(i);
    return found;
  }

 private:
  std::uint64_t best_gap(const lifetime& wanted, const std::vector<std::uint64_t>& offsets) {
    taken_.clear();
    placed_.each_meeting(wanted, [&](std::size_t other) {
      taken_.emplace_back(offsets[other], offsets[other] + blocks_[other].size);
    });
    std::sort(taken_.begin(), taken_.end());
    std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t where = 0;
    std::uint64_t end = 0;
    for (const auto& [from, to] : taken_) {
      if (from >= end + wanted.size && from - end < best) {
        best = from - end;
        where = end;
      }
      end = std::max(end, to);
    }
    return best == std::numeric_limits<std::uint64_t>::max() ? end : where;
  }

  const std::vector<lifetime>& blocks_;
  placed_blocks placed_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_;
};

std::uint64_t most_alive(const std::vector<lifetime>& blocks) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> ends;
  for (const lifetime& each : blocks) ends.emplace_back(each.end, each.size);
  std::sort(ends.begin(), ends.end());
  std::uint64_t alive = 0;
  std::uint64_t most = 0;
  auto gone = ends.begin();
  for (const lifetime& each : blocks) {
    for (; gone != ends.end() && gone->first <= each.begin; ++gone) alive -= gone->second;
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
  search(const std::vector<lifetime>& blocks, const plan_settings& how)
      : blocks_{blocks}, how_{how}, packer_{blocks}, random_{how.seed} {}

  plan run() {
    const auto start = std::chrono::steady_clock::now();
    best_.bound = most_alive(blocks_);
    best_.offsets.resize(blocks_.size());
    order_ = order_by_size(blocks_);
    best_.height = packer_.pack(order_, best_.offsets, never);
    best_.first_height = best_.height;
    const auto over = [&] {
      return best_.height == best_.bound || best_.tries >= how_.tries ||
             std::chrono::steady_clock::now() - start >= how_.improve;
    };
    if (!over()) try_order(order_by_area(blocks_));
    while (!over()) {
      try_order(with_one_earlier());
      if (how_.progress) how_.progress(best_.height);
    }
    best_.took = std::chrono::steady_clock::now() - start;
    return std::move(best_);
  }

 private:
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  void try_order(std::vector<std::uint32_t> order) {
    ++best_.tries;
    std::vector<std::uint64_t> offsets(blocks_.size());
    // As high as the best is good enough: it leads out of dead ends.
    const std::uint64_t height = packer_.pack(order, offsets, best_.height + 1);
    if (height > best_.height) return;
    best_.height = height;
    best_.offsets = std::move(offsets);
    order_ = std::move(order);
  }

  /// The order with one of the blocks that stick out placed earlier.
  std::vector<std::uint32_t> with_one_earlier() {
    const auto top = packer_.on_top(best_.offsets, best_.height);
    const std::uint32_t block = top[random_() % top.size()];
    auto order = order_;
    const auto now = std::find(order.begin(), order.end(), block);
    const auto steps = static_cast<std::size_t>(now - order.begin());
    if (steps == 0) {
      std::swap(order.front(), order[random_() % order.size()]);
      return order;
    }
    const auto to = order.begin() + static_cast<std::ptrdiff_t>(random_() % steps);
    std::rotate(to, now, now + 1);
    return order;
  }

  const std::vector<lifetime>& blocks_;
  const plan_settings& how_;
  packer packer_;
  std::mt19937_64 random_;
  std::vector<std::uint32_t> order_;
  plan best_;
};

}  // namespace

std::vector<lifetime> lifetimes_between(const script& what, std::uint64_t from, std::uint64_t to) {
  const auto first = std::partition_point(what.steps.begin(), what.steps.end(),
                                          [&](const step& each) { return each.time < from; });
  const auto last = std::partition_point(first, what.steps.end(),
                                         [&](const step& each) { return each.time <= to; });
  constexpr std::uint32_t unborn = std::numeric_limits<std::uint32_t>::max();
  const auto length = static_cast<std::uint32_t>(last - first);
  std::vector<lifetime> all(what.blocks, lifetime{0, unborn, length + 1});
  // Step 0 is the moment before the first: what is alive then was there already.
  for (auto at = what.steps.begin(); at != last; ++at) {
    const auto now = at < first ? 0U : static_cast<std::uint32_t>(at - first) + 1;
    lifetime& block = all[at->block];
    if (at->what == action::allocate) block = {rounded(at->size), now, length + 1};
    if (at->what == action::free) block.end = now;
  }
  std::erase_if(all, [](const lifetime& each) {
    return each.begin == unborn || each.size == 0 || each.begin >= each.end;
  });
  return all;
}

double plan::ratio() const noexcept {
  return bound == 0 ? 0 : static_cast<double>(height) / static_cast<double>(bound);
}

plan make_plan(const std::vector<lifetime>& blocks, const plan_settings& how) {
  if (blocks.empty()) return {};
  return search{blocks, how}.run();
}

}  // namespace weir::inline v0::replay
