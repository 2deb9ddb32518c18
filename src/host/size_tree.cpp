// SPDX-License-Identifier: Apache-2.0
// A treap whose nodes are the blocks' records.
#include "host/size_tree.hpp"

namespace weir { inline namespace v0 { namespace host {

void size_tree::insert(block& added) noexcept {
  block** link = &root_;
  while (*link != nullptr && (*link)->weight > added.weight)
    link = precedes(added, **link) ? &(*link)->left : &(*link)->right;
  // The subtree that hangs here is cut in two along the key, and goes below the new member.
  block* rest = *link;
  *link = &added;
  block** low = &added.left;
  block** high = &added.right;
  while (rest != nullptr) {
    if (precedes(*rest, added)) {
      *low = rest;
      low = &rest->right;
      rest = *low;
    } else {
      *high = rest;
      high = &rest->left;
      rest = *high;
    }
  }
  *low = nullptr;
  *high = nullptr;
  ++size_;
}

void size_tree::remove(block& gone) noexcept {
  block** link = &root_;
  while (*link != &gone) link = precedes(gone, **link) ? &(*link)->left : &(*link)->right;
  block* low = gone.left;
  block* high = gone.right;
  while (low != nullptr && high != nullptr) {
    if (low->weight > high->weight) {
      *link = low;
      link = &low->right;
      low = *link;
    } else {
      *link = high;
      link = &high->left;
      high = *link;
    }
  }
  *link = low != nullptr ? low : high;
  gone.left = gone.right = nullptr;
  --size_;
}

block* size_tree::at_least(std::uint64_t size) const noexcept {
  block* match = nullptr;
  for (block* at = root_; at != nullptr;) {
    if (at->size >= size) {
      match = at;
      at = at->left;
    } else {
      at = at->right;
    }
  }
  return match;
}

block* size_tree::next(const block& member) const noexcept {
  block* match = nullptr;
  for (block* at = root_; at != nullptr;) {
    if (precedes(member, *at)) {
      match = at;
      at = at->left;
    } else {
      at = at->right;
    }
  }
  return match;
}

block* size_tree::largest() const noexcept {
  block* at = root_;
  while (at != nullptr && at->right != nullptr) at = at->right;
  return at;
}

}}}  // namespace weir::v0::host
