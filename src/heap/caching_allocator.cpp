// SPDX-License-Identifier: Apache-2.0
// The public face of the central heap, with the fast path inlined into it.
#include "weir/allocator/caching_allocator.hpp"

#include <cmath>
#include <new>
#include <type_traits>
#include <utility>

#include "base/host_memory.hpp"
#include "heap/fast_path.hpp"
#include "heap/summary.hpp"
#include "heap/throw_failure.hpp"

namespace weir { inline namespace v0 {
namespace {

constexpr bytes plain_alignment = default_alignment;
static_assert(allocator_granularity == bytes{heap::unit});
static_assert(plain_alignment <= allocator_granularity);
/// What a thread's cache keeps in lists by size.
constexpr bytes largest_by_size = heap::to_bytes(heap::most_binned_units);

/// What accessors need that return no result.
heap::central_heap& usable(const std::shared_ptr<heap::central_heap>& heap) {
  if (heap == nullptr) raise(errc::moved_from);
  return *heap;
}

// Out of line, so that the fast path in front of them needs no frame.

[[gnu::noinline]] void* allocate_or_throw(heap::central_heap* heap, bytes size,
                                          const stream_ref& stream, bytes alignment) {
  if (heap == nullptr) raise(errc::moved_from);
  if (alignment == plain_alignment) {
    void* hit = heap->fast_allocate<heap::thread_cache::observed>(size, stream);
    if (hit == nullptr) hit = heap->allocate_without_driver(size, stream);
    if (hit != nullptr) return hit;
  }
  auto block = heap->slow_allocate(size, stream, alignment, nullptr);
  if (!block) heap::throw_failure(*heap, std::move(block).error(), size, stream);
  return *block;
}

[[gnu::noinline]] void free_or_report(heap::central_heap* heap, void* pointer,
                                      const stream_ref* stream, bytes expected) noexcept {
  using heap::thread_cache;
  if (heap != nullptr && expected == heap::any_size &&
      (stream != nullptr
           ? heap->fast_free<thread_cache::observed>(pointer, *stream)
           : heap->fast_free<thread_cache::observed>(pointer, heap::allocation_stream{})))
    return;
  if (heap != nullptr && heap->free_without_driver(pointer, stream, expected)) return;
  detail::report_failure(heap == nullptr ? result<void>{errc::moved_from}
                                         : heap->slow_free(pointer, stream, expected));
}

// Blocks above 1 MiB: leaves that need no frame, either.

[[gnu::noinline]] void* allocate_large_or_throw(heap::central_heap* heap, bytes size,
                                                const stream_ref& stream) {
  void* const hit = heap->take_large(size, stream);
  return hit != nullptr ? hit : allocate_or_throw(heap, size, stream, plain_alignment);
}

template <class Stream>
[[gnu::noinline]] void free_large_or_report(heap::central_heap* heap, void* pointer,
                                            const Stream& stream) noexcept {
  if (heap->keep_large(pointer, stream)) return;
  if constexpr (std::is_same_v<Stream, stream_ref>) {
    free_or_report(heap, pointer, &stream, heap::any_size);
  } else {
    free_or_report(heap, pointer, nullptr, heap::any_size);
  }
}

}  // namespace

// --- Requests and frees -------------------------------------------------------------------------

void* caching_allocator::allocate(bytes size, const stream_ref& stream, bytes alignment) const {
  heap::central_heap* const heap = heap_.get();
  if (heap != nullptr && alignment == plain_alignment) [[likely]] {
    void* const hit = heap->fast_allocate(size, stream);
    if (hit != nullptr) [[likely]]
      return hit;
    if (size > largest_by_size) return allocate_large_or_throw(heap, size, stream);
  }
  return allocate_or_throw(heap, size, stream, alignment);
}

result<void*> caching_allocator::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) const {
  heap::central_heap* const heap = heap_.get();
  if (heap == nullptr) return errc::moved_from;
  if (alignment == plain_alignment) [[likely]] {
    void* hit = heap->fast_allocate(size, stream);
    if (hit == nullptr && size > largest_by_size) hit = heap->take_large(size, stream);
    if (hit == nullptr) [[unlikely]]
      hit = heap->allocate_without_driver(size, stream);
    if (hit != nullptr) [[likely]]
      return hit;
  }
  return heap->slow_allocate(size, stream, alignment, nullptr);
}

result<void*> caching_allocator::try_allocate_cached(bytes size, const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  WEIR_TRY(heap_->usable());
  if (stream.device() != heap_->device()) return errc::bad_stream;
  if (size == bytes{}) return nullptr;
  WEIR_TRY(rounded_size(size));
  WEIR_TRY_VALUE(known, stream.identified());
  void* hit = heap_->fast_allocate(size, known);
  if (hit == nullptr && size > largest_by_size) hit = heap_->take_large(size, known);
  if (hit == nullptr) hit = heap_->allocate_without_driver(size, known);
  if (hit == nullptr) return error{{.code = errc::not_found, .requested = size}};
  return hit;
}

void caching_allocator::deallocate(void* pointer, const stream_ref& stream) const noexcept {
  heap::central_heap* const heap = heap_.get();
  if (heap != nullptr) [[likely]] {
    if (heap->fast_free(pointer, stream)) [[likely]]
      return;
    return free_large_or_report(heap, pointer, stream);
  }
  free_or_report(heap, pointer, &stream, heap::any_size);
}

void caching_allocator::deallocate(void* pointer, bytes size,
                                   const stream_ref& stream) const noexcept {
  free_or_report(heap_.get(), pointer, &stream, size);
}

void caching_allocator::deallocate(void* pointer) const noexcept {
  heap::central_heap* const heap = heap_.get();
  if (heap != nullptr) [[likely]] {
    if (heap->fast_free(pointer, heap::allocation_stream{})) [[likely]]
      return;
    return free_large_or_report(heap, pointer, heap::allocation_stream{});
  }
  free_or_report(heap, pointer, nullptr, heap::any_size);
}

result<void> caching_allocator::try_deallocate(void* pointer, const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  if (heap_->fast_free(pointer, stream) || heap_->keep_large(pointer, stream) ||
      heap_->free_without_driver(pointer, &stream, heap::any_size)) [[likely]]
    return {};
  return heap_->slow_free(pointer, &stream, heap::any_size);
}

result<void> caching_allocator::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->slow_free(pointer, &stream, size);
}

