// SPDX-License-Identifier: Apache-2.0
// Setting the limits of a heap, and the shares that lower them.
#include "heap/heap_limits.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

result<void> heap_limits::set_limit(bytes most) {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  core_.own_limit_ = most.count();
  update(true);
  return {};
}

result<void> heap_limits::set_limit(tag tag, bytes most) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  core_.accounts_.set_limit(tag, most.count());
  host_.update_limits();
  core_.placement_.emit(
      {.kind = memory_event_kind::limit, .tag = tag.number(), .size = most.count()});
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> heap_limits::add_share(const void* holder, bytes ceiling, neighbourhood known) {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  neighbourhood latest = known;
  shares_.add({.holder = holder, .ceiling = ceiling.count(), .known = std::move(known)});
  std::swap(core_.neighbours_, latest);
  update(false);
  return {};
}

result<void> heap_limits::set_ceiling(const void* holder, bytes most) {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  shares_.set_ceiling(holder, most.count());
  update(false);
  return {};
}

void heap_limits::remove_share(const void* holder) noexcept {
  if (core_.home_->forked()) return;
  // What they hold goes without the lock.
  card_shares::share removed;
  neighbourhood latest;
  const detail::mutex_lock lock{core_.mutex_};
  removed = shares_.remove(holder);
  try {
    latest = shares_.latest();
  } catch (const std::bad_alloc&) {  // then nobody is known
  }
  std::swap(core_.neighbours_, latest);
  update(false);
}

std::vector<std::int32_t> heap_limits::members() const {
  const detail::mutex_lock lock{core_.mutex_};
  return shares_.members();
}

std::vector<card_shares::share> heap_limits::remove_all_shares() noexcept {
  core_.mutex_.assert_held();
  return shares_.remove_all();
}

void heap_limits::update(bool always_told) noexcept {
  const std::uint64_t most = std::min(core_.own_limit_, shares_.ceiling());
  if (most == core_.placement_.reserved_limit && !always_told) return;
  core_.placement_.reserved_limit = most;
  core_.limit_.store(most, std::memory_order_relaxed);
  core_.placement_.emit({.kind = memory_event_kind::limit, .size = most});
}

void heap_limits::tell(event_sink& sink) const noexcept {
  core_.mutex_.assert_held();
  const auto tell = [&](std::uint16_t tag, std::uint64_t most) {
    if (most == bytes::max().count()) return;
    sink.on_event(
        {.kind = memory_event_kind::limit, .tag = tag, .device = core_.device_.id(), .size = most});
  };
  tell(0, core_.placement_.reserved_limit);
  for (std::size_t i = 1; i < core_.accounts_.tags(); ++i) {
    const auto number = static_cast<std::uint16_t>(i);
    if (core_.accounts_.limited(number)) tell(number, core_.accounts_.limit(number));
  }
}

}}}  // namespace weir::v0::heap
