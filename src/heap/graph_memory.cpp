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

void graph_memory::end_capture() noexcept {
  const auto owner = state_ == nullptr ? nullptr : state_->owner.lock();
  if (owner != nullptr) owner->captures().end(*state_);
}

result<void> graph_memory::tie_to_graph(driver::CUgraph graph) const {
  const auto owner = state_ == nullptr ? nullptr : state_->owner.lock();
  if (owner == nullptr) return state_ == nullptr ? errc::moved_from : errc::closed;
  return owner->captures().tie_to_graph(*state_, graph);
}

memory_pool graph_memory::pool() const {
  if (state_ == nullptr) raise(errc::moved_from);
  const auto owner = state_ == nullptr ? nullptr : state_->owner.lock();
  return owner == nullptr ? memory_pool{} : memory_pool{owner->pools().share(state_->pool)};
}

capture_guard::~capture_guard() { close(); }

void capture_guard::close() noexcept {
  if (const auto owner = owner_.lock()) owner->captures().end_notice();
  owner_.reset();
}

capture_guard& capture_guard::operator=(capture_guard&& other) noexcept {
  if (this == &other) return *this;
  close();
  owner_ = std::move(other.owner_);
  return *this;
}

}}  // namespace weir::v0