result<void> caching_allocator::try_deallocate(void* pointer) const {
  if (heap_ == nullptr) return errc::moved_from;
  if (heap_->fast_free(pointer, heap::allocation_stream{}) ||
      heap_->keep_large(pointer, heap::allocation_stream{}) ||
      heap_->free_without_driver(pointer, nullptr, heap::any_size)) [[likely]]
    return {};
  return heap_->slow_free(pointer, nullptr, heap::any_size);
}

result<void> caching_allocator::record_stream(void* pointer, const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->record_stream(pointer, stream);
}

result<bool> caching_allocator::assume_joined(const void* freed) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->assume_joined(freed);
}

result<bytes> caching_allocator::rounded_size(bytes size) {
  const std::uint64_t units = heap::units_for(size);
  if (units > heap::most_units) return error{{.code = errc::size_overflow, .requested = size}};
  return heap::to_bytes(units);
}

result<bytes> caching_allocator::size_of(const void* pointer) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->inspection().size_of(pointer);
}

result<block_info> caching_allocator::block_at(const void* pointer) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->inspection().block_at(pointer);
}

result<std::string> caching_allocator::describe_address(const void* pointer) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->inspection().describe_address(pointer);
}

result<block_handles> caching_allocator::handles_under(const void* pointer) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->pools().handles_under(pointer);
}

result<void> caching_allocator::enable_peer(weir::device other) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->peers().enable(other);
}

