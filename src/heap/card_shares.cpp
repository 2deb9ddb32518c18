// SPDX-License-Identifier: Apache-2.0
// Shares of a card's budget.
#include "heap/card_shares.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

void card_shares::set_ceiling(const void* holder, std::uint64_t most) noexcept {
  for (share& each : shares_)
    if (each.holder == holder) each.ceiling = most;
}

card_shares::share card_shares::remove(const void* holder) noexcept {
  const auto entry = std::find_if(shares_.begin(), shares_.end(),
                                  [&](const share& each) { return each.holder == holder; });
  if (entry == shares_.end()) return {};
  share removed = std::move(*entry);
  shares_.erase(entry);
  return removed;
}

std::uint64_t card_shares::ceiling() const noexcept {
  std::uint64_t lowest = bytes::max().count();
  for (const share& each : shares_) lowest = std::min(lowest, each.ceiling);
  return lowest;
}

std::vector<std::int32_t> card_shares::members() const {
  std::vector<std::int32_t> numbers;
  numbers.reserve(shares_.size());
  for (const share& each : shares_) numbers.push_back(each.known.member);
  return numbers;
}

neighbourhood card_shares::latest() const {
  return shares_.empty() ? neighbourhood{} : shares_.back().known;
}

}}}  // namespace weir::v0::heap
