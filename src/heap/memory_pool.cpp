// SPDX-License-Identifier: Apache-2.0
// The public face of private pools.
#include "weir/allocator/memory_pool.hpp"

#include <utility>

#include "heap/throw_failure.hpp"

namespace weir { inline namespace v0 {
namespace {

std::shared_ptr<heap::central_heap> owner_of(const std::shared_ptr<heap::pool>& pool) noexcept {
  return pool == nullptr ? nullptr : pool->owner();
}

/// Why there is no owner.
error gone(const std::shared_ptr<heap::pool>& pool) {
  return {.code = pool == nullptr ? errc::moved_from : errc::closed};
}

}  // namespace

pool_id memory_pool::id() const noexcept { return state_ == nullptr ? pool_id{} : state_->id(); }
std::string_view memory_pool::name() const noexcept {
  return state_ == nullptr ? std::string_view{} : std::string_view{state_->name()};
}

memory_stats memory_pool::stats() const {
  const auto owner = owner_of(state_);
  return owner == nullptr ? memory_stats{} : owner->inspection().stats(state_->id());
}

void* memory_pool::allocate(bytes size, const stream_ref& stream, bytes alignment) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) raise(gone(state_));
  auto block = owner->slow_allocate(size, stream, alignment, state_.get());
  if (!block) heap::throw_failure(*owner, std::move(block).error(), size, stream);
  return *block;
}

result<void*> memory_pool::try_allocate(bytes size, const stream_ref& stream,
                                        bytes alignment) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->slow_allocate(size, stream, alignment, state_.get());
}

result<block_handles> memory_pool::handles_under(const void* pointer) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->pools().handles_under(pointer, state_->id());
}

result<void*> memory_pool::allocate_at(void* address, bytes size, const stream_ref& stream) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->allocate_at(reinterpret_cast<std::uint64_t>(address), size, stream, *state_);
}

result<bytes> memory_pool::empty_cache() const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->trimming().empty_cache(state_->id());
}

result<void> memory_pool::set_fallback(bool value) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->pools().set_fallback(state_->id(), value);
}

result<suspend_outcome> memory_pool::suspend(const suspend_options& options) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->residency().suspend(state_->id(), options);
}

result<resume_outcome> memory_pool::resume(const resume_options& options) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->residency().resume(state_->id(), options);
}

result<void> memory_pool::suspend_async(const suspend_options& options) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->residency().suspend_async(state_->id(), options);
}

result<resume_outcome> memory_pool::resume_async(const stream_ref& stream) const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return gone(state_);
  return owner->residency().resume_async(state_->id(), stream);
}

bool memory_pool::is_suspended() const {
  const auto owner = owner_of(state_);
  if (owner == nullptr) return false;
  const auto suspended = owner->residency().is_suspended(state_->id());
  return suspended && *suspended;
}

pool_snapshot memory_pool::snapshot() const {
  const auto owner = owner_of(state_);
  return owner == nullptr ? pool_snapshot{} : owner->inspection().snapshot(state_->id());
}

pool_scope::pool_scope(memory_pool pool) noexcept
    : pool_{std::move(pool)}, outer_{heap::innermost_scope()} {
  heap::innermost_scope() = this;
  heap::this_thread.stop_serving();  // the fast path does not look where requests go
}

pool_scope::~pool_scope() {
  heap::innermost_scope() = outer_;
  heap::this_thread.stop_serving();
}

}}  // namespace weir::v0