// --- The rest -----------------------------------------------------------------------------------

caching_allocator::operator bool() const noexcept {
  return heap_ != nullptr && heap_->usable().has_value();
}

weir::device caching_allocator::device() const { return usable(heap_).device(); }

result<void> caching_allocator::close() const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->close();
}

memory_stats caching_allocator::stats() const { return usable(heap_).inspection().stats(); }
memory_stats caching_allocator::stats(weir::tag tag) const {
  return usable(heap_).inspection().stats(tag);
}
std::vector<tag_stats> caching_allocator::stats_by_tag() const {
  return usable(heap_).inspection().stats_by_tag();
}
void caching_allocator::reset_peaks() const { usable(heap_).inspection().reset_peaks(); }
void caching_allocator::reset_counters() const { usable(heap_).inspection().reset_counters(); }
allocator_snapshot caching_allocator::snapshot() const {
  return usable(heap_).inspection().snapshot();
}
memory_report caching_allocator::explain(bytes size, const stream_ref& stream) const {
  return usable(heap_).inspection().explain(size, stream);
}

result<bytes> caching_allocator::trim(bytes keep) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->trimming().trim(keep);
}
result<bytes> caching_allocator::shrink(bytes keep) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->trimming().shrink(keep);
}
result<bytes> caching_allocator::empty_cache(pool_id pool) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->trimming().empty_cache(pool);
}
result<bytes> caching_allocator::empty_cache() const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->trimming().empty_cache();
}
result<void> caching_allocator::release_stream(const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->release_stream(stream);
}

result<void> caching_allocator::declare_suspendable(weir::tag tag,
                                                    const suspendable_options& options) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().declare_suspendable(tag, options);
}
result<suspend_outcome> caching_allocator::suspend(weir::tag tag,
                                                   const suspend_options& options) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().suspend(tag, options);
}
result<suspend_outcome> caching_allocator::suspend(const suspend_options& options) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().suspend(heap::residency::all_pools{}, options);
}
result<resume_outcome> caching_allocator::resume(weir::tag tag,
                                                 const resume_options& options) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().resume(tag, options);
}
result<resume_outcome> caching_allocator::resume(const resume_options& options) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().resume(heap::residency::all_pools{}, options);
}
result<void> caching_allocator::suspend_async(weir::tag tag, const suspend_options& options) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().suspend_async(tag, options);
}
result<void> caching_allocator::suspend_async(const suspend_options& options) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().suspend_async(heap::residency::all_pools{}, options);
}
result<resume_outcome> caching_allocator::resume_async(weir::tag tag,
                                                       const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().resume_async(tag, stream);
}
result<resume_outcome> caching_allocator::resume_async(const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->residency().resume_async(heap::residency::all_pools{}, stream);
}
bool caching_allocator::is_suspended(weir::tag tag) const {
  const auto suspended = usable(heap_).residency().is_suspended(tag);
  return suspended && *suspended;
}
result<void> caching_allocator::reserve_backup(bytes size, host_memory_kind kind) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->backup().reserve(size, kind);
}
result<bytes> caching_allocator::trim_backup() const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->backup().trim();
}

result<void> caching_allocator::set_limit(bytes limit) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->limits().set_limit(limit);
}
result<void> caching_allocator::set_limit_fraction(double fraction) const {
  if (heap_ == nullptr) return errc::moved_from;
  if (!(fraction > 0 && fraction <= 1)) {
    return error{{.code = errc::invalid_argument,
                  .detail = "the fraction must be greater than 0 and at most 1"}};
  }
  const auto total = static_cast<double>(device().total_memory().count());
  return heap_->limits().set_limit(bytes{static_cast<std::uint64_t>(std::floor(total * fraction))});
}
bytes caching_allocator::limit() const { return usable(heap_).limits().limit(); }
result<void> caching_allocator::set_limit(weir::tag tag, bytes limit) const {
  if (heap_ == nullptr) return errc::moved_from;
  return heap_->limits().set_limit(tag, limit);
}

