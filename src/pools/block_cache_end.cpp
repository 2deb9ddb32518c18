// The end of a pool: what is waited for, what is released, and what is kept.
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "device/finished_work.hpp"
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
  if (home_->forked()) return;
  if (listening_) detail::remove_listener(*home_, *this);
  const mutex_lock lock{mutex_};
  if (!blocks_.empty()) end();
}

void block_cache::end() noexcept {
  std::optional<driver_access> driver{std::in_place, device_};
  if (!driver->entered()) driver.emplace(device_);  // once more: what cannot be released is lost
  result<void> waited = driver->entered();
  if (!waited && waited.code() == errc::driver_gone) return;  // and all memory with the driver
  if (stats_.blocks.current != 0) report_error(leak());
  if (!waited) return report_error(kept_memory(std::move(waited).error(), stats_.reserved.current));
  waited = contained([&] {
    mutex_.assert_held();
    return wait_for_all_users(*driver);
  });
  const bool all_are_idle = waited || does_no_work(waited.error());
  result<void> released;
  const bytes kept = release_idle_blocks(all_are_idle, *driver, released);
  if (kept != bytes{}) return report_error(kept_memory(std::move(waited).error(), kept));
  detail::report_failure(waited ? released : waited);
}

error block_cache::leak() const noexcept {
  const auto told = [&](std::vector<observe::accused_block> live) {
    mutex_.assert_held();
    return observe::leak("a pool went", stats_.blocks.current, stats_.allocated.current,
                         std::move(live));
  };
  try {
    std::vector<observe::accused_block> live;
    for (const auto& [key, each] : blocks_)
      if (each.state == block_state::live) live.push_back(accused(each));
    return told(std::move(live));
  } catch (const std::bad_alloc&) {
    return error{.code = errc::still_live, .requested = stats_.allocated.current};
  }
}

result<void> block_cache::wait_for_all_users(driver_access& driver) {
  const bool any_live = stats_.blocks.current != 0;
  const auto streams = contained([&] {
    mutex_.assert_held();
    return wait_for_streams(driver);
  });
  if (streams && !order_.any_behind() && !any_live) return {};
  WEIR_TRY(detail::wait_for_all_work(driver.enter()));
  if (any_live) WEIR_TRY(wait_for_other_devices(*home_));
  return {};
}

bytes block_cache::release_idle_blocks(bool all_are_idle, driver_access& driver,
                                       result<void>& outcome) noexcept {
  bytes kept{};
  for (const auto& [key, each] : blocks_) {
    const bytes size{each.size};
    const bool is_idle = each.state == block_state::cached && each.is_quiescent();
    if (!all_are_idle && !is_idle) {
      kept += size;
      continue;
    }
    auto released =
        contained([&, base = each.base] { return source_.release(driver.enter(), base, size); });
    if (!released && outcome) outcome = std::move(released);
  }
  return kept;
}

}}}  // namespace weir::v0::pools
