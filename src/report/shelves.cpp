// The blocks that the arena map shows.
#include "report/shelves.hpp"

#include <algorithm>
#include <limits>

namespace weir::inline v0::report {

namespace {

/// Whether one of the ascending `moments` falls into the life of `block`.
template <class Lived>
bool seen_at(const Lived& block, const std::vector<std::uint32_t>& moments) {
  const auto next = std::lower_bound(moments.begin(), moments.end(), block.start);
  return next != moments.end() && *next < block.end;
}

/// The wanted moments and `more` others, evenly spread, all of them moments of bins.
std::vector<std::uint32_t> spread(const series& finest, std::vector<std::uint32_t> wanted,
                                  std::size_t more) {
  for (std::size_t i = 0; i < more; ++i) {
    wanted.push_back(finest.moment[i * finest.bins() / more]);
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

/// Counts the placed blocks of `from` <= size < `below` that are seen at the moments; keeps them.
std::size_t keep(const story& what, const std::vector<std::uint32_t>& moments, std::uint64_t from,
                 std::uint64_t below, std::vector<bool>* kept) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < what.blocks.size(); ++i) {
    const life& block = what.blocks[i];
    if (!block.placed || block.size < from || block.size >= below) continue;
    if (!seen_at(block, moments)) continue;
    ++count;
    if (kept != nullptr) (*kept)[i] = true;
  }
  return count;
}

constexpr std::uint64_t any_size = std::numeric_limits<std::uint64_t>::max();

/// Blocks that begin in one shelf, as columns: what is alike stands together and deflates well.
void pack_blocks(const story& what, const std::vector<grouping>& groupings,
                 const std::vector<std::uint32_t>& blocks, packer& out) {
  out.number(blocks.size());
  const auto column = [&](auto value) {
    std::uint64_t before = 0;
    for (const std::uint32_t i : blocks) {
      const std::uint64_t now = value(what.blocks[i]);
      out.difference(now, before);
      before = now;
    }
  };
  const auto plain = [&](auto value) {
    for (const std::uint32_t i : blocks) out.number(value(what.blocks[i]));
  };
  column([](const life& b) { return b.start; });
  plain([](const life& b) { return b.end - b.start; });
  column([](const life& b) { return b.address; });
  plain([](const life& b) { return b.size; });
  plain([](const life& b) { return b.rounded - b.size; });
  plain([](const life& b) { return b.tag; });
  plain([](const life& b) { return b.stream; });
  plain([](const life& b) { return b.site; });
  for (const grouping& by : groupings) {
    for (const std::uint32_t i : blocks) out.number(by.of_block[i]);
  }
}

void pack_spans(const story& what, const std::vector<std::uint32_t>& spans, packer& out) {
  out.number(spans.size());
  std::uint64_t start = 0;
  std::uint64_t address = 0;
  for (const std::uint32_t i : spans) {
    const span& s = what.spans[i];
    out.difference(s.start, start).number(s.end - s.start);
    out.difference(s.address, address).number(s.size);
    start = s.start;
    address = s.address;
  }
}

constexpr std::uint64_t first_width = 1 << 13;
constexpr unsigned width_shift = 2;

}  // namespace

selection select_blocks(const story& what, const series& finest, std::vector<std::uint32_t> wanted,
                        std::size_t most) {
  selection out;
  out.kept.assign(what.blocks.size(), false);
  out.moments = finest.moment;
  out.moments.insert(out.moments.end(), wanted.begin(), wanted.end());
  std::sort(out.moments.begin(), out.moments.end());
  if (keep(what, out.moments, 0, any_size, nullptr) <= most) {
    keep(what, out.moments, 0, any_size, &out.kept);
    return out;
  }
  // Half for the large ones at every moment, half for the small ones at key moments.
  out.small_below = 1024;
  while (keep(what, out.moments, out.small_below, any_size, nullptr) > most / 2) {
    out.small_below *= 2;
  }
  keep(what, out.moments, out.small_below, any_size, &out.kept);
  std::size_t more = 1024;
  do {
    more /= 2;
    out.key_moments = spread(finest, wanted, more);
  } while (more != 0 && keep(what, out.key_moments, 0, out.small_below, nullptr) > most / 2);
  while (keep(what, out.key_moments, out.left_out_below, out.small_below, nullptr) > most / 2) {
    out.left_out_below = std::max<std::uint64_t>(512, out.left_out_below * 2);
  }
  keep(what, out.key_moments, out.left_out_below, out.small_below, &out.kept);
  return out;
}

std::vector<shelf_level> store_shelves(const story& what, const std::vector<grouping>& groupings,
                                       const selection& which, chunk_store& store) {
  std::vector<shelf_level> levels;
  if (what.events() == 0) return levels;
  std::uint64_t shorter = 0;
  for (std::uint64_t width = first_width;; width <<= width_shift) {
    const std::uint64_t shelves = (what.events() - 1) / width + 1;
    const auto fits = [&](const auto& lived) {
      const std::uint64_t duration = lived.end - lived.start;
      return duration > shorter && duration <= width;
    };
    std::vector<std::vector<std::uint32_t>> blocks(shelves);
    for (std::uint32_t i = 0; i < what.blocks.size(); ++i) {
      if (which.kept[i] && fits(what.blocks[i])) blocks[what.blocks[i].start / width].push_back(i);
    }
    std::vector<std::vector<std::uint32_t>> spans(shelves);
    for (std::uint32_t i = 0; i < what.spans.size(); ++i) {
      if (!fits(what.spans[i]) || !seen_at(what.spans[i], which.moments)) continue;
      spans[what.spans[i].start / width].push_back(i);
    }
    for (std::uint64_t shelf = 0; shelf < shelves; ++shelf) {
      packer piece;
      pack_blocks(what, groupings, blocks[shelf], piece);
      pack_spans(what, spans[shelf], piece);
      store.add(piece);
    }
    levels.push_back({width, shelves});
    if (width >= what.events()) return levels;
    shorter = width;
  }
}

std::vector<region> used_addresses(const story& what, std::size_t most) {
  std::vector<region> all;
  const auto add = [&](std::uint64_t address, std::uint64_t size) {
    const std::uint64_t first = address / page_bytes * page_bytes;
    const std::uint64_t last = (address + size - (size == 0 ? 0 : 1)) / page_bytes * page_bytes;
    all.push_back({first, last - first + page_bytes});
  };
  // Addresses come again and again: sorting each once is far cheaper.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  ranges.reserve(what.blocks.size() + what.spans.size());
  for (const life& block : what.blocks) {
    if (block.placed) ranges.emplace_back(block.address, block.rounded);
  }
  for (const span& s : what.spans) ranges.emplace_back(s.address, s.size);
  std::sort(ranges.begin(), ranges.end());
  ranges.erase(std::unique(ranges.begin(), ranges.end()), ranges.end());
  for (const auto& [address, size] : ranges) add(address, size);

  for (std::uint64_t gap = page_bytes;; gap *= 4) {
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

}  // namespace weir::inline v0::report
