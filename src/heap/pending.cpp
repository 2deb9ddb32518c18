// Recorded streams and the blocks that wait for them.
#include "heap/pending.hpp"

#include <algorithm>
#include <utility>

#include "order/mutation.hpp"

namespace weir::inline v0::heap {

void pending::record(block_index which, stream_slot stream) {
  auto& known = uses_[which].recorded;
  if (std::find(known.begin(), known.end(), stream) == known.end()) known.push_back(stream);
}

void pending::prepare(block_index which) {
  if (list_.size() == list_.capacity()) list_.reserve(list_.size() * 2 + 8);
  if (const auto found = uses_.find(which); found != uses_.end())
    found->second.room.reserve(found->second.recorded.size());
}

pending::waiting pending::forget(block_index which, stream_slot freed_on,
                                 order::stream_order& all) noexcept {
  waiting block{.which = which, .freed = all.now(freed_on), .others = {}};
  const auto found = uses_.find(which);
  if (found == uses_.end()) return block;
  block.others = std::move(found->second.room);
  for (const stream_slot other : found->second.recorded)
    if (other != freed_on && !mutated(mutation::recorded_stream_forgotten))
      block.others.push_back(all.now(other));
  uses_.erase(found);
  return block;
}

bool pending::passed(const waiting& block, const order::stream_order& all) noexcept {
  const auto is_passed = [&](stamp each) { return all.passed(each); };
  if (mutated(mutation::first_of_recorded_streams))
    return std::any_of(block.others.begin(), block.others.end(), is_passed);
  return std::all_of(block.others.begin(), block.others.end(), is_passed);
}

pending::waiting pending::take(std::size_t at) noexcept {
  waiting taken = std::move(list_[at]);
  list_[at] = std::move(list_.back());
  list_.pop_back();
  return taken;
}

void pending::clear() noexcept {
  uses_.clear();
  list_.clear();
}

std::size_t pending::footprint() const noexcept {
  return list_.capacity() * sizeof(waiting) + uses_.size() * (sizeof(void*) * 4 + 16);
}

}  // namespace weir::inline v0::heap
