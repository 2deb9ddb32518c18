// Memory over time at every resolution.
#include "report/series.hpp"

#include <algorithm>

namespace weir::inline v0::report {

namespace {

/// Fills in everything but the stacks.
void measure(const recording& from, const story& what, series& out) {
  const std::uint32_t width = std::uint32_t{1} << out.shift;
  for (std::uint32_t first = 0; first < what.events(); first += width) {
    const std::uint32_t last = first + std::min(width, what.events() - first);
    const auto begin = what.live.begin() + first;
    const auto end = what.live.begin() + last;
    out.time.push_back(from.events[first].time);
    out.moment.push_back(first + static_cast<std::uint32_t>(std::max_element(begin, end) - begin));
    out.low.push_back(*std::min_element(begin, end));
    if (!what.reserved.empty()) {
      out.reserved.push_back(
          *std::max_element(what.reserved.begin() + first, what.reserved.begin() + last));
    }
    if (what.events() - first <= width) break;  // the next first could pass 32 bits
  }
}

void take_stacks(const story& what, const grouping& by, const series& of,
                 std::vector<std::uint64_t>& out) {
  std::vector<std::uint64_t> now(by.labels.size());
  out.reserve(of.bins() * now.size());
  std::size_t bin = 0;
  walk(
      what, [&](std::uint32_t block) { now[by.of_block[block]] += what.blocks[block].size; },
      [&](std::uint32_t block) { now[by.of_block[block]] -= what.blocks[block].size; },
      [&](std::uint32_t event) {
        if (bin == of.bins() || event != of.moment[bin]) return;
        out.insert(out.end(), now.begin(), now.end());
        ++bin;
      });
}

/// The next level up.
series coarser(const series& fine, const std::vector<grouping>& groupings, const story& what) {
  series out;
  out.shift = fine.shift + level_shift;
  out.stacks.resize(groupings.size());
  constexpr std::size_t parts = std::size_t{1} << level_shift;
  for (std::size_t first = 0; first < fine.bins(); first += parts) {
    const std::size_t last = std::min(first + parts, fine.bins());
    std::size_t highest = first;
    for (std::size_t i = first; i < last; ++i) {
      if (what.live[fine.moment[i]] > what.live[fine.moment[highest]]) highest = i;
    }
    const auto within = [&](const std::vector<std::uint64_t>& of, std::size_t i) {
      return of.begin() + static_cast<std::ptrdiff_t>(i);
    };
    out.time.push_back(fine.time[first]);
    out.moment.push_back(fine.moment[highest]);
    out.low.push_back(*std::min_element(within(fine.low, first), within(fine.low, last)));
    if (!fine.reserved.empty()) {
      out.reserved.push_back(
          *std::max_element(within(fine.reserved, first), within(fine.reserved, last)));
    }
    for (std::size_t g = 0; g < groupings.size(); ++g) {
      const std::size_t groups = groupings[g].labels.size();
      out.stacks[g].insert(out.stacks[g].end(), within(fine.stacks[g], highest * groups),
                           within(fine.stacks[g], (highest + 1) * groups));
    }
  }
  return out;
}

void pack_frame(const series& of, std::size_t first, std::size_t last, packer& out) {
  std::uint64_t before = 0;
  const auto column = [&](const std::vector<std::uint64_t>& values) {
    before = 0;
    for (std::size_t i = first; i < last; ++i) {
      out.difference(values[i], before);
      before = values[i];
    }
  };
  column(of.time);
  for (std::size_t i = first; i < last; ++i) {
    out.number(of.moment[i] - (std::uint64_t{i} << of.shift));
  }
  column(of.low);
  if (!of.reserved.empty()) column(of.reserved);
}

void pack_stacks(const std::vector<std::uint64_t>& stacks, std::size_t groups, std::size_t first,
                 std::size_t last, packer& out) {
  for (std::size_t group = 0; group < groups; ++group) {
    std::uint64_t before = 0;
    for (std::size_t i = first; i < last; ++i) {
      const std::uint64_t value = stacks[i * groups + group];
      out.difference(value, before);
      before = value;
    }
  }
}

}  // namespace

series make_series(const recording& from, const story& what, const std::vector<grouping>& groupings,
                   std::size_t most_bins) {
  series out;
  while ((std::uint64_t{what.events()} >> out.shift) >= most_bins) ++out.shift;
  measure(from, what, out);
  out.stacks.resize(groupings.size());
  for (std::size_t g = 0; g < groupings.size(); ++g) {
    take_stacks(what, groupings[g], out, out.stacks[g]);
  }
  return out;
}

unsigned store_series(const series& finest, const story& what,
                      const std::vector<grouping>& groupings, chunk_store& store) {
  std::vector<series> above;
  const auto top = [&]() -> const series& { return above.empty() ? finest : above.back(); };
  while (top().bins() > first_bins) above.push_back(coarser(top(), groupings, what));
  const auto levels = static_cast<unsigned>(above.size() + 1);
  for (unsigned level = levels; level-- > 0;) {
    const series& of = level == 0 ? finest : above[level - 1];
    for (std::size_t first = 0; first < of.bins(); first += tile_bins) {
      const std::size_t last = std::min(first + tile_bins, of.bins());
      packer frame;
      pack_frame(of, first, last, frame);
      store.add(frame, level + 1 == levels);
      for (std::size_t g = 0; g < groupings.size(); ++g) {
        packer stacks;
        pack_stacks(of.stacks[g], groupings[g].labels.size(), first, last, stacks);
        store.add(stacks, level + 1 == levels);
      }
    }
  }
  return levels;
}

}  // namespace weir::inline v0::report
