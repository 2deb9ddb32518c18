// Shares of a card's budget, and what they do to the limit of a heap.
#include "heap/card_shares.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

void card_shares::set_ceiling(const void* holder, std::uint64_t most) noexcept {
  for (share& each : shares_)
    if (each.holder == holder) each.ceiling = most;
}

card_shares::share card_shares::remove(const void* holder) noexcept {
  const auto entry = std::find_if(shares_.begin(), shares_.end(),
                                  [&](const share& each) { return each.holder == holder; });
  if (entry == shares_.end()) return {};
  share removed = std::move(*entry);
  shares_.erase(entry);
  return removed;
}

std::uint64_t card_shares::ceiling() const noexcept {
  std::uint64_t lowest = bytes::max().count();
  for (const share& each : shares_) lowest = std::min(lowest, each.ceiling);
  return lowest;
}

neighbourhood card_shares::latest() const {
  return shares_.empty() ? neighbourhood{} : shares_.back().known;
}

// --- The heap's side -----------------------------------------------------------------------------

result<void> central_heap::add_share(const void* holder, bytes ceiling, neighbourhood known) {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  neighbourhood latest = known;
  shares_.add({.holder = holder, .ceiling = ceiling.count(), .known = std::move(known)});
  std::swap(neighbours_, latest);
  update_limit(false);
  return {};
}

result<void> central_heap::set_ceiling(const void* holder, bytes most) {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  shares_.set_ceiling(holder, most.count());
  update_limit(false);
  return {};
}

void central_heap::remove_share(const void* holder) noexcept {
  if (home_->forked()) return;
  // What they hold goes without the lock.
  card_shares::share removed;
  neighbourhood latest;
  const detail::mutex_lock lock{mutex_};
  removed = shares_.remove(holder);
  try {
    latest = shares_.latest();
  } catch (const std::bad_alloc&) {  // then nobody is known
  }
  std::swap(neighbours_, latest);
  update_limit(false);
}

void central_heap::update_limit(bool always_told) noexcept {
  const std::uint64_t most = std::min(own_limit_, shares_.ceiling());
  if (most == placement_.reserved_limit && !always_told) return;
  placement_.reserved_limit = most;
  limit_.store(most, std::memory_order_relaxed);
  placement_.emit({.kind = memory_event_kind::limit, .size = most});
}

}}}  // namespace weir::v0::heap
