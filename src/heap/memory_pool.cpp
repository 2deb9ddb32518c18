// SPDX-License-Identifier: Apache-2.0
// The public face of private pools.
#include "weir/allocator/memory_pool.hpp"

#include <utility>

#include "heap/summary.hpp"
#include "heap/throw_failure.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 {
namespace {

std::shared_ptr<heap::central_heap> owner_of(const std::shared_ptr<heap::pool>& pool) noexcept {
  return pool == nullptr ? nullptr : pool->owner();
}

/// Why there is no owner.
error gone(const std::shared_ptr<heap::pool>& pool) {
  return error{pool == nullptr ? errc::moved_from : errc::closed};
}

/// What accessors need that return no result.
std::shared_ptr<heap::central_heap> usable(const std::shared_ptr<heap::pool>& pool) {
  auto owner = owner_of(pool);
  if (owner == nullptr) raise(gone(pool));
  return owner;
}

}  // namespace

result<bytes> segment_size(bytes size) {
  using namespace segment_rules;
  const std::uint64_t units = heap::units_for(size);
  if (units > heap::most_units) return error{{.code = errc::size_overflow, .requested = size}};
  const bytes rounded = heap::to_bytes(units);
  if (rounded == bytes{}) return rounded;
  if (rounded <= small_request) return small_segment;
  if (rounded < own_segment_from) return large_segment;
  return *checked_round_up(rounded, own_segment_unit);
}

pool_id memory_pool::id() const {
  if (state_ == nullptr) raise(errc::moved_from);
  return state_->id();
}
std::string_view memory_pool::name() const {
  if (state_ == nullptr) raise(errc::moved_from);
  return state_->name();
}

memory_stats memory_pool::stats() const { return usable(state_)->inspection().stats(state_->id()); }

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
  const auto owner = usable(state_);
  const auto suspended = owner->residency().is_suspended(state_->id());
  return suspended && *suspended;
}

pool_snapshot memory_pool::snapshot() const {
  return usable(state_)->inspection().snapshot(state_->id());
}

std::string to_string(const memory_pool& pool) {
  if (!pool) return "memory_pool, empty";
  return "memory_pool \"" + std::string{pool.name()} + "\": " + heap::summary(pool.stats());
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
