// SPDX-License-Identifier: Apache-2.0
// Blocks are released to the driver: over a limit, by request, or because it has nothing left.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"

namespace weir { inline namespace v0 { namespace pools {

using detail::mutex_lock;
using detail::mutex_unlock;

namespace {

/// So many times a request that found no memory tries again, each time after some was released.
/// Without a bound it would go on for as long as other threads release memory.
constexpr int most_rounds = 8;

}  // namespace

bool block_cache::is_idle_too_long(const block* cached, std::chrono::nanoseconds now) const {
  return limits_.clock && cached != nullptr && now - cached->freed_at > limits_.max_idle_time;
}

bool block_cache::is_within(bytes max_cached) const {
  if (stats_.cached > max_cached) return false;
  if (!limits_.clock) return true;
  const std::chrono::nanoseconds now = limits_.now();
  return !is_idle_too_long(cached_.first_freed(), now) && !is_idle_too_long(pending_.front, now);
}

block_list block_cache::take_victims(bytes max_cached) {
  const std::chrono::nanoseconds now = limits_.now();
  block_list victims;
  while (stats_.cached > max_cached || is_idle_too_long(cached_.oldest(), now)) {
    block* const victim = cached_.take_oldest();
    if (victim == nullptr) break;
    take_victim(*victim, victims);
  }
  return victims;
}

void block_cache::take_victim(block& victim, block_list& victims) noexcept {
  stats_.cached -= bytes{victim.size};
  victim.state = block_state::releasing;
  blocks_.hide(victim);
  victims.push_back(victim);
}

result<bytes> block_cache::release(block_list victims, driver_access& driver) {
  if (victims.empty()) return bytes{};
  const detail::releases_under_way::release under_way{releases_};
  block_list gone;
  result<void> outcome;
  {
    const mutex_unlock unlocked{mutex_};
    outcome = release_unlocked(victims, gone, driver);
  }
  bytes released{};
  while (block* const each = gone.front) {
    gone.remove(*each);
    released += bytes{each->size};
    blocks_.erase(*each);
  }
  stats_.reserved.set(stats_.reserved.current - released);
  cache_again(victims);
  if (!outcome) return outcome.error();
  return released;
}

result<void> block_cache::release_unlocked(block_list& victims, block_list& gone,
                                           driver_access& driver) {
  WEIR_TRY(driver.entered());
  result<void> outcome;
  for (block* next = victims.front; next != nullptr;) {
    block& victim = *std::exchange(next, next->after);
    auto taken =
        contained([&] { return source_.release(driver.enter(), victim.base, bytes{victim.size}); });
    if (taken) {
      victims.remove(victim);
      gone.push_back(victim);
    } else if (outcome) {
      outcome = std::move(taken);
    }
  }
  return outcome;
}

void block_cache::cache_again(block_list& refused) noexcept {
  while (block* const each = refused.back) {  // so that the oldest is the first again
    refused.remove(*each);
    blocks_.place(*each, each->address);
    each->state = block_state::cached;
    stats_.cached += bytes{each->size};
    try {
      cached_.put_back(*each);
    } catch (const std::bad_alloc&) {
      without_bin_.push_front(*each);
    }
  }
}

result<bytes> block_cache::release_down_to(bytes max_cached, driver_access& driver) {
  if (is_within(max_cached)) return bytes{};
  WEIR_TRY(update_progress(order::no_stream, driver));
  WEIR_TRY_VALUE(at_once, release(take_victims(max_cached), driver));
  if (is_within(max_cached)) return at_once;
  WEIR_TRY(wait_for_streams(driver));
  WEIR_TRY_VALUE(later, release(take_victims(max_cached), driver));
  return at_once + later;
}

result<bytes> block_cache::release_freed(std::uint64_t number, driver_access& driver) {
  WEIR_TRY(update_progress(order::no_stream, driver));
  block_list victims;
  if (const block* const bound = blocks_.find_stream_bound(number)) {
    WEIR_TRY(driver.entered());
    WEIR_TRY_VALUE(is_idle, wait_for_users(*bound, driver));
    if (!is_idle) WEIR_TRY(wait_for_streams(driver));
    // Another thread may have released it meanwhile. Streams that were met since the free hold it
    // up in the order, but cannot use it.
    block* const idle = is_idle ? blocks_.find_stream_bound(number) : nullptr;
    if (idle != nullptr) {
      if (idle->state == block_state::pending) {
        pending_.remove(*idle);
        stats_.pending -= bytes{idle->size};
        idle->others.clear();
        idle->foreign.clear();
      } else {
        cached_.take(*idle);
      }
      idle->freed = {};
      take_victim(*idle, victims);
    }
  }
  block_list quiescent = take_victims({});
  while (block* const each = quiescent.front) {
    quiescent.remove(*each);
    victims.push_back(*each);
  }
  return release(victims, driver);
}

result<bool> block_cache::wait_for_users(const block& bound, driver_access& driver) {
  order::awaited_marks marks;
  foreign_wait elsewhere;
  bool is_marked = order_.add_marks_for(bound.freed, marks);
  for (const stamp& each : bound.others)
    is_marked = is_marked && order_.add_mark_of_stream(each, marks);
  if (!is_marked) return false;
  for (const foreign_use& use : bound.foreign) elsewhere.add(use);
  if (!elsewhere.empty()) {
    result<void> waited;
    static_cast<void>(without_lock([&] { waited = elsewhere.wait(); }));
    WEIR_TRY(waited);
  }
  WEIR_TRY(waiter_.wait_for(marks, driver));
  return true;
}

result<bytes> block_cache::trim(bytes keep) {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  // What is live stays, and counts first.
  const bytes live = stats_.allocated.current;
  const bytes max_cached = std::min(limits_.max_cached, keep > live ? keep - live : bytes{});
  if (is_within(max_cached)) return bytes{};
  WEIR_TRY(update_progress(order::no_stream, driver));
  return release(take_victims(max_cached), driver);
}

result<bytes> block_cache::empty_cache() {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  auto released = release_down_to({}, driver);
  static_cast<void>(releases_.wait_for_others(mutex_));
  return released;
}

result<void> block_cache::set_threshold(bytes limit) {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  limits_.max_cached = limit;
  WEIR_TRY(release_down_to(limit, driver));
  return {};
}

bytes block_cache::threshold() const {
  if (home_->forked()) return {};
  const mutex_lock lock{mutex_};
  return limits_.max_cached;
}

void block_cache::enforce_limits(driver_access& driver) noexcept {
  // Whatever goes wrong here, the request at hand can be served.
  const auto enforced = contained([&]() -> result<bytes> {
    mutex_.assert_held();
    if (is_within(limits_.max_cached)) return bytes{};
    WEIR_TRY(update_progress(order::no_stream, driver));
    return release(take_victims(limits_.max_cached), driver);
  });
  if (!enforced) detail::report_failure(enforced.error());
}

result<void*> block_cache::allocate_after_release(block_request& request, driver_access& driver,
                                                  error refusal, std::uint64_t ended) {
  // The same size and another stream: to wait for that one costs less than to empty the cache.
  if (!source_.host_touches) {
    WEIR_TRY_VALUE(waited_for, take_behind_wait(request, driver));
    if (waited_for != nullptr) return hand_out_cached(*waited_for, request);
  }
  bool waits = false;
  for (int round = 0; round < most_rounds; ++round) {
    WEIR_TRY(waits ? wait_for_streams(driver) : update_progress(order::no_stream, driver));
    WEIR_TRY(usable());
    if (block* const cached = take_cached(request); cached != nullptr)
      return hand_out_cached(*cached, request);
    // A block that the driver does not take is cached; what it did take may be enough.
    if (const auto released = release(take_victims({}), driver); !released)
      detail::report_failure(released.error());
    static_cast<void>(releases_.wait_for_others(mutex_));
    WEIR_TRY(usable());
    const bool is_worth_a_try = releases_.ended() != ended;
    if (!is_worth_a_try && waits) break;
    if (is_worth_a_try) {
      ended = releases_.ended();
      auto fresh = allocate_fresh(request, driver);
      if (fresh) return hand_out_fresh(**fresh, request);
      if (fresh.code() != errc::out_of_memory) return std::move(fresh).error();
    }
    const bool more_may_come =
        stats_.cached != bytes{} || releases_.any() || releases_.ended() != ended;
    if (!more_may_come) break;
    waits = true;
  }
  ++stats_.failures;
  return no_room(request, std::move(refusal));
}

error block_cache::no_room(const block_request& request, error refusal) const {
  refusal.set_requested(request.size);
  try {
    std::string detail = "the pool holds " + to_string(stats_.allocated.current) + " in " +
                         std::to_string(stats_.blocks.current) + " live blocks and caches " +
                         to_string(stats_.cached);
    if (!refusal.detail().empty()) detail += "; " + refusal.detail();
    refusal.set_detail(std::move(detail));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return refusal;
}

}}}  // namespace weir::v0::pools
