// The rest of a device, and what waits for it.
#include "sharing/rest.hpp"

#include <iterator>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "device/state.hpp"
#include "weir/device/stream.hpp"

namespace weir::inline v0::sharing {
namespace {

struct kept_mapping {
  const detail::device_state* home;  // alive: the mapping keeps its runtime
  std::shared_ptr<void> remains;
};

/// Of the process, and never destroyed: the end of a process unmaps everything anyway.
struct kept_mappings {
  std::mutex mutex;
  std::vector<kept_mapping> all;
};
kept_mappings& kept() {
  static auto& one = *new kept_mappings;
  return one;
}

/// Takes those of the device out.
std::vector<kept_mapping> take_kept(const detail::device_state& of) {
  kept_mappings& from = kept();
  const std::lock_guard lock{from.mutex};
  std::vector<kept_mapping> taken;
  for (kept_mapping& each : from.all)
    if (each.home == &of) taken.push_back(std::move(each));
  std::erase_if(from.all, [](const kept_mapping& each) { return each.remains == nullptr; });
  return taken;
}

void put_back(std::vector<kept_mapping> taken) {
  if (taken.empty()) return;
  kept_mappings& to = kept();
  const std::lock_guard lock{to.mutex};
  to.all.insert(to.all.end(), std::make_move_iterator(taken.begin()),
                std::make_move_iterator(taken.end()));
}

result<bool> any_capture(detail::device_state& home, const context_scope& bound) {
  std::uint64_t from_the_first = 0;
  for (const auto& each : home.known_streams.added_since(from_the_first)) {
    const auto capturing = each.stream.is_capturing(bound);
    if (capturing && *capturing) return true;
  }
  // It knows of captures of streams that synchronise with it, whoever made them.
  WEIR_TRY_VALUE(legacy, stream_ref::legacy(home.handle()).capture(bound));
  return legacy.status != capture_status::none;
}

}  // namespace

result<void> wait_for_rest(weir::device where) try {
  const context_scope bound{where};
  if (!bound) return bound.error();
  detail::device_state& home = detail::device_state::of(where);
  WEIR_TRY_VALUE(capturing, any_capture(home, bound));
  if (capturing) {
    return error{.code = errc::capture_forbidden,
                 .detail = "work may still use the memory, and cannot be waited for in a capture"};
  }
  // Before the wait, so that it counts for all of them.
  std::vector<kept_mapping> going = take_kept(home);
  auto rested = where.synchronize();
  if (!rested) put_back(std::move(going));
  return rested;
} catch (const std::bad_alloc&) {
  return error{.code = errc::system};
}

void keep_until_rest(weir::device where, std::shared_ptr<void> remains) noexcept {
  try {
    kept_mappings& to = kept();
    const std::lock_guard lock{to.mutex};
    to.all.push_back({&detail::device_state::of(where), std::move(remains)});
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
  }
}

}  // namespace weir::inline v0::sharing
