// SPDX-License-Identifier: Apache-2.0
// Events, the pool of them, and the thread's capture mode.
#include "weir/device/event.hpp"

#include <new>
#include <utility>

#include "device/state.hpp"

namespace weir { inline namespace v0 {

using detail::device_state;
using driver::call;
using driver::check;

namespace {

constexpr unsigned pool_flags = driver::CU_EVENT_DISABLE_TIMING;

unsigned driver_flags(const event_options& settings) noexcept {
  unsigned flags = driver::CU_EVENT_DEFAULT;
  if (!settings.timing) flags |= driver::CU_EVENT_DISABLE_TIMING;
  if (settings.interprocess) flags |= driver::CU_EVENT_INTERPROCESS;
  if (settings.blocking_sync) flags |= driver::CU_EVENT_BLOCKING_SYNC;
  return flags;
}

}  // namespace

result<event> event::create(weir::device owner, event_options settings) {
  if (settings.timing && settings.interprocess) {
    return error{{.code = errc::invalid_argument,
                  .detail = "an event cannot be both interprocess and timed"}};
  }
  const context_scope scope{owner};
  if (!scope) return scope.error();
  const unsigned flags = driver_flags(settings);
  driver::CUevent handle = nullptr;
  WEIR_TRY(check(call::event_create, scope.driver().event_create(&handle, flags)));
  return event{device_state::keep(owner), handle, flags};
}

result<event> event::import_handle(weir::device owner, const driver::CUipcEventHandle& handle) {
  const context_scope scope{owner};
  if (!scope) return scope.error();
  driver::CUevent opened = nullptr;
  WEIR_TRY(
      check(call::ipc_open_event_handle, scope.driver().ipc_open_event_handle(&opened, handle)));
  return event{device_state::keep(owner), opened, driver_flags({.interprocess = true})};
}

event::event(std::shared_ptr<detail::device_state> home, ::CUevent_st* handle,
             unsigned flags) noexcept
    : home_{std::move(home)}, handle_{handle}, flags_{flags} {}

event::~event() { detail::report_failure(close()); }

event::event(event&& other) noexcept
    : home_{std::move(other.home_)},
      handle_{std::exchange(other.handle_, nullptr)},
      flags_{other.flags_},
      closed_{std::exchange(other.closed_, false)} {}

event& event::operator=(event&& other) noexcept {
  if (this == &other) return *this;
  detail::report_failure(close());
  home_ = std::move(other.home_);
  handle_ = std::exchange(other.handle_, nullptr);
  flags_ = other.flags_;
  closed_ = std::exchange(other.closed_, false);
  return *this;
}

result<void> event::close() noexcept {
  if (home_ == nullptr) return {};
  const auto home = std::move(home_);
  const auto handle = std::exchange(handle_, nullptr);
  closed_ = true;
  const context_scope scope{home->handle()};
  if (!scope) return scope.error();
  return check(call::event_destroy, scope.driver().event_destroy(handle));
}

weir::device event::device() const noexcept { return home_->handle(); }

result<void> event::record(const stream_ref& stream) {
  const context_scope scope{stream.device()};
  return record(stream, scope);
}

result<void> event::record(const stream_ref& stream, const context_scope& scope) {
  if (home_ == nullptr) return empty_reason();
  if (stream.device() != device()) [[unlikely]] {
    return error{{.code = errc::bad_stream,
                  .detail = "an event of device " + std::to_string(device().id().number()) +
                            " cannot be recorded on a stream of device " +
                            std::to_string(stream.device().id().number())}};
  }
  WEIR_TRY(detail::check_scope(scope, device()));
  return check(call::event_record, scope.driver().event_record(handle_, stream.handle()));
}

result<void> event::record_all(const context_scope& scope) {
  if (home_ == nullptr) return empty_reason();
  WEIR_TRY(detail::check_scope(scope, device()));
  const auto record = scope.driver().ctx_record_event;
  if (record == nullptr) {
    return error{{.code = errc::not_supported,
                  .call = driver::info(call::ctx_record_event).symbol,
                  .detail = "the driver lacks this function"}};
  }
  return check(call::ctx_record_event,
               record(home_->context.load(std::memory_order_acquire), handle_));
}

result<bool> event::is_complete() const {
  if (home_ == nullptr) return empty_reason();
  const context_scope scope{device()};
  return is_complete(scope);
}

result<bool> event::is_complete(const context_scope& scope) const {
  if (home_ == nullptr) return empty_reason();
  WEIR_TRY(detail::check_scope(scope, device()));
  const auto native = scope.driver().event_query(handle_);
  if (native == driver::CUDA_ERROR_NOT_READY) return false;
  WEIR_TRY(check(call::event_query, native));
  return true;
}

result<void> event::synchronize() const {
  if (home_ == nullptr) return empty_reason();
  const context_scope scope{device()};
  if (!scope) return scope.error();
  return check(call::event_synchronize, scope.driver().event_synchronize(handle_));
}

result<std::chrono::duration<float, std::milli>> event::elapsed(const event& from,
                                                                const event& to) {
  if (!from) return from.empty_reason();
  if (!to) return to.empty_reason();
  if (((from.flags_ | to.flags_) & driver::CU_EVENT_DISABLE_TIMING) != 0) {
    return error{
        {.code = errc::invalid_argument, .detail = "the event was created without timing"}};
  }
  const context_scope scope{from.device()};
  if (!scope) return scope.error();
  float milliseconds = 0;
  WEIR_TRY(check(call::event_elapsed_time,
                 scope.driver().event_elapsed_time(&milliseconds, from.handle_, to.handle_)));
  return std::chrono::duration<float, std::milli>{milliseconds};
}

result<driver::CUipcEventHandle> event::export_handle() const {
  if (home_ == nullptr) return empty_reason();
  if ((flags_ & driver::CU_EVENT_INTERPROCESS) == 0) {
    return error{
        {.code = errc::invalid_argument, .detail = "the event was not created as interprocess"}};
  }
  const context_scope scope{device()};
  if (!scope) return scope.error();
  driver::CUipcEventHandle handle{};
  WEIR_TRY(
      check(call::ipc_get_event_handle, scope.driver().ipc_get_event_handle(&handle, handle_)));
  return handle;
}

event_pool::event_pool(weir::device owner, std::size_t keep)
    : home_{device_state::keep(owner)}, keep_{keep} {}

event_pool::~event_pool() { detail::report_failure(trim()); }

weir::device event_pool::device() const noexcept { return home_->handle(); }

// In a forked child the lock may be held by a thread that does not exist there: everything below
// asks about that first.

result<event> event_pool::acquire() {
  if (home_->forked()) return detail::fork_error();
  {
    const std::lock_guard lock{mutex_};
    if (!idle_.empty()) {
      event taken{home_, idle_.back(), pool_flags};
      idle_.pop_back();
      return taken;
    }
  }
  return event::create(device());
}

result<void> event_pool::release(event&& idle) {
  if (!idle) return idle.empty_reason();
  if (home_->forked()) return detail::fork_error();
  if (idle.home_.get() != home_.get() || idle.flags_ != pool_flags) return errc::foreign_pointer;
  try {
    const std::lock_guard lock{mutex_};
    if (idle_.size() < keep_) {
      idle_.push_back(idle.handle_);
      idle.handle_ = nullptr;
      idle.home_.reset();
      return {};
    }
  } catch (const std::bad_alloc&) {
    // No host memory to keep it; it is destroyed instead.
  }
  return idle.close();
}

result<void> event_pool::trim() {
  if (home_->forked()) return detail::fork_error();
  std::vector<::CUevent_st*> surplus;
  {
    const std::lock_guard lock{mutex_};
    surplus.swap(idle_);
  }
  if (surplus.empty()) return {};
  const context_scope scope{device()};
  if (!scope) return scope.error();
  result<void> outcome;
  for (auto* handle : surplus) {
    auto destroyed = check(call::event_destroy, scope.driver().event_destroy(handle));
    if (!destroyed && outcome) outcome = std::move(destroyed);
  }
  return outcome;
}

std::size_t event_pool::idle() const {
  if (home_->forked()) return 0;
  const std::lock_guard lock{mutex_};
  return idle_.size();
}

thread_capture_mode_guard::thread_capture_mode_guard(weir::device device) noexcept
    : device_{device} {
  if (device_state::of(device).forked()) return;
  native_ = device.driver().thread_exchange_stream_capture_mode(&previous_);
  exchanged_ = native_ == driver::CUDA_SUCCESS;
}

thread_capture_mode_guard::~thread_capture_mode_guard() {
  if (!exchanged_) return;
  auto mode = previous_;
  detail::report_failure(check(call::thread_exchange_stream_capture_mode,
                               device_.driver().thread_exchange_stream_capture_mode(&mode)));
}

weir::error thread_capture_mode_guard::error() const {
  if (device_state::of(device_).forked()) return detail::fork_error();
  return driver::make_error(call::thread_exchange_stream_capture_mode, native_);
}

}}  // namespace weir::v0
