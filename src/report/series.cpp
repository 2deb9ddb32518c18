// Memory over time at every resolution.
#include "report/series.hpp"

#include <algorithm>

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

void take_stacks(const report::history& history, const grouping& groups, const series& level,
                 std::vector<std::uint64_t>& out) {
  std::vector<std::uint64_t> current(groups.labels.size());
  out.reserve(level.bins() * current.size());
  std::vector<bool> suspended(history.suspensions.empty() ? 0 : history.blocks.size());
  const auto group_of = [&](std::uint32_t block) -> std::uint64_t& {
    const bool is_away = !suspended.empty() && suspended[block];
    return is_away ? current.back() : current[groups.of_block[block]];
  };
  const auto set_suspended = [&](const suspension& changed, std::uint32_t event, bool away) {
    for (const std::uint32_t block : changed.blocks) {
      if (!history.blocks[block].at(event)) continue;
      group_of(block) -= history.blocks[block].size;
      suspended[block] = away;
      group_of(block) += history.blocks[block].size;
    }
  };
  std::vector<const suspension*> ends = by_end(history.suspensions);
  std::size_t next_end = 0;
  std::size_t next_start = 0;
  std::size_t bin = 0;
  walk(
      history, [&](std::uint32_t block) { group_of(block) += history.blocks[block].size; },
      [&](std::uint32_t block) { group_of(block) -= history.blocks[block].size; },
      [&](std::uint32_t event) {
        for (; next_end < ends.size() && ends[next_end]->end == event; ++next_end)
          set_suspended(*ends[next_end], event, false);
        for (; next_start < history.suspensions.size() &&
               history.suspensions[next_start].start == event;
             ++next_start)
          set_suspended(history.suspensions[next_start], event, true);
        if (bin == level.bins() || event != level.moment[bin]) return;
        out.insert(out.end(), current.begin(), current.end());
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
