// SPDX-License-Identifier: Apache-2.0
// Recorded streams and the blocks that wait for them.
#include "order/pending_frees.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace order {

void pending_frees::record(block_index index, stream_slot stream) {
  auto& known = uses_[index].recorded;
  if (std::find(known.begin(), known.end(), stream) == known.end()) known.push_back(stream);
}

void pending_frees::prepare(block_index index) {
  if (list_.size() == list_.capacity()) list_.reserve(list_.size() * 2 + 8);
  if (const auto entry = uses_.find(index); entry != uses_.end())
    entry->second.room.reserve(entry->second.recorded.size());
}

pending_frees::waiting pending_frees::forget(block_index index, stream_slot freed_on,
                                             stream_order& all) noexcept {
  waiting block{.index = index, .freed = all.now(freed_on), .others = {}};
  const auto entry = uses_.find(index);
  if (entry == uses_.end()) return block;
  block.others = std::move(entry->second.room);
  for (const stream_slot other : entry->second.recorded)
    if (other != freed_on) block.others.push_back(all.now(other));
  uses_.erase(entry);
  return block;
}

bool pending_frees::completed(const waiting& block, const stream_order& all) noexcept {
  const auto is_completed = [&](stamp each) { return all.stream_completed(each); };
  return std::all_of(block.others.begin(), block.others.end(), is_completed);
}

pending_frees::waiting pending_frees::take(std::size_t at) noexcept {
  waiting taken = std::move(list_[at]);
  list_[at] = std::move(list_.back());
  list_.pop_back();
  return taken;
}

void pending_frees::clear() noexcept {
  uses_.clear();
  list_.clear();
}

std::size_t pending_frees::footprint() const noexcept {
  return list_.capacity() * sizeof(waiting) + uses_.size() * (sizeof(void*) * 4 + 16);
}

}}}  // namespace weir::v0::order
