// SPDX-License-Identifier: Apache-2.0
// The debug policy's store: how regions come from the driver and go back, and what is queued.
#include <new>
#include <utility>

#include "device/state.hpp"
#include "device/surely.hpp"
#include "observe/own_work.hpp"
#include "placement/guarded_store.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

using driver::call;

}  // namespace

result<std::unique_ptr<backing_store>> guarded_store::create(placement_context& shared,
                                                             pool_id pool, const guard_rules& rules,
                                                             const context_scope& bound) {
  if (!bound) return bound.error();
  auto store = std::make_unique<guarded_store>(shared, pool, rules);
  // None of weir's own streams: those are every allocator's business.
  WEIR_TRY(driver::check(call::stream_create_with_priority,
                         bound.driver().stream_create_with_priority(
                             &store->stream_, driver::CU_STREAM_NON_BLOCKING, 0)));
  return std::unique_ptr<backing_store>{std::move(store)};
}

guarded_store::guarded_store(placement_context& shared, pool_id pool, const guard_rules& rules)
    : backing_store{shared, pool},
      rules_{rules},
      granule_{shared.device.capabilities().granularity.count()},
      buffer_{std::make_unique<std::byte[]>(most_zone)} {}

guarded_store::~guarded_store() {
  if (stream_ == nullptr || detail::device_state::of(shared_.device).forked()) return;
  const context_scope bound{shared_.device};
  if (!bound) return;  // it goes with the driver
  detail::report_failure(
      driver::check(call::stream_destroy, bound.driver().stream_destroy(stream_)));
}

// --- Regions -------------------------------------------------------------------------------------

result<device_address> guarded_store::reserve_addresses(std::uint64_t size, std::uint64_t step,
                                                        const context_scope& bound) {
  auto base = vmm::reserve(bound, bytes{size}, bytes{step});
  if (base || base.code() != errc::out_of_memory || oldest_ == 0) return base;
  // Few addresses: those in quarantine must do.
  shrink_quarantine(0, bound);
  return vmm::reserve(bound, bytes{size}, bytes{step});
}

result<void> guarded_store::give_memory(region& fresh, bytes size, const context_scope& bound) {
  WEIR_TRY_VALUE(memory, vmm::create(bound, size, rules_.properties));
  bool mapped = false;
  const auto attempt = [&]() -> result<void> {
    WEIR_TRY(vmm::map(bound, fresh.start, memory));
    mapped = true;
    return vmm::set_access(bound, fresh.start, size, shared_.rights);
  };
  if (auto outcome = attempt(); !outcome) {
    if (mapped) detail::report_failure(vmm::unmap_surely(bound, fresh.start, size));
    detail::report_failure(vmm::release_surely(bound, memory));
    return outcome;
  }
  fresh.memory = memory;
  add_reserved(size.count());
  ++shared_.handles_created;
  emit(memory_event_kind::reserve, fresh);
  return {};
}

result<guarded_store::region_map::iterator> guarded_store::map_region(std::uint64_t size,
                                                                      std::uint64_t step,
                                                                      const context_scope& bound) {
  if (size / unit > most_units || !shared_.may_reserve(size)) return regions_.end();
  const std::uint64_t addresses = size + 2 * step;
  WEIR_TRY_VALUE(base, reserve_addresses(addresses, step, bound));
  result<void> outcome;
  region_map::iterator fresh = regions_.end();
  try {
    fresh = regions_.emplace(base, region{.size = addresses, .start = base + step}).first;
    outcome = give_memory(fresh->second, bytes{size}, bound);
  } catch (const std::bad_alloc&) {
    outcome = no_host_memory();
  }
  if (outcome) return fresh;
  if (fresh != regions_.end()) regions_.erase(fresh);
  detail::report_failure(vmm::free(bound, base, bytes{addresses}));
  if (outcome.code() != errc::out_of_memory) return std::move(outcome).error();
  shared_.note_refusal();
  return regions_.end();
}

