// What must be true of a classic store at all times, walked and compared.
#include "heap/classic.hpp"

namespace weir::inline v0::heap {
namespace {

std::string at(std::uint64_t address, const char* what) {
  return "block at " + std::to_string(address) + ": " + what;
}

}  // namespace

std::string classic_store::check() const {
  totals sums;
  std::uint64_t end = 0;
  for (const auto& [base, each] : segments_) {
    if (base < end) return "segments overlap at " + std::to_string(base);
    if (auto wrong = check_segment(base, each, sums); !wrong.empty()) return wrong;
    end = base + each.size;
  }
  if (sums.with_memory != reserved_) return "reserved is not the sum of what has memory";
  if (sums.handed_out != handed_out_) return "handed_out is not the sum of the blocks";
  if (reserved_ > reserved_peak_) return "reserved is above its peak";
  for (std::size_t which = 0; which < classes_.size(); ++which) {
    const class_index& in = classes_[which];
    // Each block was found in its tree: the trees hold no others if they are no larger.
    if (in.runs.size() != sums.runs[which]) return "a tree of runs holds something else";
    if (in.guests.size() != sums.guests[which]) return "a tree of guests holds something else";
    if (in.holes.size() != sums.holes[which]) return "a tree of holes holds something else";
  }
  return {};
}

std::string classic_store::check_segment(std::uint64_t base, const segment& of,
                                         totals& sums) const {
  std::uint64_t end = base;
  block_index before = no_block;
  for (block_index which = of.first; which != no_block; which = shared_.blocks[which].after) {
    const block& here = shared_.blocks[which];
    if (here.address != end) return at(here.address, "does not begin where the last one ends");
    if (here.units == 0) return at(here.address, "is empty");
    if (here.before != before) return at(here.address, "does not know its neighbour");
    if (may_join(before, which)) return at(here.address, "should be one with its neighbour");
    if (auto wrong = check_block(which, base, of, sums); !wrong.empty()) return wrong;
    before = which;
    end = here.end();
  }
  return end == base + of.size ? std::string{} : at(base, "the segment ends elsewhere");
}

std::string classic_store::check_block(block_index which, std::uint64_t base, const segment& home,
                                       totals& sums) const {
  const block& here = shared_.blocks[which];
  const class_index& in = index_of(home.holds);
  const auto held = static_cast<std::size_t>(home.holds);
  switch (here.is()) {
    case block_kind::live:
    case block_kind::thread_cached:
    case block_kind::pending:
      sums.handed_out += here.size();
      sums.with_memory += here.size();
      return {};
    case block_kind::run: {
      const bool own = here.stream == home.stream;
      ++(own ? sums.runs : sums.guests)[held];
      sums.with_memory += here.size();
      if (here.in.older != home.rank) return at(here.address, "names another segment");
      if (!(own ? in.runs : in.guests).contains(which)) return at(here.address, "is not listed");
      return {};
    }
    case block_kind::stuck:
      return at(here.address, "is of no kind that segments have");
    case block_kind::hole: {
      ++sums.holes[held];
      if (!expandable_) return at(here.address, "is a hole in a fixed segment");
      const std::uint64_t page = page_size(home.holds);
      if (here.stream != home.stream) return at(here.address, "is another stream's hole");
      if ((here.address - base) % page != 0 || here.size() % page != 0) {
        return at(here.address, "is a hole that cuts a page");
      }
      if (!in.holes.contains(which)) return at(here.address, "is a hole that is not listed");
      return {};
    }
    case block_kind::unused:
      break;
  }
  return at(here.address, "was recycled");
}

}  // namespace weir::inline v0::heap