result<memory_pool> caching_allocator::create_pool(std::string_view name,
                                                   pool_options options) const {
  if (heap_ == nullptr) return errc::moved_from;
  WEIR_TRY_VALUE(pool, heap_->pools().create(name, std::move(options)));
  return memory_pool{std::move(pool)};
}

result<graph_memory> caching_allocator::begin_capture(const stream_ref& stream) const {
  if (heap_ == nullptr) return errc::moved_from;
  WEIR_TRY_VALUE(claim, heap_->captures().begin(stream));
  return graph_memory{std::move(claim)};
}

result<capture_guard> caching_allocator::guard_captures() const {
  if (heap_ == nullptr) return errc::moved_from;
  WEIR_TRY(heap_->usable());
  heap_->captures().begin_notice();
  return capture_guard{heap_};
}

result<callback_registration> caching_allocator::on_out_of_memory(
    out_of_memory_callback callback) const try {
  if (heap_ == nullptr) return errc::moved_from;
  if (!callback) return errc::invalid_argument;
  WEIR_TRY(heap_->usable());
  const std::uint64_t key = heap_->callbacks().add(std::move(callback));
  if (key == 0) return errc::closed;
  return callback_registration{heap_, key};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<callback_registration> caching_allocator::before_growth(
    out_of_memory_callback callback) const try {
  if (heap_ == nullptr) return errc::moved_from;
  if (!callback) return errc::invalid_argument;
  WEIR_TRY(heap_->usable());
  const std::uint64_t key = heap_->callbacks().add_before_growth(std::move(callback));
  if (key == 0) return errc::closed;
  return callback_registration{heap_, key};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<observer_registration> caching_allocator::add_observer(event_sink& sink) const try {
  if (heap_ == nullptr) return errc::moved_from;
  WEIR_TRY(heap_->usable());
  auto all = heap_->observation().add(sink);
  if (all == nullptr) return errc::closed;
  return observer_registration{heap_, std::move(all), &sink};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

std::string to_string(const caching_allocator& allocator) {
  if (!allocator) return "caching_allocator, closed or moved from";
  return "caching_allocator of device " + std::to_string(allocator.device().id().number()) + ": " +
         heap::summary(allocator.stats());
}

// --- Registrations ------------------------------------------------------------------------------

callback_registration::~callback_registration() { close(); }

void callback_registration::close() noexcept {
  if (const auto owner = owner_.lock(); owner && key_ != 0) owner->callbacks().remove(key_);
  owner_.reset();
  key_ = 0;
}

callback_registration::callback_registration(callback_registration&& other) noexcept
    : owner_{std::move(other.owner_)}, key_{std::exchange(other.key_, 0)} {}

callback_registration& callback_registration::operator=(callback_registration&& other) noexcept {
  if (this == &other) return *this;
  close();
  owner_ = std::move(other.owner_);
  key_ = std::exchange(other.key_, 0);
  return *this;
}

observer_registration::~observer_registration() { close(); }

observer_registration::observer_registration(observer_registration&& other) noexcept
    : owner_{std::move(other.owner_)},
      all_{std::move(other.all_)},
      sink_{std::exchange(other.sink_, nullptr)} {}

observer_registration& observer_registration::operator=(observer_registration&& other) noexcept {
  if (this == &other) return *this;
  close();
  owner_ = std::move(other.owner_);
  all_ = std::move(other.all_);
  sink_ = std::exchange(other.sink_, nullptr);
  return *this;
}

void observer_registration::close() noexcept {
  event_sink* const sink = std::exchange(sink_, nullptr);
  if (sink == nullptr) return;
  if (const auto owner = owner_.lock()) {
    owner->observation().remove(*sink);
  } else {
    all_->remove_late(*sink);
  }
  all_.reset();
}

}}  // namespace weir::v0
