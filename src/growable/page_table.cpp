// SPDX-License-Identifier: Apache-2.0
// States of pages, and the pages that byte ranges mean.
#include "growable/page_table.hpp"

#include <algorithm>
#include <string>

#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace growable {
namespace {

void sort_once(std::vector<page_number>& pages) {
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
}

}  // namespace

page_table::page_table(std::size_t count) : states_(count), holds_(count) {
  counts_[static_cast<std::size_t>(page_state::empty)] = count;
}

void page_table::set(page_number page, page_state state) noexcept {
  --counts_[static_cast<std::size_t>(states_[page])];
  ++counts_[static_cast<std::size_t>(state)];
  states_[page] = state;
  if (state == page_state::committed) {
    committed_end_ = std::max(committed_end_, page + 1);
    committed_peak_ = std::max(committed_peak_, count_of(page_state::committed));
  }
  while (committed_end_ != 0 && states_[committed_end_ - 1] != page_state::committed)
    --committed_end_;
}

result<std::vector<page_number>> page_ranges::touched_by(std::span<const byte_range> ranges) const {
  std::vector<page_number> pages;
  for (const byte_range& each : ranges) {
    const auto end = checked_add(each.offset, each.size);
    if (!end || *end > size) {
      return error{{.code = errc::invalid_argument,
                    .requested = each.size,
                    .detail = "a range of " + to_string(each.size) + " at offset " +
                              to_string(each.offset) + " goes beyond the size, " + to_string(size) +
                              "; resize() or reserve more"}};
    }
    if (each.size == bytes{}) continue;
    const std::uint64_t last = (end->count() - 1) / page.count();
    for (std::uint64_t at = each.offset / page; at <= last; ++at)
      pages.push_back(static_cast<page_number>(at));
  }
  sort_once(pages);
  return pages;
}

std::vector<page_number> page_ranges::within(std::span<const byte_range> ranges,
                                             std::size_t count) const {
  std::vector<page_number> pages;
  for (const byte_range& each : ranges) {
    const auto sum = checked_add(each.offset, each.size);
    const std::uint64_t end = sum ? *sum / page : count;
    const auto first = checked_round_up(each.offset, page);
    if (!first) continue;
    for (std::uint64_t at = *first / page; at < std::min<std::uint64_t>(end, count); ++at)
      pages.push_back(static_cast<page_number>(at));
  }
  sort_once(pages);
  return pages;
}

}}}  // namespace weir::v0::growable
