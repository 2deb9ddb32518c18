// Blocks are released to the driver: over a limit, by request, or because it has nothing left.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "pools/block_cache.hpp"

namespace weir::inline v0::pools {

using detail::mutex_lock;
using detail::mutex_unlock;

bool block_cache::is_idle_too_long(const block* cached) const {
  return limits_.clock && cached != nullptr &&
         limits_.clock() - cached->freed_at > limits_.max_idle_time;
}

bool block_cache::any_idle_too_long() const {
  return limits_.clock &&
         (is_idle_too_long(cached_.first_freed()) || is_idle_too_long(pending_.front));
}

block_cache::victim_list block_cache::take_victims(bytes max_cached) {
  victim_list victims;
  try {
    while (stats_.cached > max_cached || is_idle_too_long(cached_.oldest())) {
      victims.emplace_back();  // what may fail comes first
      block* const victim = cached_.take_oldest();
      if (victim == nullptr) {
        victims.pop_back();
        break;
      }
      stats_.cached -= bytes{victim->size};
      victims.back() = blocks_.extract(victim->address);
    }
  } catch (const std::bad_alloc&) {
    // Those taken so far are a beginning.
  }
  return victims;
}

result<bytes> block_cache::release(victim_list victims, driver_access& driver) {
  if (victims.empty()) return bytes{};
  result<void> outcome;
  bytes released{};
  {
    const mutex_unlock unlocked{mutex_};
    static_cast<void>(driver.entered());
    for (block_table::node_type& victim : victims) {
      const bytes size{victim.mapped().size};
      auto taken = source_.release(driver.enter(), victim.mapped().base, size);
      if (taken) {
        released += size;
        victim = {};
      } else if (outcome) {
        outcome = std::move(taken);
      }
    }
  }
  stats_.reserved.set(stats_.reserved.current - released);
  for (auto victim = victims.rbegin(); victim != victims.rend(); ++victim) {  // the oldest last
    if (victim->empty()) continue;
    block& refused = blocks_.insert(std::move(*victim)).position->second;
    cached_.put_back(refused);
    stats_.cached += bytes{refused.size};
  }
  if (!outcome) return outcome.error();
  return released;
}

result<bytes> block_cache::release_down_to(bytes max_cached, driver_access& driver) {
  if (stats_.cached <= max_cached && !any_idle_too_long()) return bytes{};
  WEIR_TRY(update_progress(order::no_stream, driver));
  WEIR_TRY_VALUE(at_once, release(take_victims(max_cached), driver));
  if (stats_.cached <= max_cached && !any_idle_too_long()) return at_once;
  WEIR_TRY(wait_for_streams(driver));
  WEIR_TRY_VALUE(later, release(take_victims(max_cached), driver));
  return at_once + later;
}

result<bytes> block_cache::trim(bytes keep) {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  // What is live stays, and counts first.
  const bytes live = stats_.allocated.current;
  const bytes max_cached = std::min(limits_.max_cached, keep > live ? keep - live : bytes{});
  if (stats_.cached <= max_cached && !any_idle_too_long()) return bytes{};
  WEIR_TRY(update_progress(order::no_stream, driver));
  return release(take_victims(max_cached), driver);
}

result<bytes> block_cache::empty_cache() {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  return release_down_to({}, driver);
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
  if (stats_.cached <= limits_.max_cached && !any_idle_too_long()) return;
  try {
    const auto updated = update_progress(order::no_stream, driver);
    if (!updated) return detail::report_failure(updated);
    // The request at hand can be served all the same.
    const auto released = release(take_victims(limits_.max_cached), driver);
    if (!released) detail::report_failure(released.error());
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::no_host_memory});
  }
}

result<void*> block_cache::allocate_after_release(const block_request& request,
                                                  driver_access& driver, error refusal) {
  // The same size and another stream: to wait for that one costs less than to empty the cache.
  if (!source_.host_touches) {
    WEIR_TRY_VALUE(waited_for, take_behind_wait(request, driver));
    if (waited_for != nullptr) return hand_out_cached(*waited_for, request);
  }
  for (const bool wait : {false, true}) {
    WEIR_TRY(wait ? wait_for_streams(driver) : update_progress(order::no_stream, driver));
    if (block* const cached = take_cached(request); cached != nullptr)
      return hand_out_cached(*cached, request);
    // A block that the driver does not take is cached; what it did take may be enough.
    const auto released = release(take_victims({}), driver);
    if (!released) detail::report_failure(released.error());
    auto fresh = allocate_fresh(request, driver);
    if (fresh) return adopt(*fresh, request, driver);
    if (fresh.code() != errc::out_of_memory) return std::move(fresh).error();
  }
  ++stats_.failures;
  refusal.requested = request.size;
  std::string detail = "the pool holds " + to_string(stats_.allocated.current) + " in " +
                       std::to_string(stats_.blocks.current) + " live blocks and caches " +
                       to_string(stats_.cached);
  if (!refusal.detail.empty()) detail += "; " + refusal.detail;
  refusal.detail = std::move(detail);
  return refusal;
}

}  // namespace weir::inline v0::pools
