// The face of the pools that keep freed blocks, and the two places where blocks come from.
#include "weir/pool/block_pool.hpp"

#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/driver/table.hpp"

namespace weir::inline v0 {

namespace pools {

const block_source plain_memory{
    .obtain = [](const context_scope& bound, bytes size) -> result<std::uint64_t> {
      WEIR_TRY_VALUE(base, allocate_plain(bound, size));
      return std::uint64_t{base};
    },
    .give_back = [](const context_scope& bound, std::uint64_t base) -> result<void> {
      return free_plain(bound, base);
    },
    .host_touches = false};

const block_source pinned_memory{
    .obtain = [](const context_scope& bound, bytes size) -> result<std::uint64_t> {
      if (!bound) return bound.error();
      void* base = nullptr;
      WEIR_TRY(driver::check(
          driver::call::mem_host_alloc,
          bound.driver().mem_host_alloc(
              &base, size.count(), driver::host_alloc_portable | driver::host_alloc_device_map),
          size));
      return reinterpret_cast<std::uintptr_t>(base);
    },
    .give_back = [](const context_scope& bound, std::uint64_t base) -> result<void> {
      if (!bound) return bound.error();
      return driver::check(driver::call::mem_free_host,
                           bound.driver().mem_free_host(reinterpret_cast<void*>(base)));
    },
    .host_touches = true};

}  // namespace pools

namespace {

/// A handle that was moved from answers like a pool that is gone.
template <class Call>
auto with(const std::shared_ptr<pools::block_cache>& inside, const Call& call)
    -> decltype(call(*inside)) {
  if (inside == nullptr) return errc::already_freed;
  return pools::guarded([&] { return call(*inside); });
}

}  // namespace

result<void*> block_pool::try_allocate(bytes size, const stream_ref& stream,
                                       bytes alignment) const {
  return with(inside_, [&](auto& in) { return in.allocate(size, stream, alignment); });
}

void block_pool::deallocate(void* pointer, const stream_ref& stream) const noexcept {
  detail::report_failure(try_deallocate(pointer, stream));
}

void block_pool::deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept {
  detail::report_failure(try_deallocate(pointer, size, stream));
}

void block_pool::deallocate(void* pointer) const noexcept {
  detail::report_failure(try_deallocate(pointer));
}

result<void> block_pool::try_deallocate(void* pointer, const stream_ref& stream) const {
  return try_deallocate(pointer, detail::any_size, stream);
}

result<void> block_pool::try_deallocate(void* pointer, bytes size, const stream_ref& stream) const {
  return with(inside_, [&](auto& in) { return in.deallocate(pointer, size, &stream); });
}

result<void> block_pool::try_deallocate(void* pointer) const {
  return with(inside_, [&](auto& in) { return in.deallocate(pointer, detail::any_size, nullptr); });
}

result<void> block_pool::record_stream(void* pointer, const stream_ref& stream) const {
  return with(inside_, [&](auto& in) { return in.record_stream(pointer, stream); });
}

result<void> block_pool::release_stream(const stream_ref& stream) const {
  return with(inside_, [&](auto& in) { return in.release_stream(stream); });
}

weir::device block_pool::device() const noexcept { return inside_->device(); }

block_pool_stats block_pool::stats() const {
  return inside_ != nullptr ? inside_->stats() : block_pool_stats{};
}

void block_pool::reset_peaks() const {
  if (inside_ != nullptr) inside_->reset_peaks();
}

result<bytes> block_pool::rounded(bytes size) { return pools::block_size(size); }

result<bytes> block_pool::trim(bytes keep) const {
  return with(inside_, [&](auto& in) { return in.trim(keep); });
}

result<void> block_pool::set_threshold(bytes most) const {
  return with(inside_, [&](auto& in) { return in.set_threshold(most); });
}

bytes block_pool::threshold() const { return inside_ != nullptr ? inside_->threshold() : bytes{}; }

result<void> block_pool::close() const {
  return with(inside_, [&](auto& in) { return in.close(); });
}

}  // namespace weir::inline v0
