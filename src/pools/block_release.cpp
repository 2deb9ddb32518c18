// Blocks go back to the driver: over a limit, by request, or because it has nothing left.
#include <new>
#include <string>
#include <utility>

#include "pools/block_cache.hpp"

namespace weir::inline v0::pools {

bool block_cache::too_old(const block* what) const {
  return limits_.clock && what != nullptr && limits_.clock() - what->freed_at > limits_.longest;
}

bool block_cache::any_too_old() const {
  return limits_.clock && (too_old(kept_.first_freed()) || too_old(pending_.front));
}

block_cache::leaving block_cache::take_over(std::uint64_t keep) {
  leaving victims;
  try {
    while (books_.cached > keep || too_old(kept_.oldest())) {
      victims.emplace_back();  // what may fail comes first
      block* const what = kept_.take_oldest();
      if (what == nullptr) {
        victims.pop_back();
        break;
      }
      books_.cached -= what->size;
      victims.back() = blocks_.extract(what->address);
    }
  } catch (const std::bad_alloc&) {
    // Those found so far are a beginning.
  }
  return victims;
}

result<bytes> block_cache::give_back(guard& lock, leaving victims, driver_access& driver) {
  if (victims.empty()) return bytes{};
  lock.unlock();
  static_cast<void>(driver.entered());
  result<void> outcome;
  std::uint64_t gone = 0;
  for (table::node_type& each : victims) {
    auto done = source_.give_back(driver.enter(), each.mapped().base);
    if (done) {
      gone += each.mapped().size;
      each = {};
    } else if (outcome) {
      outcome = std::move(done);
    }
  }
  lock.lock();
  books_.reserved.set(books_.reserved.current - gone);
  for (auto each = victims.rbegin(); each != victims.rend(); ++each) {  // the oldest last
    if (each->empty()) continue;
    block& what = blocks_.insert(std::move(*each)).position->second;
    kept_.put_back(what);
    books_.cached += what.size;
  }
  if (!outcome) return outcome.error();
  return bytes{gone};
}

result<bytes> block_cache::trim_locked(guard& lock, std::uint64_t keep, driver_access& driver) {
  if (books_.cached <= keep && !any_too_old()) return bytes{};
  WEIR_TRY(look_after_all(order::nobody, driver));
  WEIR_TRY_VALUE(at_once, give_back(lock, take_over(keep), driver));
  if (books_.cached <= keep && !any_too_old()) return at_once;
  WEIR_TRY(wait_for_streams(driver));
  WEIR_TRY_VALUE(later, give_back(lock, take_over(keep), driver));
  return at_once + later;
}

result<bytes> block_cache::trim(bytes keep) {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  guard lock{mutex_};
  return trim_locked(lock, keep.count(), driver);
}

result<void> block_cache::set_threshold(bytes most) {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  guard lock{mutex_};
  limits_.most = most;
  WEIR_TRY(trim_locked(lock, most.count(), driver));
  return {};
}

bytes block_cache::threshold() const {
  if (home_->forked()) return {};
  const guard lock{mutex_};
  return limits_.most;
}

void block_cache::observe_limits(guard& lock, driver_access& driver) noexcept {
  if (books_.cached <= limits_.most.count() && !any_too_old()) return;
  try {
    auto looked = look_after_all(order::nobody, driver);
    if (!looked) return detail::report_failure(looked);
    // The request at hand can be served all the same.
    const auto done = give_back(lock, take_over(limits_.most.count()), driver);
    if (!done) detail::report_failure(done.error());
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
    if (!lock.owns_lock()) lock.lock();
  }
}

result<void*> block_cache::relieve(guard& lock, const request& wanted, driver_access& driver,
                                   error refused) {
  lock.lock();
  // The same size and another stream: to wait for that one costs less than to empty the cache.
  if (!source_.host_touches) {
    WEIR_TRY_VALUE(waited_for, take_behind_wait(wanted, driver));
    if (waited_for != nullptr) return hand_out_kept(*waited_for, wanted);
  }
  for (const bool wait : {false, true}) {
    WEIR_TRY(wait ? wait_for_streams(driver) : look_after_all(order::nobody, driver));
    if (block* const found = find_kept(wanted); found != nullptr)
      return hand_out_kept(*found, wanted);
    // A block that the driver does not take is kept; what did go may be enough.
    static_cast<void>(give_back(lock, take_over(0), driver));
    lock.unlock();
    auto fresh = source_.obtain(driver.enter(), bytes{wanted.rounded});
    if (fresh) return adopt(lock, *fresh, wanted, driver);
    if (fresh.code() != errc::out_of_memory) return std::move(fresh).error();
    lock.lock();
  }
  ++books_.failures;
  refused.requested = wanted.size;
  refused.detail = "the pool holds " + to_string(bytes{books_.allocated.current}) + " in " +
                   std::to_string(books_.blocks.current) + " live blocks and keeps " +
                   to_string(bytes{books_.cached});
  return refused;
}

}  // namespace weir::inline v0::pools
