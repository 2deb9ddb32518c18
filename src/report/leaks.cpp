// SPDX-License-Identifier: Apache-2.0
// Blocks that were never freed, by site and tag.
#include "report/leaks.hpp"

#include <algorithm>
#include <unordered_map>

namespace weir { inline namespace v0 { namespace report {

std::vector<leak> find_leaks(const history& history) {
  std::vector<leak> out;
  std::unordered_map<std::uint64_t, std::size_t> places;  // by site and tag
  for (const block_lifetime& block : history.blocks) {    // by start
    if (block.end != history.events()) continue;
    const std::uint64_t key = std::uint64_t{block.site} << 16U | block.tag;
    const auto [entry, is_new] = places.try_emplace(key, out.size());
    if (is_new) out.push_back({.site = block.site, .tag = block.tag, .first = block.start});
    leak& found = out[entry->second];
    ++found.blocks;
    found.bytes += block.size;
    found.last = block.start;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const leak& a, const leak& b) { return a.bytes > b.bytes; });
  return out;
}

}}}  // namespace weir::v0::report