result<void> guarded_store::unmap(region_map::iterator position, const context_scope& bound) {
  region& gone = position->second;
  const bytes size = gone.memory.size;
  // In this order either can be tried again.
  if (!gone.released) WEIR_TRY(vmm::release(bound, gone.memory));
  gone.released = true;
  emit(memory_event_kind::release, gone);
  if (auto unmapped = vmm::unmap(bound, gone.start, size); !unmapped) {
    emit(memory_event_kind::reserve, gone);
    return unmapped;
  }
  gone.memory = {};
  remove_reserved(size.count());
  ++shared_.handles_released;
  (newest_ == 0 ? oldest_ : regions_.find(newest_)->second.next) = position->first;
  newest_ = position->first;
  quarantined_ += gone.size;
  shrink_quarantine(rules_.quarantine, bound);
  return {};
}

void guarded_store::shrink_quarantine(std::uint64_t most, const context_scope& bound) noexcept {
  while (quarantined_ > most) {
    const auto oldest = regions_.find(oldest_);
    detail::report_failure(vmm::free(bound, oldest->first, bytes{oldest->second.size}));
    quarantined_ -= oldest->second.size;
    oldest_ = oldest->second.next;
    if (oldest_ == 0) newest_ = 0;
    regions_.erase(oldest);
  }
}

result<bytes> guarded_store::release(bytes most, const context_scope& bound) {
  if (!bound) return bound.error();
  const std::uint64_t before = reserved_;
  WEIR_TRY(inspect(bound));
  std::uint64_t base = 0;
  while (before - reserved_ < most.count()) {
    // By address: to let one go may end the quarantine of any other.
    const auto each = regions_.lower_bound(base);
    if (each == regions_.end()) break;
    base = each->first + 1;
    if (!each->second.has_memory() || each->second.uninspected != 0) continue;
    if (each->first == open_) open_ = 0;
    WEIR_TRY(let_go(each, bound));
  }
  return bytes{before - reserved_};
}

result<void> guarded_store::grant(const vmm::access& peer, const context_scope& bound) {
  if (!bound) return bound.error();
  for (const auto& [base, home] : regions_) {
    if (!home.has_memory()) continue;
    WEIR_TRY(vmm::set_access(bound, home.start, home.memory.size, {&peer, 1}));
  }
  return {};
}

result<void> guarded_store::close(const context_scope& bound) {
  result<void> first_failure;
  const auto note = [&](const result<void>& outcome) {
    if (!outcome && first_failure) first_failure = outcome;
  };
  note(inspect(bound));
  for (auto& [base, home] : regions_) {
    if (home.has_memory()) {
      note(look_after_frees(home, bound));
      for (cell& each : home.cells) {
        if (!each.inspected) note(inspect(home, each, bound));
        if (each.index != no_block) shared_.blocks.recycle(each.index);
      }
      static_cast<void>(finish(bound));  // what an inspection that failed had queued
      emit(memory_event_kind::release, home);
      note(vmm::unmap(bound, home.start, home.memory.size));
      if (!home.released) note(vmm::release(bound, home.memory));
      ++shared_.handles_released;
    }
    note(vmm::free(bound, base, bytes{home.size}));
  }
  regions_.clear();
  freed_.clear();
  remove_reserved(reserved_);
  handed_out_ = 0;
  handed_out_count_ = 0;
  open_ = oldest_ = newest_ = quarantined_ = 0;
  return first_failure;
}

void guarded_store::emit(memory_event_kind kind, const region& of) const noexcept {
  shared_.emit({.kind = kind, .pool = pool_, .address = of.start, .size = of.memory.size.count()});
}

// --- Work on the memory --------------------------------------------------------------------------

result<void> guarded_store::fill(std::uint64_t address, std::uint64_t size, std::uint8_t with,
                                 const context_scope& bound) const {
  if (size == 0) return {};
  const observe::own_work_scope own;
  return driver::check(call::memset_d8_async,
                       bound.driver().memset_d8_async(address, with, size, stream_), bytes{size});
}

result<void> guarded_store::finish(const context_scope& bound) const {
  return driver::check(call::stream_synchronize, bound.driver().stream_synchronize(stream_));
}

}}}  // namespace weir::v0::placement
