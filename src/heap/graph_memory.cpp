// SPDX-License-Identifier: Apache-2.0
// The public face of memory for captured graphs.
#include "weir/allocator/graph_memory.hpp"

#include <utility>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 {

graph_memory::~graph_memory() = default;

graph_memory& graph_memory::operator=(graph_memory&& other) noexcept {
  state_ = std::move(other.state_);
  return *this;
}

void graph_memory::end() noexcept {
  const auto owner = state_ == nullptr ? nullptr : state_->owner.lock();
  if (owner != nullptr) owner->captures().end(*state_);
}

result<void> graph_memory::keep_with(driver::CUgraph graph) const {
  const auto owner = state_ == nullptr ? nullptr : state_->owner.lock();
  if (owner == nullptr) return state_ == nullptr ? errc::moved_from : errc::closed;
  return owner->captures().keep_with(*state_, graph);
}

memory_pool graph_memory::pool() const noexcept {
  const auto owner = state_ == nullptr ? nullptr : state_->owner.lock();
  return owner == nullptr ? memory_pool{} : memory_pool{owner->pools().share(state_->pool)};
}

capture_notice::~capture_notice() {
  if (const auto owner = owner_.lock()) owner->captures().end_notice();
}

capture_notice& capture_notice::operator=(capture_notice&& other) noexcept {
  if (this == &other) return *this;
  if (const auto owner = owner_.lock()) owner->captures().end_notice();
  owner_ = std::move(other.owner_);
  return *this;
}

}}  // namespace weir::v0
