// SPDX-License-Identifier: Apache-2.0
// What a host arena pins, when, and what it gives back.
#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "device/finished_work.hpp"
#include "host/arena.hpp"
#include "host/host_limits.hpp"
#include "observe/misuse.hpp"
#include "order/driver_access.hpp"

namespace weir { inline namespace v0 { namespace host {

using detail::mutex_lock;
using detail::mutex_unlock;
using order::driver_access;

namespace {

/// A reservation is pinned in segments of so much at most, so that idle ones can go.
constexpr std::uint64_t largest_piece = std::uint64_t{1} << 30;
constexpr std::uint64_t smallest_piece = std::uint64_t{2} << 20;
/// So many times a request that was refused tries again after something was freed.
constexpr int most_rounds = 8;

bool is_lack_of_memory(const error& reason) noexcept {
  return reason.code() == errc::no_host_memory || reason.code() == errc::limit_exceeded ||
         reason.code() == errc::out_of_memory;
}

}  // namespace

// --- Pinning -------------------------------------------------------------------------------------

result<block*> arena::find_by_pinning(const request& wanted) {
  const std::uint64_t needed = wanted.with_slack();
  {
    const mutex_unlock unlocked{mutex_};
    holders_.give_back(needed);
  }
  std::optional<error> refusal;
  for (int round = 0; round < most_rounds;) {
    WEIR_TRY(usable());
    if (block* const found = fit_.take(wanted.size, wanted.alignment)) {
      found->waited = true;
      return found;
    }
    if (under_way_.any_of(needed)) {
      under_way_.wait(mutex_);
      continue;
    }
    const std::uint64_t size =
        wanted.ordered && !refusal ? demand::segment_for(needed, in_use()) : needed;
    auto pinned = pin(size, purpose::request);
    if (pinned) {
      if (wanted.ordered) {
        demand_.add_miss(size, steady_time());
        pin_more_ahead();
      }
      continue;
    }
    if (!is_lack_of_memory(pinned.error())) return std::move(pinned).error();
    const bool is_first = !refusal;
    refusal = std::move(pinned).error();
    ++round;
    if (is_first && size > needed) continue;
    WEIR_TRY_VALUE(has_room, make_room(wanted));
    if (!has_room) break;
  }
  if (options_.fallback == host_fallback::pageable) return pageable_block(wanted);
  ++stats_.failures;
  emit(
      {.kind = memory_event_kind::out_of_memory, .device = device_.id(), .size = wanted.requested});
  if (!refusal) refusal = error{errc::no_host_memory};
  refusal->set_requested(bytes{wanted.requested});
  return *std::move(refusal);
}

result<bool> arena::make_room(const request& wanted) {
  const std::uint64_t pinned = stats_.pinned.current.count();
  const leaving idle = take_idle(pinned - std::min(pinned, wanted.with_slack()));
  if (!idle.empty()) {
    WEIR_TRY_VALUE(returned, unpin(idle));
    if (returned != bytes{}) return true;
  }
  if (freed_.empty()) return false;
  WEIR_TRY(freed_.wait());
  retire();
  return true;
}

result<block*> arena::pageable_block(const request& wanted) {
  WEIR_TRY_VALUE(memory, map_pageable(whole_pages(wanted.with_slack(), false)));
  try {
    block& added = fit_.add_live(memory, wanted.size, wanted.alignment);
    stats_.pageable += bytes{memory.size};
    added.waited = true;
    return &added;
  } catch (const std::bad_alloc&) {
  }
  static_cast<void>(release_memory(context_scope{device_}, memory));
  return detail::no_host_memory();
}

void arena::release_pageable(segment& idle) noexcept {
  const pinned_memory memory = idle.memory;
  fit_.remove(idle);
  stats_.pageable -= bytes{memory.size};
  static_cast<void>(release_memory(context_scope{device_}, memory));
}

result<void> arena::pin(std::uint64_t size, purpose why) {
  const std::uint64_t whole = whole_pages(size, options_.huge_pages);
  WEIR_TRY(check_room(whole, stats_.pinned.current.count() + under_way_.total(), limit_, {}));
  under_way_.begin(whole);
  const auto began = steady_time();
  result<pinned_memory> memory = errc::internal;
  {
    const mutex_unlock unlocked{mutex_};
    memory = pin_unlocked(whole, why);
  }
  under_way_.end(whole);
  stats_.pin_time += steady_time() - began;
  if (!memory) return std::move(memory).error();
  try {
    add_segment(*memory, why);
    return {};
  } catch (const std::bad_alloc&) {
  }
  const mutex_unlock unlocked{mutex_};
  driver_access driver{device_};
  detail::report_failure(release_memory(driver.enter(), *memory));
  return detail::no_host_memory();
}

result<pinned_memory> arena::pin_unlocked(std::uint64_t size, purpose why) const try {
  const system_memory system = read_system_memory();
  // What nobody asked for yet leaves half of the rest to others.
  const bool takes_too_much = why == purpose::ahead && size > system.available / 2;
  if (takes_too_much) return error{{.code = errc::no_host_memory, .requested = bytes{size}}};
  WEIR_TRY(check_room(size, 0, bytes::max().count(), system));
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  const memory_request wanted{
      .size = size,
      .pinning = options_.pinning,
      .write_combined = options_.write_combined,
      .huge_pages = options_.huge_pages,
      .numa_node = options_.near_device ? device_.capabilities().host_numa_node : -1,
      .threads = options_.threads};
  auto memory = pin_memory(driver.enter(), wanted);
  if (!memory) return explain_refusal(std::move(memory).error(), system);
  return memory;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void arena::add_segment(const pinned_memory& memory, purpose why) {
  segment& added = fit_.add(memory);
  added.reserved = why == purpose::reserved;
  added.idle_since = steady_time();
  stats_.pinned.set(stats_.pinned.current + bytes{memory.size});
  ++stats_.pins;
  if (why != purpose::request) ++stats_.pins_ahead;
  emit({.kind = memory_event_kind::reserve,
        .device = device_.id(),
        .address = added.base(),
        .size = memory.size});
}

void arena::pin_more_ahead() noexcept {
  if (closed_ || options_.threads == 0) return;
  const std::uint64_t wanted = demand_.ahead(in_use(), steady_time());
  const std::uint64_t coming = fit_.free_bytes() + under_way_.total() + helpers_.queued();
  if (wanted < coming + smallest_piece) return;
  helpers_.post({.size = (wanted - coming) / smallest_piece * smallest_piece});
}

void arena::pin_ahead(pinning_piece piece) noexcept {
  if (home_->forked()) return;
  const auto pinned = [&]() -> result<void> {
    try {
      const mutex_lock lock{mutex_};
      if (closed_) return {};
      return pin(piece.size, piece.reserved ? purpose::reserved : purpose::ahead);
    } catch (const std::bad_alloc&) {
      return detail::no_host_memory();
    }
  }();
  if (piece.reserved) detail::report_failure(pinned);
}

result<void> arena::reserve(bytes size, host_wait wait) try {
  if (home_->forked()) return detail::fork_error();
  const mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  const std::uint64_t before = stats_.pinned.current.count();
  const std::uint64_t queued = wait == host_wait::no ? helpers_.queued() : 0;
  for (std::uint64_t coming = queued;;) {
    const std::uint64_t free = fit_.free_bytes() + coming;
    if (free >= size.count()) return {};
    const std::uint64_t piece = std::min(size.count() - free, largest_piece);
    const std::uint64_t whole = whole_pages(piece, options_.huge_pages);
    if (wait == host_wait::no && helpers_.post({.size = whole, .reserved = true})) {
      coming += whole;
      continue;
    }
    auto pinned = pin(whole, purpose::reserved);
    if (pinned) continue;
    static_cast<void>(
        unpin(take_idle(before)));  // a part is of no use, and the host is short of it
    return pinned;
  }
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

// --- Giving back ---------------------------------------------------------------------------------

arena::leaving arena::take_idle(std::uint64_t keep) {
  leaving idle;
  for (const auto& each : fit_.segments())
    if (each->serves && each->is_idle()) idle.push_back(each.get());
  std::sort(idle.begin(), idle.end(),
            [](const segment* a, const segment* b) { return a->idle_since < b->idle_since; });
  std::uint64_t left = stats_.pinned.current.count();
  std::size_t taken = 0;
  for (; taken < idle.size() && left > keep; ++taken) left -= idle[taken]->size();
  idle.resize(taken);
  for (segment* const each : idle) fit_.set_serves(*each, false);
  return idle;
}

result<bytes> arena::unpin(const leaving& gone) {
  std::uint64_t returned = 0;
  std::optional<error> failed;
  for (segment* const each : gone) {
    const pinned_memory memory = each->memory;
    const memory_event told{.kind = memory_event_kind::release,
                            .device = device_.id(),
                            .address = each->base(),
                            .size = each->size()};
    emit(told);
    result<void> released;
    {
      const mutex_unlock unlocked{mutex_};
      driver_access driver{device_};
      released = driver.entered();
      if (released) released = release_memory(driver.enter(), memory);
    }
    if (!released) {
      if (!failed) failed = std::move(released).error();
      fit_.set_serves(*each, true);
      memory_event again = told;
      again.kind = memory_event_kind::reserve;
      emit(again);
      continue;
    }
    fit_.remove(*each);
    returned += memory.size;
    count_unpinned(memory.size);
  }
  if (failed) return *std::move(failed);
  return bytes{returned};
}

bool arena::is_last(const block& live) const noexcept {
  const auto none_or_free = [](const block* run) {
    return run == nullptr || (run->state == block_state::free && run->before == nullptr) ||
           (run->state == block_state::free && run->after == nullptr);
  };
  return live.home->serves && !live.home->reserved && !holders_.asking() &&
         none_or_free(live.before) && none_or_free(live.after);
}

result<void> arena::release(void* pointer) noexcept try {
  if (pointer == nullptr) return {};
  if (home_->forked()) return detail::fork_error();
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(live, find_live(pointer));
  if (!is_last(*live)) {
    count_free(*live, {});
    give_to_fit(*live);
    return {};
  }
  // Live until the system has it, so that after an error it is as before.
  segment& home = *live->home;
  fit_.set_serves(home, false);
  const pinned_memory memory = home.memory;
  emit({.kind = memory_event_kind::release,
        .device = device_.id(),
        .address = home.base(),
        .size = home.size()});
  result<void> released;
  {
    const mutex_unlock unlocked{mutex_};
    driver_access driver{device_};
    released = driver.entered();
    if (released) released = release_memory(driver.enter(), memory);
  }
  if (!released) {
    fit_.set_serves(home, true);
    emit({.kind = memory_event_kind::reserve,
          .device = device_.id(),
          .address = home.base(),
          .size = home.size()});
    return released;
  }
  count_free(*live, {});
  fit_.give(*live);
  fit_.remove(home);
  count_unpinned(memory.size);
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void arena::count_unpinned(std::uint64_t size) noexcept {
  stats_.pinned.set(stats_.pinned.current - bytes{size});
  ++stats_.unpins;
}

result<bytes> arena::trim(bytes keep) try {
  if (home_->forked()) return detail::fork_error();
  {
    const mutex_lock lock{mutex_};
    WEIR_TRY(freed_.poll());
    retire();
  }
  holders_.give_back(bytes::max().count());
  const mutex_lock lock{mutex_};
  return unpin(take_idle(keep.count()));
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<bytes> arena::empty_cache() try {
  if (home_->forked()) return detail::fork_error();
  holders_.give_back(bytes::max().count());
  const mutex_lock lock{mutex_};
  return release_idle();
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<bytes> arena::release_idle() {
  WEIR_TRY(freed_.wait());
  retire();
  return unpin(take_idle(0));
}

result<void> arena::set_limit(bytes limit) try {
  if (home_->forked()) return detail::fork_error();
  const mutex_lock lock{mutex_};
  limit_ = limit.count();
  emit({.kind = memory_event_kind::limit, .device = device_.id(), .size = limit.count()});
  WEIR_TRY(unpin(take_idle(limit.count())));
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

bytes arena::limit() const {
  if (home_->forked()) return {};
  const mutex_lock lock{mutex_};
  return bytes{limit_};
}

bool arena::is_old(const segment& idle, std::chrono::nanoseconds now) const noexcept {
  if (!idle.serves || !idle.is_idle() || idle.reserved) return false;
  const auto age = now - idle.idle_since;
  const bool spare = !idle.used && age > demand::window &&
                     fit_.free_bytes() - idle.size() >= demand_.ahead(in_use(), now);
  return spare || (options_.max_idle.count() != 0 && age > options_.max_idle);
}

std::optional<std::chrono::nanoseconds> arena::give_back_idle() noexcept try {
  if (home_->forked()) return std::nullopt;
  const mutex_lock lock{mutex_};
  if (closed_) return std::nullopt;
  const auto now = steady_time();
  leaving old;
  bool any_idle = false;
  for (const auto& each : fit_.segments()) {
    any_idle = any_idle || (each->serves && each->is_idle());
    if (!is_old(*each, now)) continue;
    old.push_back(each.get());
    fit_.set_serves(*each, false);
  }
  static_cast<void>(unpin(old));  // what the driver refuses is tried again with the next look
  if (!any_idle) return std::nullopt;
  return demand::window;
} catch (const std::bad_alloc&) {
  return std::nullopt;
}

// --- The end -------------------------------------------------------------------------------------

result<void> arena::close() try {
  if (home_->forked()) return detail::fork_error();
  helpers_.stop();
  const mutex_lock lock{mutex_};
  closed_ = true;
  WEIR_TRY(release_idle());
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

arena::~arena() {
  if (home_->forked()) {
    helpers_.abandon();
    return;
  }
  helpers_.stop();
  end();
}

void arena::end() noexcept {
  std::optional<error> leaked;
  std::optional<error> kept;
  {
    const mutex_lock lock{mutex_};
    leaked = leak();
    result<void> waited;
    try {
      if (!freed_.empty() || leaked) waited = freed_.wait_for_all_work();
    } catch (const std::bad_alloc&) {
      waited = detail::no_host_memory();
    }
    if (!waited && !detail::does_no_work(waited.error())) kept = std::move(waited).error();
  }
  freed_.stop();
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  std::uint64_t left = 0;
  for (const auto& each : fit_.segments()) {
    if (has_taken(*each)) continue;  // whoever has it keeps it, and has said so
    const bool may_be_used = kept && !each->is_idle();
    auto released = may_be_used ? result<void>{} : driver.entered();
    if (released && !may_be_used) released = release_memory(driver.enter(), each->memory);
    if (released && !may_be_used) continue;
    if (!released && released.code() == errc::driver_gone) return;  // it went with the driver
    left += each->size();
    if (!kept) kept = std::move(released).error();
  }
  if (leaked) report_error(*leaked);
  if (left == 0) return;
  kept->set_requested(bytes{left});
  report_error(*kept);
}

std::optional<error> arena::leak() const noexcept {
  std::uint64_t count = 0;
  bytes size{};
  for (const auto& each : fit_.segments()) {
    for (const block* run = each->first; run != nullptr; run = run->after) {
      if (run->state != block_state::live || !run->ordered) continue;
      ++count;
      size += bytes{run->size};
    }
  }
  if (count == 0) return std::nullopt;
  return observe::leak("a host arena ended", count, size, {});
}

bool arena::has_taken(const segment& home) noexcept {
  for (const block* run = home.first; run != nullptr; run = run->after)
    if (run->state == block_state::live && !run->ordered) return true;
  return false;
}

}}}  // namespace weir::v0::host
