// SPDX-License-Identifier: Apache-2.0
// Memory over time at every resolution.
#include "report/series.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace weir { inline namespace v0 { namespace report {

namespace {

/// Fills in everything but the stacks.
void measure(const recording& recording, const report::history& history, series& out) {
  const std::uint32_t width = std::uint32_t{1} << out.shift;
  for (std::uint32_t first = 0; first < history.events(); first += width) {
    const std::uint32_t last = first + std::min(width, history.events() - first);
    const auto begin = history.live.begin() + first;
    const auto end = history.live.begin() + last;
    out.time.push_back(recording.events[first].time);
    out.moment.push_back(first + static_cast<std::uint32_t>(std::max_element(begin, end) - begin));
    out.low.push_back(*std::min_element(begin, end));
    if (!history.reserved.empty()) {
      out.reserved.push_back(
          *std::max_element(history.reserved.begin() + first, history.reserved.begin() + last));
    }
    if (history.events() - first <= width) break;  // the next first could pass 32 bits
  }
}

std::vector<const suspension*> by_end(const std::vector<suspension>& all) {
  std::vector<const suspension*> ends;
  for (const suspension& each : all) ends.push_back(&each);
  std::stable_sort(ends.begin(), ends.end(),
                   [](const suspension* a, const suspension* b) { return a->end < b->end; });
  return ends;
}

/// The live bytes of each group. The last group is that of blocks whose pool is suspended; without
/// suspensions it is one like the others. A suspension costs as much as there are groups.
class group_sums {
 public:
  group_sums(const report::history& history, const grouping& groups)
      : history_{history}, groups_{groups}, live_(groups.labels.size()) {}

  [[nodiscard]] const std::vector<std::uint64_t>& live() const noexcept { return live_; }

  void begin(std::uint32_t block) {
    live_[groups_.of_block[block]] += history_.blocks[block].size;
    if (history_.suspensions.empty()) return;
    pool_of(block).present[groups_.of_block[block]] += history_.blocks[block].size;
  }

  void end(std::uint32_t block) {
    const block_lifetime& ended = history_.blocks[block];
    const std::size_t group = groups_.of_block[block];
    if (history_.suspensions.empty()) {
      live_[group] -= ended.size;
      return;
    }
    pool_sums& pool = pool_of(block);
    const bool is_away = pool.suspended != nullptr && ended.start <= pool.suspended->start;
    (is_away ? pool.away : pool.present)[group] -= ended.size;
    (is_away ? live_.back() : live_[group]) -= ended.size;
  }

  void suspend(const suspension& begun) {
    pool_sums& pool = sums_of(begun.pool);
    pool.suspended = &begun;
    for (std::size_t group = 0; group < live_.size(); ++group) {
      const std::uint64_t size = std::exchange(pool.present[group], 0);
      pool.away[group] += size;
      live_[group] -= size;
      live_.back() += size;
    }
  }

  void resume(std::uint16_t number) {
    pool_sums& pool = sums_of(number);
    pool.suspended = nullptr;
    for (std::size_t group = 0; group < live_.size(); ++group) {
      const std::uint64_t size = std::exchange(pool.away[group], 0);
      pool.present[group] += size;
      live_.back() -= size;
      live_[group] += size;
    }
  }

 private:
  struct pool_sums {
    std::vector<std::uint64_t> present;  // by group: with memory
    std::vector<std::uint64_t> away;
    const suspension* suspended = nullptr;
  };

  [[nodiscard]] pool_sums& sums_of(std::uint16_t pool) {
    const auto [entry, is_new] = pools_.try_emplace(pool);
    if (is_new) entry->second.present.resize(live_.size());
    if (is_new) entry->second.away.resize(live_.size());
    return entry->second;
  }
  [[nodiscard]] pool_sums& pool_of(std::uint32_t block) {
    return sums_of(history_.blocks[block].pool);
  }

