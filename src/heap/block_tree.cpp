// A treap whose nodes are the blocks' records.
#include "heap/block_tree.hpp"

namespace weir::inline v0::heap {
namespace {

/// Heap order. A mix that maps different numbers to different weights.
std::uint32_t weight(block_index which) noexcept {
  std::uint32_t mixed = which * 0x9e37'79b1U;
  mixed ^= mixed >> 15;
  return mixed * 0x85eb'ca6bU;
}

}  // namespace

block_tree::key block_tree::key_of(block_index which) const noexcept {
  const block& of = blocks_[which];
  if (order_ == order::address) return {of.stream, 0, 0, of.address};
  return {of.stream, of.units, of.in.older, of.address};
}

void block_tree::insert(block_index which) noexcept {
  const key mine = key_of(which);
  block_index* link = &root_;
  while (*link != no_block && weight(*link) > weight(which)) {
    auto& at = blocks_[*link].in;
    link = mine < key_of(*link) ? &at.left : &at.right;
  }
  // What hangs here is cut in two along our key: it goes below us.
  block_index rest = *link;
  *link = which;
  block_index* low = &blocks_[which].in.left;
  block_index* high = &blocks_[which].in.right;
  while (rest != no_block) {
    if (key_of(rest) < mine) {
      *low = rest;
      low = &blocks_[rest].in.right;
      rest = *low;
    } else {
      *high = rest;
      high = &blocks_[rest].in.left;
      rest = *high;
    }
  }
  *low = no_block;
  *high = no_block;
  ++size_;
}

block_index* block_tree::link_to(block_index which) noexcept {
  const key mine = key_of(which);
  block_index* link = &root_;
  while (*link != no_block && *link != which) {
    auto& at = blocks_[*link].in;
    link = mine < key_of(*link) ? &at.left : &at.right;
  }
  return link;
}

void block_tree::remove(block_index which) noexcept {
  block_index* link = link_to(which);
  block_index low = blocks_[which].in.left;
  block_index high = blocks_[which].in.right;
  while (low != no_block && high != no_block) {
    if (weight(low) > weight(high)) {
      *link = low;
      link = &blocks_[low].in.right;
      low = *link;
    } else {
      *link = high;
      link = &blocks_[high].in.left;
      high = *link;
    }
  }
  *link = low != no_block ? low : high;
  --size_;
}

bool block_tree::contains(block_index which) const noexcept {
  return above(key_of(which), true) == which;
}

block_index block_tree::above(const key& low, bool or_equal) const noexcept {
  block_index found = no_block;
  for (block_index at = root_; at != no_block;) {
    const auto compared = key_of(at) <=> low;
    if (compared > 0 || (or_equal && compared == 0)) {
      found = at;
      at = blocks_[at].in.left;
    } else {
      at = blocks_[at].in.right;
    }
  }
  return found;
}

block_index block_tree::first(stream_slot stream, std::uint32_t units) const noexcept {
  const block_index found = above({stream, units, 0, 0}, true);
  return found != no_block && blocks_[found].stream == stream ? found : no_block;
}

block_index block_tree::last(stream_slot stream) const noexcept {
  block_index found = no_block;
  for (block_index at = root_; at != no_block;) {
    if (blocks_[at].stream <= stream) {
      found = at;
      at = blocks_[at].in.right;
    } else {
      at = blocks_[at].in.left;
    }
  }
  return found != no_block && blocks_[found].stream == stream ? found : no_block;
}

block_index block_tree::next(block_index which) const noexcept {
  const block_index found = above(key_of(which), false);
  return found != no_block && blocks_[found].stream == blocks_[which].stream ? found : no_block;
}

}  // namespace weir::inline v0::heap
