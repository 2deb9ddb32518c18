// SPDX-License-Identifier: Apache-2.0
// Growing the table of live blocks, and closing the gaps in it.
#include "host/live_blocks.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace host {

void live_blocks::grow() {
  std::vector<block*> larger(std::max<std::size_t>(64, places_.size() * 2), nullptr);
  places_.swap(larger);
  size_ = 0;
  for (block* const each : larger)
    if (each != nullptr) insert(*each);
}

void live_blocks::erase(const block& gone) noexcept {
  std::size_t hole = home_of(gone.address);
  while (places_[hole] != &gone) hole = next(hole);
  --size_;
  // Members behind the hole move up, if they would not be found from their home otherwise.
  const std::size_t mask = places_.size() - 1;
  for (std::size_t at = next(hole); places_[at] != nullptr; at = next(at)) {
    const std::size_t home = home_of(places_[at]->address);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    places_[hole] = places_[at];
    hole = at;
  }
  places_[hole] = nullptr;
}

}}}  // namespace weir::v0::host
