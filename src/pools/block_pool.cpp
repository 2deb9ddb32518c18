// SPDX-License-Identifier: Apache-2.0
// The handle of the pools that cache freed blocks.
#include "weir/pool/block_pool.hpp"

#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"
#include "pools/memory_home.hpp"

namespace weir { inline namespace v0 {

namespace {

template <class Call>
auto with(const std::shared_ptr<pools::block_cache>& state, const Call& call)
    -> decltype(call(*state)) {
  if (state == nullptr) return errc::moved_from;
  return pools::guarded([&] { return call(*state); });
}

/// What accessors need that return no result.
pools::block_cache& usable(const std::shared_ptr<pools::block_cache>& state) {
  if (state == nullptr) raise(errc::moved_from);
  return *state;
}

}  // namespace

result<void*> block_pool::try_allocate(bytes size, const stream_ref& stream,
                                       bytes alignment) const {
  return with(state_, [&](auto& cache) { return cache.allocate(size, stream, alignment); });
}

void block_pool::deallocate(void* pointer, const stream_ref& stream) const noexcept {
  pools::report_failed_free(try_deallocate(pointer, stream), pointer, detail::any_size);
}

void block_pool::deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept {
  pools::report_failed_free(try_deallocate(pointer, size, stream), pointer, size);
}

void block_pool::deallocate(void* pointer) const noexcept {
  pools::report_failed_free(try_deallocate(pointer), pointer, detail::any_size);
}

result<void> block_pool::try_deallocate(void* pointer, const stream_ref& stream) const {
  return try_deallocate(pointer, detail::any_size, stream);
}

result<void> block_pool::try_deallocate(void* pointer, bytes size, const stream_ref& stream) const {
  return with(state_, [&](auto& cache) { return cache.deallocate(pointer, size, &stream); });
}

result<void> block_pool::try_deallocate(void* pointer) const {
  return with(state_,
              [&](auto& cache) { return cache.deallocate(pointer, detail::any_size, nullptr); });
}

result<void> block_pool::record_stream(void* pointer, const stream_ref& stream) const {
  return with(state_, [&](auto& cache) { return cache.record_stream(pointer, stream); });
}

result<void> block_pool::release_stream(const stream_ref& stream) const {
  return with(state_, [&](auto& cache) { return cache.release_stream(stream); });
}

weir::device block_pool::device() const { return usable(state_).device(); }

result<bytes> block_pool::rounded_size(bytes size) { return pools::block_size(size); }

block_pool_stats block_pool::stats() const { return usable(state_).stats(); }

void block_pool::reset_peaks() const { usable(state_).reset_peaks(); }

void block_pool::reset_counters() const { usable(state_).reset_counters(); }

result<bytes> block_pool::trim(bytes keep) const {
  return with(state_, [&](auto& cache) { return cache.trim(keep); });
}

result<bytes> block_pool::empty_cache() const {
  return with(state_, [&](auto& cache) { return cache.empty_cache(); });
}

result<void> block_pool::set_threshold(bytes limit) const {
  return with(state_, [&](auto& cache) { return cache.set_threshold(limit); });
}

bytes block_pool::threshold() const { return usable(state_).threshold(); }

result<void> block_pool::close() const {
  return with(state_, [&](auto& cache) { return cache.close(); });
}

}}  // namespace weir::v0