  const report::history& history_;
  const grouping& groups_;
  std::vector<std::uint64_t> live_;
  std::unordered_map<std::uint16_t, pool_sums> pools_;
};

void take_stacks(const report::history& history, const grouping& groups, const series& level,
                 std::vector<std::uint64_t>& out) {
  group_sums sums{history, groups};
  out.reserve(level.bins() * sums.live().size());
  std::vector<const suspension*> ends = by_end(history.suspensions);
  std::size_t next_end = 0;
  std::size_t next_start = 0;
  std::size_t bin = 0;
  walk(
      history, [&](std::uint32_t block) { sums.begin(block); },
      [&](std::uint32_t block) { sums.end(block); },
      [&](std::uint32_t event) {
        for (; next_end < ends.size() && ends[next_end]->end == event; ++next_end)
          sums.resume(ends[next_end]->pool);
        for (; next_start < history.suspensions.size() &&
               history.suspensions[next_start].start == event;
             ++next_start)
          sums.suspend(history.suspensions[next_start]);
        if (bin == level.bins() || event != level.moment[bin]) return;
        out.insert(out.end(), sums.live().begin(), sums.live().end());
        ++bin;
      });
}

/// The next level up.
series coarser(const series& fine, const std::vector<grouping>& groupings,
               const report::history& history) {
  series out;
  out.shift = fine.shift + level_shift;
  out.stacks.resize(groupings.size());
  constexpr std::size_t parts = std::size_t{1} << level_shift;
  for (std::size_t first = 0; first < fine.bins(); first += parts) {
    const std::size_t last = std::min(first + parts, fine.bins());
    std::size_t highest = first;
    for (std::size_t i = first; i < last; ++i) {
      if (history.live[fine.moment[i]] > history.live[fine.moment[highest]]) highest = i;
    }
    const auto element = [&](const std::vector<std::uint64_t>& column, std::size_t i) {
      return column.begin() + static_cast<std::ptrdiff_t>(i);
    };
    out.time.push_back(fine.time[first]);
    out.moment.push_back(fine.moment[highest]);
    out.low.push_back(*std::min_element(element(fine.low, first), element(fine.low, last)));
    if (!fine.reserved.empty()) {
      out.reserved.push_back(
          *std::max_element(element(fine.reserved, first), element(fine.reserved, last)));
    }
    for (std::size_t g = 0; g < groupings.size(); ++g) {
      const std::size_t groups = groupings[g].labels.size();
      out.stacks[g].insert(out.stacks[g].end(), element(fine.stacks[g], highest * groups),
                           element(fine.stacks[g], (highest + 1) * groups));
    }
  }
  return out;
}

void pack_frame(const series& level, std::size_t first, std::size_t last, packer& out) {
  std::uint64_t previous = 0;
  const auto column = [&](const std::vector<std::uint64_t>& values) {
    previous = 0;
    for (std::size_t i = first; i < last; ++i) {
      out.difference(values[i], previous);
      previous = values[i];
    }
  };
  column(level.time);
  for (std::size_t i = first; i < last; ++i) {
    out.number(level.moment[i] - (std::uint64_t{i} << level.shift));
  }
  column(level.low);
  if (!level.reserved.empty()) column(level.reserved);
}

void pack_stacks(const std::vector<std::uint64_t>& stacks, std::size_t groups, std::size_t first,
                 std::size_t last, packer& out) {
  for (std::size_t group = 0; group < groups; ++group) {
    std::uint64_t previous = 0;
    for (std::size_t i = first; i < last; ++i) {
      const std::uint64_t value = stacks[i * groups + group];
      out.difference(value, previous);
      previous = value;
    }
  }
}

}  // namespace

series make_series(const recording& recording, const report::history& history,
                   const std::vector<grouping>& groupings, std::size_t most_bins) {
  series out;
  while ((std::uint64_t{history.events()} >> out.shift) >= most_bins) ++out.shift;
  measure(recording, history, out);
  out.stacks.resize(groupings.size());
  for (std::size_t g = 0; g < groupings.size(); ++g) {
    take_stacks(history, groupings[g], out, out.stacks[g]);
  }
  return out;
}

unsigned store_series(const series& finest, const report::history& history,
                      const std::vector<grouping>& groupings, chunk_store& store) {
  std::vector<series> above;
  const auto top = [&]() -> const series& { return above.empty() ? finest : above.back(); };
  while (top().bins() > first_bins) above.push_back(coarser(top(), groupings, history));
  const auto levels = static_cast<unsigned>(above.size() + 1);
  for (unsigned level = levels; level-- > 0;) {
    const series& stored = level == 0 ? finest : above[level - 1];
    for (std::size_t first = 0; first < stored.bins(); first += tile_bins) {
      const std::size_t last = std::min(first + tile_bins, stored.bins());
      packer frame;
      pack_frame(stored, first, last, frame);
      store.add(frame, level + 1 == levels);
      for (std::size_t g = 0; g < groupings.size(); ++g) {
        packer stacks;
        pack_stacks(stored.stacks[g], groupings[g].labels.size(), first, last, stacks);
        store.add(stacks, level + 1 == levels);
      }
    }
  }
  return levels;
}

}}}  // namespace weir::v0::report
