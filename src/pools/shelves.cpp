// Shelves of freed blocks: what lies first has waited longest.
#include "pools/shelves.hpp"

namespace weir::inline v0::pools {

using order::nobody;

void block_list::push_back(block& what) noexcept {
  what.before = back;
  what.after = nullptr;
  (back != nullptr ? back->after : front) = &what;
  back = &what;
}

void block_list::push_front(block& what) noexcept {
  what.before = nullptr;
  what.after = front;
  (front != nullptr ? front->before : back) = &what;
  front = &what;
}

void block_list::remove(block& what) noexcept {
  (what.before != nullptr ? what.before->after : front) = what.after;
  (what.after != nullptr ? what.after->before : back) = what.before;
  what.before = what.after = nullptr;
}

void shelves::put(block& what) noexcept {
  shelf& onto = all_.find({what.size, what.freed_on})->second;
  onto.blocks.push_back(what);
  if (onto.first_bound == nullptr) onto.first_bound = &what;
}

void shelves::put_back(block& what) {
  all_.try_emplace({what.size, what.freed_on}).first->second.blocks.push_front(what);
}

void shelves::take(block& what) noexcept {
  shelf& from = all_.find({what.size, what.freed_on})->second;
  if (from.first_bound == &what) from.first_bound = what.after;
  from.blocks.remove(what);
}

block* shelves::take_own(std::uint64_t size, stream_slot slot) noexcept {
  const auto found = all_.find({size, slot});
  if (found == all_.end() || found->second.blocks.empty()) return nullptr;
  block* const newest = found->second.blocks.back;
  take(*newest);
  return newest;
}

block* shelves::take_free(std::uint64_t size) noexcept {
  for (auto at = all_.lower_bound({size, nobody}); at != all_.end() && at->first.first == size;
       ++at) {
    block* const first = at->second.blocks.front;
    if (first == nullptr || first->freed.stream != nobody) continue;
    take(*first);
    return first;
  }
  return nullptr;
}

const block* shelves::oldest() const noexcept {
  const block* found = nullptr;
  for (const auto& each : all_) {
    const block* const first = each.second.blocks.front;
    if (first == nullptr || first->freed.stream != nobody) continue;
    if (found == nullptr || first->order < found->order) found = first;
  }
  return found;
}

const block* shelves::first_freed() const noexcept {
  const block* found = nullptr;
  for (const auto& each : all_) {
    const block* const first = each.second.blocks.front;
    if (first != nullptr && (found == nullptr || first->order < found->order)) found = first;
  }
  return found;
}

block* shelves::take_oldest() noexcept {
  block* const found = const_cast<block*>(oldest());
  if (found != nullptr) take(*found);
  return found;
}

bool shelves::any_bound(std::uint64_t size) const noexcept {
  for (auto at = all_.lower_bound({size, nobody}); at != all_.end() && at->first.first == size;
       ++at)
    if (at->second.first_bound != nullptr) return true;
  return false;
}

std::vector<block*> shelves::bound(std::uint64_t size) const {
  std::vector<block*> found;
  for (auto at = all_.lower_bound({size, nobody}); at != all_.end() && at->first.first == size;
       ++at) {
    if (at->second.first_bound != nullptr) found.push_back(at->second.first_bound);
  }
  return found;
}

void shelves::retire(const order::stream_order& progress) noexcept {
  for (auto at = all_.begin(); at != all_.end();) {
    shelf& each = at->second;
    while (each.first_bound != nullptr && progress.completed(each.first_bound->freed)) {
      each.first_bound->freed = {};
      each.first_bound = each.first_bound->after;
    }
    at = each.blocks.empty() ? all_.erase(at) : std::next(at);
  }
}

}  // namespace weir::inline v0::pools
