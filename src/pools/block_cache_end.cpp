// SPDX-License-Identifier: Apache-2.0
// The end of a pool: what is waited for, what is released, and what is kept.
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "device/finished_work.hpp"
#include "observe/misuse.hpp"
#include "pools/all_devices.hpp"
#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"

namespace weir { inline namespace v0 { namespace pools {

using detail::does_no_work;
using detail::mutex_lock;

result<void> block_cache::close() {
  if (home_->forked()) return detail::fork_error();
  driver_access driver{device_};
  const mutex_lock lock{mutex_};
  closed_ = true;
  auto released = release_down_to({}, driver);
  static_cast<void>(releases_.wait_for_others(mutex_));
  if (!released) return std::move(released).error();
  return {};
}

block_cache::~block_cache() {
  if (!home_->forked()) end();
}

void block_cache::end() noexcept {
  std::optional<driver_access> driver{std::in_place, device_};
  std::optional<error> leaked;
  bytes reserved{};
  {
    const mutex_lock lock{mutex_};
    reserved = stats_.reserved.current;
    if (stats_.blocks.current != 0) leaked = leak();
  }
  result<void> entered;
  if (reserved != bytes{}) entered = driver->entered();
  if (!entered) {
    driver.emplace(device_);  // once more: what cannot be released is lost
    entered = driver->entered();
  }
  const bool driver_gone = !entered && entered.code() == errc::driver_gone;
  if (leaked && !driver_gone) report_error(*leaked);
  result<void> waited = entered;
  if (entered && reserved != bytes{}) {
    waited = contained([&] {
      const mutex_lock lock{mutex_};
      return wait_for_all_users(*driver);
    });
  }
  // Streams that ended until now were told to the pool, which may have been waiting for them. Not
  // with the lock: the end of a stream takes it behind that of the listeners.
  ends_.stop();
  if (driver_gone || reserved == bytes{})
    return;  // all memory went with the driver, or there is none
  if (!entered) return report_error(kept_memory(std::move(entered).error(), reserved));
  const bool all_are_idle = waited || does_no_work(waited.error());
  result<void> released;
  bytes kept{};
  {
    const mutex_lock lock{mutex_};
    kept = release_idle_blocks(all_are_idle, *driver, released);
  }
  if (kept != bytes{}) return report_error(kept_memory(std::move(waited).error(), kept));
  detail::report_failure(waited ? released : waited);
}

error block_cache::leak() const noexcept {
  const auto told = [&](std::vector<observe::accused_block> live) {
    mutex_.assert_held();
    return observe::leak("a pool was closed", stats_.blocks.current, stats_.allocated.current,
                         std::move(live));
  };
  try {
    return told(blocks_.live_blocks());
  } catch (const std::bad_alloc&) {
    return error{{.code = errc::still_live, .requested = stats_.allocated.current}};
  }
}

result<void> block_cache::wait_for_all_users(driver_access& driver) {
  const bool any_live = stats_.blocks.current != 0;
  const bool uses_elsewhere = any_live || !pending_.empty();
  const auto streams = contained([&] {
    mutex_.assert_held();
    return wait_for_streams(driver);
  });
  if (streams && !order_.any_behind() && !any_live) return {};
  result<void> waited;
  static_cast<void>(without_lock([&] {
    waited = detail::wait_for_all_work(driver.enter());
    if (waited && uses_elsewhere) waited = wait_for_other_devices(*home_);
  }));
  return waited;
}

bytes block_cache::release_idle_blocks(bool all_are_idle, driver_access& driver,
                                       result<void>& outcome) noexcept {
  bytes kept{};
  blocks_.for_each([&](const block& each) {
    const bytes size{each.size};
    const bool is_idle = each.state == block_state::cached && each.is_quiescent();
    if (!all_are_idle && !is_idle) {
      kept += size;
      return;
    }
    auto released = contained([&] { return source_.release(driver.enter(), each.base, size); });
    if (!released && outcome) outcome = std::move(released);
  });
  return kept;
}

}}}  // namespace weir::v0::pools
