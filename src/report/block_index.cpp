// SPDX-License-Identifier: Apache-2.0
// The index of blocks for the arena map.
#include "report/block_index.hpp"

#include <algorithm>
#include <limits>

namespace weir { inline namespace v0 { namespace report {

namespace {

/// Whether one of the ascending `moments` falls into the lifetime of `block`.
template <class Lifetime>
bool is_live_at(const Lifetime& block, const std::vector<std::uint32_t>& moments) {
  const auto next = std::lower_bound(moments.begin(), moments.end(), block.start);
  return next != moments.end() && *next < block.end;
}

/// The exact moments and `more` others, evenly spread, all of them moments of bins.
std::vector<std::uint32_t> spread(const series& finest, std::vector<std::uint32_t> moments,
                                  std::size_t more) {
  for (std::size_t i = 0; i < more; ++i) {
    moments.push_back(finest.moment[i * finest.bins() / more]);
  }
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  return moments;
}

/// Counts the placed blocks of `from` <= size < `below` that are live at the moments; keeps them.
std::size_t keep(const report::history& history, const std::vector<std::uint32_t>& moments,
                 std::uint64_t from, std::uint64_t below, std::vector<bool>* kept) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < history.blocks.size(); ++i) {
    const block_lifetime& block = history.blocks[i];
    if (!block.placed || block.size < from || block.size >= below) continue;
    if (!is_live_at(block, moments)) continue;
    ++count;
    if (kept != nullptr) (*kept)[i] = true;
  }
  return count;
}

constexpr std::uint64_t any_size = std::numeric_limits<std::uint64_t>::max();

/// The product, or the largest number there is.
constexpr std::uint64_t times(std::uint64_t value, std::uint64_t factor) noexcept {
  return value > any_size / factor ? any_size : value * factor;
}

/// Blocks of one bucket, as columns: what is alike stands together and deflates well.
void pack_blocks(const report::history& history, const std::vector<grouping>& groupings,
                 const std::vector<std::uint32_t>& blocks, packer& out) {
  out.number(blocks.size());
  const auto column = [&](auto value) {
    std::uint64_t previous = 0;
    for (const std::uint32_t i : blocks) {
      const std::uint64_t current = value(history.blocks[i]);
      out.difference(current, previous);
      previous = current;
    }
  };
  const auto plain = [&](auto value) {
    for (const std::uint32_t i : blocks) out.number(value(history.blocks[i]));
  };
  column([](const block_lifetime& b) { return b.start; });
  plain([](const block_lifetime& b) { return b.end - b.start; });
  column([](const block_lifetime& b) { return b.address; });
  plain([](const block_lifetime& b) { return b.size; });
  plain([](const block_lifetime& b) { return b.rounded - b.size; });
  plain([](const block_lifetime& b) { return b.tag; });
  plain([](const block_lifetime& b) { return b.stream; });
  plain([](const block_lifetime& b) { return b.site; });
  plain([](const block_lifetime& b) { return b.pool; });
  for (const grouping& grouped : groupings) {
    for (const std::uint32_t i : blocks) out.number(grouped.of_block[i]);
  }
}

void pack_mappings(const report::history& history, const std::vector<std::uint32_t>& mappings,
                   packer& out) {
  out.number(mappings.size());
  std::uint64_t start = 0;
  std::uint64_t address = 0;
  for (const std::uint32_t i : mappings) {
    const mapped_range& mapping = history.mappings[i];
    out.difference(mapping.start, start).number(mapping.end - mapping.start);
    out.difference(mapping.address, address).number(mapping.size);
    start = mapping.start;
    address = mapping.address;
  }
}

constexpr std::uint64_t first_width = 1 << 13;
constexpr unsigned width_shift = 2;

}  // namespace

selection select_blocks(const report::history& history, const series& finest,
                        std::vector<std::uint32_t> exact, std::size_t most) {
  selection out;
  out.kept.assign(history.blocks.size(), false);
  out.moments = finest.moment;
  out.moments.insert(out.moments.end(), exact.begin(), exact.end());
  std::sort(out.moments.begin(), out.moments.end());
  if (keep(history, out.moments, 0, any_size, nullptr) <= most) {
    keep(history, out.moments, 0, any_size, &out.kept);
    return out;
  }
  // Half for the large ones at every moment, half for the small ones at key moments.
  out.small_below = 1024;
  while (keep(history, out.moments, out.small_below, any_size, nullptr) > most / 2) {
    out.small_below = times(out.small_below, 2);
  }
  keep(history, out.moments, out.small_below, any_size, &out.kept);
  std::size_t more = 1024;
  do {
    more /= 2;
    out.key_moments = spread(finest, exact, more);
  } while (more != 0 && keep(history, out.key_moments, 0, out.small_below, nullptr) > most / 2);
  while (keep(history, out.key_moments, out.left_out_below, out.small_below, nullptr) > most / 2) {
    out.left_out_below = std::max<std::uint64_t>(512, times(out.left_out_below, 2));
  }
  keep(history, out.key_moments, out.left_out_below, out.small_below, &out.kept);
  return out;
}

std::vector<index_level> store_block_index(const report::history& history,
                                           const std::vector<grouping>& groupings,
                                           const selection& selected, chunk_store& store) {
  std::vector<index_level> levels;
  if (history.events() == 0) return levels;
  std::uint64_t shorter = 0;
  for (std::uint64_t width = first_width;; width <<= width_shift) {
    const std::uint64_t buckets = (history.events() - 1) / width + 1;
    const auto fits = [&](const auto& lifetime) {
      const std::uint64_t duration = lifetime.end - lifetime.start;
      return duration > shorter && duration <= width;
    };
    std::vector<std::vector<std::uint32_t>> blocks(buckets);
    for (std::uint32_t i = 0; i < history.blocks.size(); ++i) {
      if (selected.kept[i] && fits(history.blocks[i]))
        blocks[history.blocks[i].start / width].push_back(i);
    }
    std::vector<std::vector<std::uint32_t>> mappings(buckets);
    for (std::uint32_t i = 0; i < history.mappings.size(); ++i) {
      if (!fits(history.mappings[i]) || !is_live_at(history.mappings[i], selected.moments))
        continue;
      mappings[history.mappings[i].start / width].push_back(i);
    }
    for (std::uint64_t bucket = 0; bucket < buckets; ++bucket) {
      packer piece;
      pack_blocks(history, groupings, blocks[bucket], piece);
      pack_mappings(history, mappings[bucket], piece);
      store.add(piece);
    }
    levels.push_back({width, buckets});
    if (width >= history.events()) return levels;
    shorter = width;
  }
}

std::vector<region> used_addresses(const report::history& history, std::size_t most) {
  std::vector<region> all;
  const auto add = [&](std::uint64_t address, std::uint64_t size) {
    const std::uint64_t first = address / page_bytes * page_bytes;
    const std::uint64_t last = (address + size - (size == 0 ? 0 : 1)) / page_bytes * page_bytes;
    all.push_back({first, std::min(last - first + page_bytes, any_size - first)});
  };
  // Addresses come again and again: sorting each once is far cheaper.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  ranges.reserve(history.blocks.size() + history.mappings.size());
  for (const block_lifetime& block : history.blocks) {
    if (block.placed) ranges.emplace_back(block.address, block.rounded);
  }
  for (const mapped_range& mapping : history.mappings)
    ranges.emplace_back(mapping.address, mapping.size);
  std::sort(ranges.begin(), ranges.end());
  ranges.erase(std::unique(ranges.begin(), ranges.end()), ranges.end());
  for (const auto& [address, size] : ranges) add(address, size);

  for (std::uint64_t gap = page_bytes;; gap = times(gap, 4)) {
    std::vector<region> merged;
    for (const region& next : all) {
      const std::uint64_t end = merged.empty() ? 0 : merged.back().address + merged.back().size;
      if (!merged.empty() && (next.address <= end || next.address - end < gap)) {
        merged.back().size = std::max(end, next.address + next.size) - merged.back().address;
      } else {
        merged.push_back(next);
      }
    }
    if (merged.size() <= most) return merged;
    all = std::move(merged);
  }
}

}}}  // namespace weir::v0::report
