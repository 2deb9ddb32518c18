// SPDX-License-Identifier: Apache-2.0
// One stream-ordered memory pool: its attributes, who may access it, and its consistency check.
#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/pool.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult pool::get(CUmemPool_attribute attribute, void* value) const {
  const auto write = [&](auto content) {
    std::memcpy(value, &content, sizeof(content));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return write(int{follow_events_});
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return write(int{opportunistic_});
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return write(int{internal_waits_});
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return write(threshold_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return write(reserved_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return write(reserved_peak_);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return write(used_.current);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return write(used_.peak);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult pool::set(CUmemPool_attribute attribute, const void* value) {
  const auto as_flag = [&] {
    int content = 0;
    std::memcpy(&content, value, sizeof(content));
    return content != 0;
  };
  const auto as_size = [&] {
    std::uint64_t content = 0;
    std::memcpy(&content, value, sizeof(content));
    return content;
  };
  // A peak can only be reset, and then starts from the current value.
  const auto reset_peak = [&](std::uint64_t& peak, std::uint64_t current) {
    if (as_size() != 0) return CUDA_ERROR_INVALID_VALUE;
    peak = current;
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      follow_events_ = as_flag();
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      opportunistic_ = as_flag();
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      internal_waits_ = as_flag();
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      threshold_ = as_size();
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return reset_peak(reserved_peak_, reserved_);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return reset_peak(used_.peak, used_.current);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void pool::grant(int to, CUmemAccess_flags flags) {
  const CUmemAccess_flags before = std::exchange(rights_[static_cast<std::size_t>(to)], flags);
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].backed) continue;
    region& page = *machine_.space.find(base_ + i * pool_page);
    page.rights = rights_;
    machine_.space.check_revocation(page, to, before, flags, "mem_pool_set_access");
  }
}

CUmemAccess_flags pool::granted(int to) const {
  if (to >= 0) return rights_[static_cast<std::size_t>(to)];
  return device_ < 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

// --- For tests -----------------------------------------------------------------------------------

std::string pool::inconsistency() const {
  if (base_ == 0) return reserved_ == 0 && allocations_ == 0 ? "" : "memory without addresses";
  std::vector<std::uint64_t> busy(pages_.size(), 0);
  std::uint64_t at = base_;
  std::uint64_t live = 0;
  std::uint64_t requested = 0;
  std::size_t free_blocks = 0;
  for (const block* each = &blocks_->first(); each != nullptr; each = each->after) {
    if (each->address != at || each->size == 0) return "blocks leave a gap";
    if (each->after != nullptr && each->after->before != each) return "links disagree";
    if (blocks_->starting_at(each->address) != each) return "a block cannot be found";
    if (each->index != nullptr) ++free_blocks;
    if (each->index != nullptr && each->after != nullptr && each->after->index == each->index) {
      return "neighbours are not joined";
    }
    if (each->index == nullptr) {
      if (each->requested == 0 || each->requested > each->size) return "a block has a wrong size";
      ++live;
      requested += each->requested;
    }
    if (each->index != &settled_) {
      if (!backed(each->address, each->size)) return "a block in use has no memory";
      for (std::uint64_t from = each->address; from < each->end();) {
        const std::size_t index = (from - base_) / pool_page;
        const std::uint64_t to = std::min(each->end(), base_ + (index + 1) * pool_page);
        busy[index] += to - from;
        from = to;
      }
    }
    at = each->end();
  }
  if (at != base_ + address_space_) return "blocks do not reach the end";
  if (live != allocations_) return "allocations are miscounted";
  if (requested > used_.current) return "used is below what is live";
  std::size_t indexed = settled_.all().size();
  for (const auto& each : frees_) indexed += each->runs.all().size();
  if (indexed != free_blocks) return "an index has lost a block";
  std::uint64_t reserved = 0;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].busy != busy[i]) return "a page's busy bytes are miscounted";
    if (pages_[i].backed) reserved += pool_page;
  }
  if (reserved != reserved_) return "reserved is not what is mapped";
  if (reserved_peak_ < reserved_ || used_.peak < used_.current) return "a peak is too low";
  return {};
}

}}}  // namespace weir::v0::sim
