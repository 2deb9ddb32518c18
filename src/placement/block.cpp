// SPDX-License-Identifier: Apache-2.0
// Records in a stretch of addresses, and their free lists.
#include "placement/block.hpp"

#include <sys/mman.h>

#include <memory>

namespace weir { inline namespace v0 { namespace placement {

block_store::block_store() noexcept {
  // Addresses alone: they count against no limit but one on addresses, and where there is such a
  // limit, fewer will do.
  for (std::size_t records = most_records; records >= per_chunk; records /= 2) {
    void* const stretch = mmap(nullptr, records * sizeof(block), PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stretch == MAP_FAILED) continue;
    records_ = static_cast<block*>(stretch);
    room_ = records;
    return;
  }
}

block_store::~block_store() {
  if (records_ != nullptr) munmap(records_, room_ * sizeof(block));
}

bool block_store::add_chunks(std::size_t count) noexcept {
  while (free_count_ < count) {
    if (room_ - count_ < per_chunk) return false;
    block* const chunk = records_ + count_;
    if (mprotect(chunk, per_chunk * sizeof(block), PROT_READ | PROT_WRITE) != 0) return false;
    std::uninitialized_default_construct_n(chunk, per_chunk);
    const auto first = static_cast<block_index>(count_);
    count_ += per_chunk;
    for (auto i = static_cast<block_index>(count_); i-- > first;) {
      if (i == no_block) break;  // the record that stands for none
      (*this)[i].after = free_[i % 2];
      free_[i % 2] = i;
      ++free_count_;
    }
  }
  return true;
}

void block_store::recycle(block_index index) noexcept {
  block& old = (*this)[index];
  old.become(block_kind::unused);
  old.address = 0;
  old.units = 0;
  old.before = no_block;
  old.stream = no_stream;
  old.account = 0;
  old.in = {};
  old.after = free_[index % 2];
  free_[index % 2] = index;
  ++free_count_;
  --in_use_;
}

}}}  // namespace weir::v0::placement
