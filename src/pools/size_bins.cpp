// SPDX-License-Identifier: Apache-2.0
// Bins of cached blocks: the first in each has waited longest.
#include "pools/size_bins.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace pools {

using order::no_stream;

void block::add_use(const foreign_use& use) {
  const auto is_it = [&](const foreign_use& each) {
    return !each.has_ended() && each.is_of(use.stream());
  };
  if (std::none_of(foreign.begin(), foreign.end(), is_it)) foreign.push_back(use);
}

void block_list::push_back(block& added) noexcept {
  added.before = back;
  added.after = nullptr;
  (back != nullptr ? back->after : front) = &added;
  back = &added;
}

void block_list::push_front(block& added) noexcept {
  added.before = nullptr;
  added.after = front;
  (front != nullptr ? front->before : back) = &added;
  front = &added;
}

void block_list::remove(block& removed) noexcept {
  (removed.before != nullptr ? removed.before->after : front) = removed.after;
  (removed.after != nullptr ? removed.after->before : back) = removed.before;
}

void size_bins::put(block& freed) noexcept {
  bin& target = bins_.find({freed.size, freed.freed_on})->second;
  target.blocks.push_back(freed);
  if (target.first_bound == nullptr) target.first_bound = &freed;
}

void size_bins::put_back(block& taken) {
  bins_.try_emplace({taken.size, taken.freed_on}).first->second.blocks.push_front(taken);
}

void size_bins::take(block& taken) noexcept {
  bin& source = bins_.find({taken.size, taken.freed_on})->second;
  if (source.first_bound == &taken) source.first_bound = taken.after;
  source.blocks.remove(taken);
}

block* size_bins::take_own(std::uint64_t size, stream_slot slot) noexcept {
  const auto own = bins_.find({size, slot});
  if (own == bins_.end() || own->second.blocks.empty()) return nullptr;
  block* const newest = own->second.blocks.back;
  take(*newest);
  return newest;
}

block* size_bins::take_quiescent(std::uint64_t size) noexcept {
  for (auto at = bins_.lower_bound({size, no_stream}); at != bins_.end() && at->first.first == size;
       ++at) {
    block* const first = at->second.blocks.front;
    if (first == nullptr || !first->is_quiescent()) continue;
    take(*first);
    return first;
  }
  return nullptr;
}

const block* size_bins::oldest() const noexcept {
  const block* candidate = nullptr;
  for (const auto& [size_and_stream, each] : bins_) {
    const block* const first = each.blocks.front;
    if (first == nullptr || !first->is_quiescent()) continue;
    if (candidate == nullptr || first->order < candidate->order) candidate = first;
  }
  return candidate;
}

const block* size_bins::first_freed() const noexcept {
  const block* candidate = nullptr;
  for (const auto& [size_and_stream, each] : bins_) {
    const block* const first = each.blocks.front;
    if (first == nullptr) continue;
    if (candidate == nullptr || first->order < candidate->order) candidate = first;
  }
  return candidate;
}

block* size_bins::take_oldest() noexcept {
  block* const taken = const_cast<block*>(oldest());
  if (taken != nullptr) take(*taken);
  return taken;
}

bool size_bins::any_stream_bound(std::uint64_t size) const noexcept {
  for (auto at = bins_.lower_bound({size, no_stream}); at != bins_.end() && at->first.first == size;
       ++at)
    if (at->second.first_bound != nullptr) return true;
  return false;
}

std::vector<block*> size_bins::stream_bound(std::uint64_t size) const {
  std::vector<block*> blocks;
  for (auto at = bins_.lower_bound({size, no_stream}); at != bins_.end() && at->first.first == size;
       ++at)
    if (at->second.first_bound != nullptr) blocks.push_back(at->second.first_bound);
  return blocks;
}

void size_bins::retire(const order::stream_order& progress) noexcept {
  for (auto at = bins_.begin(); at != bins_.end();) {
    bin& each = at->second;
    while (each.first_bound != nullptr && progress.completed(each.first_bound->freed)) {
      each.first_bound->freed = {};
      each.first_bound = each.first_bound->after;
    }
    at = each.blocks.empty() ? bins_.erase(at) : std::next(at);
  }
}

}}}  // namespace weir::v0::pools
