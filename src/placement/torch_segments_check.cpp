// SPDX-License-Identifier: Apache-2.0
// What must be true of a classic store at all times, walked and compared.
#include "placement/torch_segments.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

std::string at(std::uint64_t address, const char* text) {
  return "block at " + std::to_string(address) + ": " + text;
}

}  // namespace

std::string torch_segments::check() const {
  totals sums;
  std::uint64_t end = 0;
  for (const auto& [base, each] : segments_) {
    if (base < end) return "segments overlap at " + std::to_string(base);
    if (auto wrong = check_segment(base, each, sums); !wrong.empty()) return wrong;
    end = base + each.size;
  }
  if (auto wrong = check_leaving(sums); !wrong.empty()) return wrong;
  std::size_t linked = 0;
  for (const segment_entry* at = oldest_; at != nullptr; at = at->second.newer) {
    const segment_entry* const newer = at->second.newer;
    if (newer == nullptr ? at != newest_ : newer->second.rank >= at->second.rank)
      return "the segments are not listed by age";
    ++linked;
  }
  if (linked != segments_.size()) return "a segment is missing in the list by age";
  if (sums.with_memory != reserved_) return "reserved is not the sum of what has memory";
  if (sums.handed_out != handed_out_) return "handed_out is not the sum of the blocks";
  if (reserved_ > reserved_peak_) return "reserved is above its peak";
  for (std::size_t position = 0; position < classes_.size(); ++position) {
    const class_index& in = classes_[position];
    // Each block was found in its tree: the trees hold no others if they are no larger.
    if (in.runs.size() != sums.runs[position]) return "a tree of runs holds something else";
    if (in.guests.size() != sums.guests[position]) return "a tree of guests holds something else";
    if (in.holes.size() != sums.holes[position]) return "a tree of holes holds something else";
  }
  return {};
}

/// On their way to the driver: in no tree, and free as a whole.
std::string torch_segments::check_leaving(totals& sums) const {
  for (const auto& [base, each] : leaving_) {
    if (!wholly_free(each)) return "a segment that leaves is in use at " + std::to_string(base);
    sums.with_memory += each.size;
  }
  return {};
}

std::string torch_segments::check_segment(std::uint64_t base, const segment& of,
                                          totals& sums) const {
  std::uint64_t end = base;
  block_index before = no_block;
  for (block_index index = of.first; index != no_block; index = shared_.blocks[index].after) {
    const block& block = shared_.blocks[index];
    if (block.address != end) return at(block.address, "does not begin where the last one ends");
    if (block.units == 0) return at(block.address, "is empty");
    if (block.before != before) return at(block.address, "does not know its neighbour");
    if (may_join(before, index)) return at(block.address, "should be one with its neighbour");
    if (auto wrong = check_block(index, base, of, sums); !wrong.empty()) return wrong;
    before = index;
    end = block.end();
  }
  return end == base + of.size ? std::string{} : at(base, "the segment ends elsewhere");
}

std::string torch_segments::check_block(block_index index, std::uint64_t base, const segment& home,
                                        totals& sums) const {
  const block& block = shared_.blocks[index];
  const class_index& in = index_of(home.holds);
  const auto held = static_cast<std::size_t>(home.holds);
  switch (block.is()) {
    case block_kind::live:
    case block_kind::questioned:
    case block_kind::thread_cached:
    case block_kind::given_back:
    case block_kind::pending:
      sums.handed_out += block.size();
      sums.with_memory += block.size();
      return {};
    case block_kind::run: {
      const bool own = block.stream == home.stream;
      ++(own ? sums.runs : sums.guests)[held];
      sums.with_memory += block.size();
      if (block.in.older != home.rank) return at(block.address, "names another segment");
      if (!(own ? in.runs : in.guests).contains(index)) return at(block.address, "is not listed");
      return {};
    }
    case block_kind::stuck:
      return at(block.address, "is of no kind that segments have");
    case block_kind::hole: {
      ++sums.holes[held];
      if (!rules_.expandable) return at(block.address, "is a hole in a fixed segment");
      const std::uint64_t page = page_size(home.holds);
      if (block.stream != home.stream) return at(block.address, "is another stream's hole");
      if ((block.address - base) % page != 0 || block.size() % page != 0) {
        return at(block.address, "is a hole that cuts a page");
      }
      if (!in.holes.contains(index)) return at(block.address, "is a hole that is not listed");
      return {};
    }
    case block_kind::unused:
      break;
  }
  return at(block.address, "was recycled");
}

}}}  // namespace weir::v0::placement
