// SPDX-License-Identifier: Apache-2.0
// Passes the questions of other components to the parts of the heap.
#include "heap/heap_view.hpp"

#include <utility>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

result<std::shared_ptr<central_heap>> create_heap(weir::device device,
                                                  const allocator_options& options) {
  return central_heap::create(device, options);
}

central_heap& heap_of(const caching_allocator& allocator) noexcept {
  return central_heap::of(allocator);
}

heap_view::heap_view(std::shared_ptr<central_heap> heap) noexcept : heap_{std::move(heap)} {}

heap_view::heap_view(const caching_allocator& allocator)
    : heap_{heap_of(allocator).shared_from_this()} {}

std::vector<tag_stats> heap_view::stats_by_tag() const {
  return heap_->inspection().stats_by_tag();
}

allocator_snapshot heap_view::snapshot() const { return heap_->inspection().snapshot(); }

bytes heap_view::reserved() const { return heap_->inspection().reserved(); }

bytes heap_view::limit() const noexcept { return heap_->limits().limit(); }

result<bytes> heap_view::shrink(bytes keep) const { return heap_->trimming().shrink(keep); }

result<void> heap_view::add_share(const void* holder, bytes ceiling, neighbourhood known) const {
  return heap_->limits().add_share(holder, ceiling, std::move(known));
}

result<void> heap_view::set_ceiling(const void* holder, bytes most) const {
  return heap_->limits().set_ceiling(holder, most);
}

void heap_view::remove_share(const void* holder) const noexcept {
  heap_->limits().remove_share(holder);
}

std::vector<std::int32_t> heap_view::members() const { return heap_->limits().members(); }

std::weak_ptr<const void> heap_view::events() const noexcept { return heap_->events(); }

const search_trail& heap_view::trail() const noexcept { return heap_->trail(); }

weak_heap_view::weak_heap_view(const caching_allocator& allocator) noexcept
    : heap_{heap_of(allocator).weak_from_this()} {}

}}}  // namespace weir::v0::heap
