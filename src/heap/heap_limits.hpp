// SPDX-License-Identifier: Apache-2.0
// The limits of a heap: the user's own, those of tags, and the shares of the card's budget.
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.hpp"
#include "heap/card_shares.hpp"
#include "heap/heap_core.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What the limits ask of the heap. Implemented by the central heap. Called with the heap's lock,
/// while all caches are stopped.
class heap_limits_host {
 public:
  /// What the caches counted goes into the accounts.
  virtual void settle_caches() noexcept = 0;
  /// A tag got or lost a limit: the caches are told which tags they may not serve.
  virtual void update_limits() noexcept = 0;

 protected:
  ~heap_limits_host() = default;
};

/// The part of a heap that says how much it may reserve, and how much of that a tag may use.
///
/// In force is the smaller of the user's own limit and the lowest ceiling of a share. The core has
/// that figure twice: `limit_` for readers without the lock, `placement_.reserved_limit` for the
/// stores; only this class changes them. Requests test limits; what is reserved already stays when
/// a limit falls. Every change is told to the observers.
///
/// Owned by the central heap. Any thread may call what takes the lock; the rest is for other parts
/// of the heap, which hold it.
class heap_limits {
 public:
  heap_limits(heap_core& core, heap_limits_host& host) noexcept : core_{core}, host_{host} {}
  heap_limits(const heap_limits&) = delete;
  heap_limits& operator=(const heap_limits&) = delete;

  result<void> set_limit(bytes most) WEIR_EXCLUDES(core_.mutex_);
  result<void> set_limit(tag tag, bytes most) WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] bytes limit() const noexcept {
    return bytes{core_.limit_.load(std::memory_order_relaxed)};
  }

  // Shares of the card's budget, each named by its holder.

  result<void> add_share(const void* holder, bytes ceiling, neighbourhood known)
      WEIR_EXCLUDES(core_.mutex_);
  result<void> set_ceiling(const void* holder, bytes most) WEIR_EXCLUDES(core_.mutex_);
  void remove_share(const void* holder) noexcept WEIR_EXCLUDES(core_.mutex_);
  /// The numbers of the members of the budget that have a share in the heap.
  [[nodiscard]] std::vector<std::int32_t> members() const WEIR_EXCLUDES(core_.mutex_);
  /// The heap is being closed. With the lock.
  [[nodiscard]] std::vector<card_shares::share> remove_all_shares() noexcept;

  /// Tells a new observer which limits are in force: they were set before it came. With the lock.
  void tell(event_sink& sink) const noexcept;

 private:
  /// Applies the user's limit and the shares' ceilings, and emits the limit if it changed or is
  /// always told.
  void update(bool always_told) noexcept WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  heap_limits_host& host_;
  card_shares shares_ WEIR_GUARDED_BY(core_.mutex_);
};

}}}  // namespace weir::v0::heap
