// SPDX-License-Identifier: Apache-2.0
// A treap whose nodes are the blocks' records.
#include "placement/block_tree.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Heap order. A mix that maps different numbers to different weights.
std::uint32_t weight(block_index index) noexcept {
  std::uint32_t mixed = index * 0x9e37'79b1U;
  mixed ^= mixed >> 15;
  return mixed * 0x85eb'ca6bU;
}

}  // namespace

block_tree::key block_tree::key_of(block_index index) const noexcept {
  const block& of = blocks_[index];
  if (order_ == order::address) return {of.stream, 0, 0, of.address};
  return {of.stream, of.units, of.in.older, of.address};
}

void block_tree::insert(block_index index) noexcept {
  const key own = key_of(index);
  block_index* link = &root_;
  while (*link != no_block && weight(*link) > weight(index)) {
    auto& at = blocks_[*link].in;
    link = own < key_of(*link) ? &at.left : &at.right;
  }
  // What hangs here is cut in two along our key: it goes below us.
  block_index rest = *link;
  *link = index;
  block_index* low = &blocks_[index].in.left;
  block_index* high = &blocks_[index].in.right;
  while (rest != no_block) {
    if (key_of(rest) < own) {
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

block_index* block_tree::link_to(block_index index) noexcept {
  const key own = key_of(index);
  block_index* link = &root_;
  while (*link != no_block && *link != index) {
    auto& at = blocks_[*link].in;
    link = own < key_of(*link) ? &at.left : &at.right;
  }
  return link;
}

void block_tree::remove(block_index index) noexcept {
  block_index* link = link_to(index);
  block_index low = blocks_[index].in.left;
  block_index high = blocks_[index].in.right;
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

bool block_tree::contains(block_index index) const noexcept {
  return above(key_of(index), true) == index;
}

block_index block_tree::above(const key& low, bool or_equal) const noexcept {
  block_index match = no_block;
  for (block_index at = root_; at != no_block;) {
    const auto compared = key_of(at) <=> low;
    if (compared > 0 || (or_equal && compared == 0)) {
      match = at;
      at = blocks_[at].in.left;
    } else {
      at = blocks_[at].in.right;
    }
  }
  return match;
}

block_index block_tree::first(stream_slot stream, std::uint64_t units) const noexcept {
  if (units > unit_count::most) return no_block;
  const block_index match = above({stream, static_cast<std::uint32_t>(units), 0, 0}, true);
  return match != no_block && blocks_[match].stream == stream ? match : no_block;
}

block_index block_tree::last(stream_slot stream) const noexcept {
  block_index match = no_block;
  for (block_index at = root_; at != no_block;) {
    if (blocks_[at].stream <= stream) {
      match = at;
      at = blocks_[at].in.right;
    } else {
      at = blocks_[at].in.left;
    }
  }
  return match != no_block && blocks_[match].stream == stream ? match : no_block;
}

block_index block_tree::next(block_index index) const noexcept {
  const block_index match = above(key_of(index), false);
  return match != no_block && blocks_[match].stream == blocks_[index].stream ? match : no_block;
}

}}}  // namespace weir::v0::placement
