// Chunks of records and their free lists.
#include "heap/block.hpp"

#include <new>

namespace weir::inline v0::heap {

bool block_store::add_chunks(std::size_t count) noexcept {
  while (free_count_ < count) {
    if (owned_.size() == most_chunks) return false;
    try {
      owned_.push_back(std::make_unique<block[]>(per_chunk));
    } catch (const std::bad_alloc&) {
      return false;
    }
    const auto chunk = static_cast<block_index>(owned_.size() - 1);
    chunks_[chunk].store(owned_.back().get(), std::memory_order_release);
    const block_index first = chunk * per_chunk;
    for (block_index i = first + per_chunk; i-- > first;) {
      if (i == no_block) break;  // the record that stands for none
      (*this)[i].after = free_[i % 2];
      free_[i % 2] = i;
      ++free_count_;
    }
  }
  return true;
}

void block_store::recycle(block_index which) noexcept {
  block& old = (*this)[which];
  old.become(block_kind::unused);
  old.address = 0;
  old.units = 0;
  old.before = no_block;
  old.stream = nobody;
  old.recorded = false;
  old.account = 0;
  old.in = {};
  old.after = free_[which % 2];
  free_[which % 2] = which;
  ++free_count_;
  --in_use_;
}

}  // namespace weir::inline v0::heap
