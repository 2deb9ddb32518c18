// SPDX-License-Identifier: Apache-2.0
// The life of a stream pool: visiting the driver for it, closing it, and its end.
#include "pools/stream_pool_state.hpp"

#include <string>
#include <utility>

#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace pools {

using driver::call;
using driver::check;

namespace {

std::uint64_t ceiling_of(detail::device_state& home, const stream_pool_config& config) {
  if (driver_takes_maximum(home.handle())) return 0;
  return checked_round_up(config.max.count(), driver_unit).value_or(config.max.count());
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
  ends_.listen_on(home_.handle());
}

stream_pool_state::~stream_pool_state() {
  // The child of a fork owns nothing, and a lock may be held by a thread that it does not have.
  if (home_.forked()) return;
  ends_.stop();
  uses_.stop();
  const context_scope scope{device()};
  const auto destroyed = scope ? destroy(scope) : result<void>{scope.error()};
  detail::report_failure(destroyed);
  const auto live = allocations_.count();
  if (live.active == 0 || (!destroyed && destroyed.code() == errc::driver_gone)) return;
  try {
    report_error(allocations_.leak());
  } catch (const std::bad_alloc&) {
    report_error({{.code = errc::still_live, .requested = live.size}});
  }
}

driver::CUmemoryPool stream_pool_state::handle() const noexcept {
  if (home_.forked()) return nullptr;
  const detail::read_lock lock{open_};
  return handle_;
}

result<void> stream_pool_state::destroy(const context_scope& scope) {
  if (handle_ == nullptr || kind_ == stream_pool_kind::standard) return {};
  const thread_capture_mode_guard relaxed{device()};
  if (!relaxed) return relaxed.error();
  WEIR_TRY(check(call::mem_pool_destroy, scope.driver().mem_pool_destroy(handle_)));
  handle_ = nullptr;
  return {};
}

result<stream_pool_remains> stream_pool_state::close() {
  if (home_.forked()) return detail::fork_error();
  if (kind_ == stream_pool_kind::standard) {
    return error{
        {.code = errc::not_permitted, .detail = "the device's default pool cannot be closed"}};
  }
  const context_scope scope{device()};
  if (!scope) return scope.error();
  const detail::write_lock lock{open_};
  if (handle_ == nullptr) return errc::closed;
  const auto live = allocations_.count();
  if (kind_ == stream_pool_kind::imported && live.active != 0) {
    return error{{.code = errc::invalid_argument,
                  .requested = live.size,
                  .detail = "free the imported pointers before closing their pool"}};
  }
  WEIR_TRY(destroy(scope));
  return stream_pool_remains{live.active, live.size};
}

bool driver_takes_maximum(weir::device device) noexcept { return device.driver_version() >= 12020; }

// --- Visits -------------------------------------------------------------------------------------

stream_pool_session::stream_pool_session(const stream_pool_state& pool, weir::device device)
    : pool_{pool}, scope_{device}, relaxed_{device} {
  if (!scope_) return;
  pool_.open_.lock_shared();
  holds_lock_ = true;
}

stream_pool_session::~stream_pool_session() {
  if (holds_lock_) pool_.open_.unlock_shared();
}

result<void> stream_pool_session::ready() const {
  if (!scope_) return scope_.error();
  if (!relaxed_) return relaxed_.error();
  if (handle() == nullptr) {
    return error{{.code = errc::closed, .detail = "the stream pool is closed"}};
  }
  return {};
}

result<std::optional<capture_id>> capture_of(const stream_ref& stream, const context_scope& scope) {
  const auto capture = stream.capture(scope);
  if (!capture) {
    // A driver that does not number captures: they all get the same number.
    if (capture.code() == errc::not_supported) return std::optional{capture_id{}};
    return capture.error();
  }
  switch (capture->status) {
    case capture_status::none:
      return std::optional<capture_id>{};
    case capture_status::active:
      return std::optional{capture->id};
    case capture_status::invalidated:
      return errc::capture_invalid;
    case capture_status::implicit:
      break;
  }
  return error{{.code = errc::capture_forbidden,
                .detail = "the legacy stream cannot be used while a stream that synchronises with "
                          "it is being captured; use another stream"}};
}

}}}  // namespace weir::v0::pools
