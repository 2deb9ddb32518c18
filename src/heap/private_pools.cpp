// SPDX-License-Identifier: Apache-2.0
// Which pool a handle and a scope name, and when a pool's memory may go.
#include "heap/private_pools.hpp"

#include <algorithm>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

pool::~pool() {
  if (const auto allocator = owner_.lock()) allocator->pools().release(id_);
}

bool pool_state::may_release(const order::stream_order& order) const noexcept {
  if (where != residence::resident) return false;
  if (!of_graphs()) return true;
  if (for_graphs && blocks != 0) return false;
  return holders == 0 && !guards_due && std::all_of(guards.begin(), guards.end(), [&](stamp each) {
           return order.completed(each);
         });
}

bool pool::is_of(const central_heap& candidate) const noexcept {
  return !owner_.owner_before(candidate.weak_from_this()) &&
         !candidate.weak_from_this().owner_before(owner_);
}

const pool_scope*& innermost_scope() noexcept {
  thread_local constinit const pool_scope* now = nullptr;
  return now;
}

}}}  // namespace weir::v0::heap
