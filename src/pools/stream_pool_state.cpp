// The life of a stream pool: visiting the driver for it, closing it, and its end.
#include "pools/stream_pool_state.hpp"

#include <string>
#include <utility>

#include "weir/base/checked.hpp"

namespace weir::inline v0::pools {

using driver::call;
using driver::check;

namespace {

/// The unit in which newer drivers enforce it.
constexpr std::uint64_t maximum_unit = std::uint64_t{32} << 20;

std::uint64_t ceiling_of(detail::device_state& home, const stream_pool_config& config) {
  if (driver_takes_maximum(home.handle())) return 0;
  return checked_round_up(config.max.count(), maximum_unit).value_or(config.max.count());
}

}  // namespace

stream_pool_state::stream_pool_state(detail::device_state& home,
                                     std::shared_ptr<detail::device_state> keep_alive,
                                     driver::CUmemoryPool handle, stream_pool_kind kind,
                                     const stream_pool_config& config)
    : home_{home},
      keep_alive_{std::move(keep_alive)},
      kind_{kind},
      config_{config},
      own_ceiling_{ceiling_of(home, config)},
      handle_{handle} {
  detail::add_listener(home_, *this);
}

stream_pool_state::~stream_pool_state() {
  // The child of a fork owns nothing, and a lock may be held by a thread that it does not have.
  if (home_.forked()) return;
  detail::remove_listener(home_, *this);
  const context_scope bound{device()};
  const auto gone = bound ? destroy(bound) : result<void>{bound.error()};
  detail::report_failure(gone);
  const auto left = books_.count();
  if (left.active == 0 || (!gone && gone.code() == errc::driver_gone)) return;
  report_error({.code = errc::already_freed,
                .requested = left.size,
                .detail = std::to_string(left.active) + " allocations outlive their stream pool"});
}

driver::CUmemoryPool stream_pool_state::handle() const noexcept {
  if (home_.forked()) return nullptr;
  const std::shared_lock open{open_};
  return handle_;
}

result<void> stream_pool_state::destroy(const context_scope& bound) {
  if (handle_ == nullptr || kind_ == stream_pool_kind::standard) return {};
  const thread_capture_mode_guard relaxed{device()};
  if (!relaxed) return relaxed.error();
  WEIR_TRY(check(call::mem_pool_destroy, bound.driver().mem_pool_destroy(handle_)));
  handle_ = nullptr;
  return {};
}

result<stream_pool_remains> stream_pool_state::close() {
  if (home_.forked()) return detail::fork_error();
  if (kind_ == stream_pool_kind::standard) {
    return error{.code = errc::not_permitted, .detail = "a device's default pool stays"};
  }
  const context_scope bound{device()};
  if (!bound) return bound.error();
  const std::lock_guard alone{open_};
  if (handle_ == nullptr) return errc::already_freed;
  const auto left = books_.count();
  if (kind_ == stream_pool_kind::imported && left.active != 0) {
    return error{.code = errc::invalid_argument,
                 .requested = left.size,
                 .detail = "imported pointers must be freed before their pool is closed"};
  }
  WEIR_TRY(destroy(bound));
  return stream_pool_remains{left.active, left.size};
}

bool driver_takes_maximum(weir::device where) noexcept { return where.driver_version() >= 12020; }

// --- Visits -------------------------------------------------------------------------------------

stream_pool_session::stream_pool_session(const stream_pool_state& pool, weir::device where)
    : pool_{pool}, open_{pool.open_, std::defer_lock}, bound_{where}, relaxed_{where} {
  if (bound_) open_.lock();  // not in the child of a fork
}

result<void> stream_pool_session::ready() const {
  if (!bound_) return bound_.error();
  if (!relaxed_) return relaxed_.error();
  if (pool_.handle_ == nullptr) {
    return error{.code = errc::already_freed, .detail = "the stream pool was closed"};
  }
  return {};
}

result<std::optional<capture_id>> capture_of(const stream_ref& stream, const context_scope& bound) {
  const auto asked = stream.capture(bound);
  if (!asked) {
    // A driver that does not number captures: they all get the same number.
    if (asked.code() == errc::not_supported) return std::optional{capture_id{}};
    return asked.error();
  }
  switch (asked->status) {
    case capture_status::none:
      return std::optional<capture_id>{};
    case capture_status::active:
      return std::optional{asked->id};
    case capture_status::invalidated:
      return errc::capture_invalid;
    case capture_status::implicit:
      break;
  }
  return error{.code = errc::capture_forbidden,
               .detail = "the legacy stream, beside the capture of a stream that waits for it"};
}

result<void> wait_for_device(const context_scope& bound) {
  // Giving pinned memory back waits for all work of all devices, and needs no room on any.
  void* page = nullptr;
  WEIR_TRY(check(call::mem_host_alloc, bound.driver().mem_host_alloc(&page, 4096, 0)));
  return check(call::mem_free_host, bound.driver().mem_free_host(page));
}

}  // namespace weir::inline v0::pools
