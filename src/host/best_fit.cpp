// SPDX-License-Identifier: Apache-2.0
// Splitting and joining free runs.
#include "host/best_fit.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace host {
namespace {

std::uint64_t padding_of(std::uint64_t address, std::uint64_t alignment) noexcept {
  return (alignment - address % alignment) % alignment;
}

}  // namespace

segment& best_fit::insert_segment(const pinned_memory& memory) {
  segments_.reserve(segments_.size() + 1);
  records_.prepare(3);
  auto added = std::make_unique<segment>();
  added->memory = memory;
  block& whole = records_.take();
  whole.address = added->base();
  whole.size = memory.size;
  whole.home = added.get();
  added->first = &whole;
  segments_.push_back(std::move(added));
  return *segments_.back();
}

segment& best_fit::add(const pinned_memory& memory) {
  segment& added = insert_segment(memory);
  set_free(*added.first);
  return added;
}

block& best_fit::add_live(const pinned_memory& memory, std::uint64_t size,
                          std::uint64_t alignment) {
  segment& added = insert_segment(memory);
  added.serves = false;
  return cut(*added.first, size, alignment);
}

void best_fit::remove(segment& idle) noexcept {
  block& whole = *idle.first;
  leave_tree(whole);
  records_.give(whole);
  const auto at = std::find_if(segments_.begin(), segments_.end(),
                               [&](const auto& each) { return each.get() == &idle; });
  *at = std::move(segments_.back());
  segments_.pop_back();
}

void best_fit::set_serves(segment& home, bool serves) noexcept {
  if (home.serves == serves) return;
  if (serves) home.serves = true;
  for (block* run = home.first; run != nullptr; run = run->after) {
    if (run->state != block_state::free) continue;
    serves ? set_free(*run) : leave_tree(*run);
  }
  home.serves = serves;
}

block* best_fit::find(std::uint64_t size, std::uint64_t alignment) const noexcept {
  block* at = free_.at_least(size);
  while (at != nullptr && padding_of(at->address, alignment) + size > at->size)
    at = free_.next(*at);
  return at;
}

block* best_fit::take(std::uint64_t size, std::uint64_t alignment) {
  block* found = find(size, alignment);
  if (found == nullptr) return nullptr;
  records_.prepare(2);
  leave_tree(*found);
  found->home->used = true;
  return &cut(*found, size, alignment);
}

block& best_fit::cut(block& whole, std::uint64_t size, std::uint64_t alignment) noexcept {
  block* live = &whole;
  if (const std::uint64_t padding = padding_of(whole.address, alignment); padding != 0) {
    split(whole, padding);
    live = whole.after;
    leave_tree(*live);
    set_free(whole);
  }
  live->state = block_state::live;
  if (live->size > size) split(*live, size);
  return *live;
}

void best_fit::split(block& low, std::uint64_t size) noexcept {
  block& high = records_.take();
  high.address = low.address + size;
  high.size = low.size - size;
  high.home = low.home;
  high.before = &low;
  high.after = low.after;
  if (high.after != nullptr) high.after->before = &high;
  low.after = &high;
  low.size = size;
  set_free(high);
}

void best_fit::set_free(block& run) noexcept {
  run.state = block_state::free;
  if (!run.home->serves) return;
  free_.insert(run);
  free_bytes_ += run.size;
}

void best_fit::leave_tree(block& run) noexcept {
  if (!run.home->serves) return;
  free_.remove(run);
  free_bytes_ -= run.size;
}

void best_fit::give(block& gone) noexcept {
  gone.uses.clear();
  block* joined = &gone;
  if (block* const low = gone.before; low != nullptr && low->state == block_state::free) {
    leave_tree(*low);
    low->size += gone.size;
    low->after = gone.after;
    if (low->after != nullptr) low->after->before = low;
    records_.give(gone);
    joined = low;
  }
  if (block* const high = joined->after; high != nullptr && high->state == block_state::free) {
    leave_tree(*high);
    joined->size += high->size;
    joined->after = high->after;
    if (joined->after != nullptr) joined->after->before = joined;
    records_.give(*high);
  }
  set_free(*joined);
}

block* best_fit::block_at(std::uint64_t address) const noexcept {
  for (const auto& each : segments_) {
    if (address < each->base() || address - each->base() >= each->size()) continue;
    // On its way to the system: the address may be another segment's by now.
    if (!each->serves && each->is_idle()) continue;
    block* run = each->first;
    while (address - run->address >= run->size) run = run->after;
    return run;
  }
  return nullptr;
}

std::size_t best_fit::footprint() const noexcept {
  return records_.footprint() + segments_.capacity() * sizeof(void*) +
         segments_.size() * sizeof(segment);
}

std::string best_fit::check() const {
  std::uint64_t free = 0;
  std::size_t runs = 0;
  for (const auto& each : segments_) {
    std::uint64_t at = each->base();
    const block* before = nullptr;
    for (const block* run = each->first; run != nullptr; before = run, run = run->after) {
      if (run->address != at) return "a gap or overlap at " + std::to_string(at);
      if (run->before != before) return "a wrong link at " + std::to_string(at);
      if (run->home != each.get()) return "a block of another segment at " + std::to_string(at);
      if (run->state == block_state::unused) return "an unused record at " + std::to_string(at);
      if (run->size == 0) return "an empty block at " + std::to_string(at);
      const bool is_free = run->state == block_state::free;
      if (is_free && before != nullptr && before->state == block_state::free)
        return "two free blocks adjoin at " + std::to_string(at);
      if (is_free && each->serves) {
        free += run->size;
        ++runs;
      }
      at += run->size;
    }
    if (at != each->base() + each->size()) return "a segment is not covered to its end";
  }
  if (free != free_bytes_) return "free bytes are miscounted";
  if (runs != free_.size()) return "the tree has other blocks";
  const block* last = nullptr;
  std::size_t seen = 0;
  for (const block* run = free_.at_least(0); run != nullptr; last = run, run = free_.next(*run)) {
    ++seen;
    if (last != nullptr && last->size > run->size) return "the tree is out of order";
  }
  return seen == runs ? "" : "the tree is broken";
}

}}}  // namespace weir::v0::host
