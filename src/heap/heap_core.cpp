// SPDX-License-Identifier: Apache-2.0
// The state that the parts of a heap share: its beginning, and who holds a pool.
#include "heap/heap_core.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {
namespace {

std::atomic<std::uint64_t> next_serial{1};

std::uint64_t initial_limit(weir::device device, const allocator_options& options) {
  std::uint64_t most = bytes::max().count();
  if (options.limit != bytes{}) most = options.limit.count();
  if (options.limit_percent < 100) {
    const auto percent = static_cast<std::uint64_t>(options.limit_percent);
    const std::uint64_t total = device.total_memory().count();
    most = std::min(most, total / 100 * percent + total % 100 * percent / 100);
  }
  return most;
}

std::uint64_t cache_size(const allocator_options& options) {
  const bool has_none = is_classic(options.policy) || options.debug != debug_checks::off;
  return has_none ? 0 : options.thread_cache.count();
}

/// Under heap_debug a use that nobody declared is to be found, not to be covered.
crossing_rule crossing_of(const allocator_options& options) {
  return options.debug != debug_checks::off ? crossing_rule::declared_uses : options.crossing;
}

}  // namespace

heap_core::heap_core(weir::device device, const allocator_options& options)
    : serial_{next_serial.fetch_add(1, std::memory_order_relaxed)},
      device_{device},
      policy_{options.policy},
      checks_{options.debug},
      quarantine_{options.debug_quarantine},
      exportable_{options.exportable},
      detect_captures_{options.detect_captures},
      home_{detail::device_state::keep(device)},
      limit_{initial_limit(device, options)},
      caches_{cache_size(options)},
      order_{device,
             {crossing_of(options), options.allow_unreleased_streams, options.detect_captures}},
      placement_{.device = device,
                 .blocks = blocks_,
                 .order = order_,
                 .unmap_at_once = options.debug_unmap,
                 .queues_waits = options.queued_waits,
                 .rdma = options.rdma} {
  placement_.reserved_limit = limit_.load(std::memory_order_relaxed);
  pools_.push_back(std::make_unique<pool_state>());
  pools_.front()->holders = 1;
}

result<void> heap_core::usable() const {
  if (home_->forked()) return detail::fork_error();
  if (closed_.load(std::memory_order_relaxed)) return errc::closed;
  return {};
}

bool heap_core::wait_for_releases() noexcept {
  const order::unnamed_stream others_name_theirs{order_};
  return releases_.wait_for_others(mutex_);
}

pool_state* heap_core::find_pool(pool_id id) const noexcept {
  const auto entry =
      std::find_if(pools_.begin(), pools_.end(), [&](const auto& each) { return each->id == id; });
  return entry == pools_.end() ? nullptr : entry->get();
}

pool_state* heap_core::pool_behind(pool_id id) const noexcept {
  const auto behind = std::find_if(pools_.begin(), pools_.end(), [&](const auto& each) {
    return each->id.number() > id.number();
  });
  return behind == pools_.end() ? nullptr : behind->get();
}

pool_state& heap_core::pool_of(const block& block) noexcept {
  if (!is_private(block.account)) [[likely]]
    return *pools_.front();
  return *find_pool(accounts_.pool_of(block.account));
}

pool_state& heap_core::add_pool(std::string name) {
  auto added = std::make_unique<pool_state>();
  added->id = pool_id{next_pool_};
  added->name = std::move(name);
  added->holders = 1;
  pools_.reserve(pools_.size() + 1);
  accounts_.add_pool(added->id);
  ++next_pool_;
  pools_.push_back(std::move(added));
  placement_.emit({.kind = memory_event_kind::pool_created, .pool = pools_.back()->id});
  return *pools_.back();
}

void heap_core::drop_holder(pool_state& left) noexcept {
  if (--left.holders != 0) return;
  left.takes_requests = false;
  left.is_fallback = false;
  placement_.emit({.kind = memory_event_kind::pool_released, .pool = left.id});
  if (left.of_graphs()) {
    captures_.forget(left.id);
    guard_replays(left);
  }
  pools_to_sweep_ = true;
}

void heap_core::sweep_graphs() noexcept {
  try {
    for (const pool_id each : captures_.sweep())
      if (pool_state* const left = find_pool(each); left != nullptr) drop_holder(*left);
  } catch (const std::bad_alloc&) {
    // Nothing was taken out; a later sweep sees all of them.
  }
}

/// Replays that are under way were queued on some stream before the last holder went. Guards of
/// later are as good, so that what finds no host memory now is made up for by the next sweep.
void heap_core::guard_replays(pool_state& left) noexcept {
  left.guards_due = true;
  try {
    left.guards.reserve(left.guards.size() + order_.count());
  } catch (const std::bad_alloc&) {
    return;
  }
  for (stream_slot slot = 1; slot <= order_.count(); ++slot)
    left.guards.push_back(order_.now(slot));
  left.guards_due = false;
}

}}}  // namespace weir::v0::heap
