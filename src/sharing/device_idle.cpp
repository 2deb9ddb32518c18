// Waiting for a device, and the mappings that wait for it.
#include "sharing/device_idle.hpp"

#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "device/state.hpp"
#include "weir/device/stream.hpp"

namespace weir::inline v0::sharing {
namespace {

struct kept_mapping {
  const detail::device_state* home;  // alive: the mapping keeps its runtime
  std::shared_ptr<void> mappings;
};

/// Of the process, and never destroyed: the end of a process unmaps everything anyway.
struct kept_mappings {
  detail::mutex mutex;
  std::vector<kept_mapping> all WEIR_GUARDED_BY(mutex);
};
kept_mappings& process_kept() {
  static auto& kept = *new kept_mappings;
  return kept;
}

/// Removes and returns those of the device.
std::vector<kept_mapping> take_kept(const detail::device_state& home) {
  kept_mappings& kept = process_kept();
  const detail::mutex_lock lock{kept.mutex};
  std::vector<kept_mapping> taken;
  for (kept_mapping& each : kept.all)
    if (each.home == &home) taken.push_back(std::move(each));
  std::erase_if(kept.all, [](const kept_mapping& each) { return each.mappings == nullptr; });
  return taken;
}

void put_back(std::vector<kept_mapping> taken) {
  if (taken.empty()) return;
  kept_mappings& kept = process_kept();
  const detail::mutex_lock lock{kept.mutex};
  kept.all.insert(kept.all.end(), std::make_move_iterator(taken.begin()),
                  std::make_move_iterator(taken.end()));
}

result<bool> is_any_capturing(detail::device_state& home, const context_scope& bound) {
  std::uint64_t from_the_first = 0;
  for (const auto& each : home.known_streams.added_since(from_the_first)) {
    const auto capturing = each.stream.is_capturing(bound);
    if (capturing && *capturing) return true;
  }
  // It knows of captures of streams that synchronise with it, whoever created them.
  WEIR_TRY_VALUE(legacy, stream_ref::legacy(home.handle()).capture(bound));
  return legacy.status != capture_status::none;
}

}  // namespace

result<void> wait_until_idle(weir::device home) try {
  const context_scope bound{home};
  if (!bound) return bound.error();
  detail::device_state& state = detail::device_state::of(home);
  WEIR_TRY_VALUE(capturing, is_any_capturing(state, bound));
  if (capturing) {
    return error{.code = errc::capture_forbidden,
                 .detail = "work may still use the memory, and cannot be waited for in a capture"};
  }
  // Before the wait, so that it counts for all of them.
  std::vector<kept_mapping> taken = take_kept(state);
  auto idle = home.synchronize();
  if (!idle) put_back(std::move(taken));
  return idle;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void keep_until_idle(weir::device home, std::shared_ptr<void> mappings) noexcept {
  try {
    kept_mappings& kept = process_kept();
    const detail::mutex_lock lock{kept.mutex};
    kept.all.push_back({&detail::device_state::of(home), std::move(mappings)});
  } catch (const std::bad_alloc&) {
    report_error(detail::no_host_memory());
  }
}

}  // namespace weir::inline v0::sharing
