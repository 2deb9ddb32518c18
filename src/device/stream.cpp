// SPDX-License-Identifier: Apache-2.0
// Streams: their numbers, their state of capture, and owning one.
#include "weir/device/stream.hpp"

#include <atomic>
#include <new>
#include <utility>

#include "base/thread_number.hpp"
#include "device/state.hpp"
#include "device/thread_stream_ends.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 {

using detail::device_state;
using driver::call;
using driver::check;

namespace detail {
namespace {

/// Numbers for drivers without cuStreamGetId. One counter for the process, so that two devices'
/// streams never share one. The top bit marks per-thread streams, which have no entry: their number
/// is made of the thread's, the device's and the runtime's.
constexpr std::uint64_t per_thread_mark = std::uint64_t{1} << 63;
std::atomic<std::uint64_t> next_stream{1};

stream_id own_number(device_state& state, driver::CUstream handle) {
  if (handle == driver::per_thread_stream()) {
    const std::uint64_t thread = thread_number();
    return stream_id{
        per_thread_mark |
        state.runtime_tag->with(thread << 16 | static_cast<std::uint16_t>(state.id.number()))};
  }
  const std::lock_guard lock{state.numbers_mutex};
  auto& number = state.numbers[handle];
  if (number == 0) number = next_stream.fetch_add(1, std::memory_order_relaxed);
  return stream_id{state.runtime_tag->with(number)};
}

}  // namespace

void add_listener(device_state& state, stream_listener& listener) {
  const std::lock_guard lock{state.listeners_mutex};
  state.listeners.push_back(&listener);
}

void emit_stream_end(device_state& state, const stream_ref& stream) noexcept {
  // Emitted first and removed then: whoever reads in between sees the stream in one place or the
  // other. And with the lock, so that a listener that is added later sees it in neither.
  const std::lock_guard lock{state.listeners_mutex};
  for (stream_listener* listener : state.listeners) listener->stream_closing(stream);
  state.known_streams.remove(stream.known_id());
}

void remove_listener(device_state& state, stream_listener& listener) noexcept {
  const std::lock_guard lock{state.listeners_mutex};
  std::erase(state.listeners, &listener);
}

void forget_stream(device_state& state, driver::CUstream handle) noexcept {
  if (state.calls->stream_get_id != nullptr) return;
  const std::lock_guard lock{state.numbers_mutex};
  state.numbers.erase(handle);
}

}  // namespace detail

result<stream_id> stream_ref::query_id() const {
  const context_scope scope{device_};
  return id(scope);
}

result<stream_id> stream_ref::id(const context_scope& scope) const {
  if (id_ != stream_id{}) return id_;
  WEIR_TRY(detail::check_scope(scope, device_));
  const auto get_id = scope.driver().stream_get_id;
  device_state& home = device_state::of(device_);
  if (get_id == nullptr) {
    const stream_id own = detail::own_number(home, handle_);
    if (is_per_thread()) detail::announce_thread_stream_end(home, own);
    return own;
  }
  if (is_legacy()) {
    const std::uint64_t known = home.legacy_number.load(std::memory_order_relaxed);
    if (known != 0) return stream_id{home.runtime_tag->with(known)};
  }
  // The driver takes the question for a use of the stream: a capture would not survive it.
  driver::CUstreamCaptureStatus status{};
  const auto native = scope.driver().stream_is_capturing(handle_, &status);
  if (native == driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
      (native == driver::CUDA_SUCCESS && status != driver::CU_STREAM_CAPTURE_STATUS_NONE)) {
    const std::uint64_t known =
        is_per_thread() ? home.thread_streams.of(detail::thread_number()) : 0;
    if (known != 0) return stream_id{home.runtime_tag->with(known)};
    return error{{.code = errc::capture_forbidden,
                  .call = driver::info(call::stream_get_id).symbol,
                  .detail = "the stream's id cannot be read during its capture; call id() before "
                            "the capture begins"}};
  }
  WEIR_TRY(check(call::stream_is_capturing, native));
  unsigned long long number = 0;
  WEIR_TRY(check(call::stream_get_id, get_id(handle_, &number)));
  if (is_legacy()) home.legacy_number.store(number, std::memory_order_relaxed);
  const stream_id named{home.runtime_tag->with(number)};
  if (is_per_thread()) {
    home.thread_streams.keep(detail::thread_number(), number);
    detail::announce_thread_stream_end(home, named);
  }
  return named;
}

result<stream_ref> stream_ref::identified() const {
  if (is_per_thread()) return *this;
  WEIR_TRY_VALUE(number, id());
  stream_ref known = *this;
  known.id_ = number;
  return known;
}

result<void> stream_ref::validate() const {
  // The two default streams are those of whatever context is current.
  if (is_legacy() || is_per_thread()) return {};
  const context_scope scope{device_};
  if (!scope) return scope.error();
  const auto& calls = scope.driver();
  driver::CUcontext stream_context = nullptr;
  const auto native = calls.stream_get_ctx(handle_, &stream_context);
  if (native != driver::CUDA_SUCCESS) {
    auto reason = driver::make_error(call::stream_get_ctx, native);
    if (native == driver::CUDA_ERROR_INVALID_HANDLE || native == driver::CUDA_ERROR_INVALID_VALUE ||
        native == driver::CUDA_ERROR_INVALID_CONTEXT ||
        native == driver::CUDA_ERROR_CONTEXT_IS_DESTROYED) {
      reason.set_code(errc::bad_stream);
    }
    return reason;
  }
  WEIR_TRY_VALUE(own_context, device_.context());
  if (stream_context == own_context) return {};
  // A context of the user's own, or a green one: what counts is whose device it is on.
  WEIR_TRY(check(call::ctx_push_current, calls.ctx_push_current(stream_context)));
  driver::CUdevice device = 0;
  const auto device_result = calls.ctx_get_device(&device);
  WEIR_TRY(detail::pop_context(calls, stream_context));
  WEIR_TRY(check(call::ctx_get_device, device_result));
  if (device == device_state::of(device_).native) return {};
  return error{{.code = errc::bad_stream,
                .detail = "the stream belongs to another device than device " +
                          std::to_string(device_.id().number())}};
}

result<void> stream_ref::synchronize() const {
  const context_scope scope{device_};
  if (!scope) return scope.error();
  return check(call::stream_synchronize, scope.driver().stream_synchronize(handle_));
}

result<bool> stream_ref::is_complete() const {
  const context_scope scope{device_};
  return is_complete(scope);
}

result<bool> stream_ref::is_complete(const context_scope& scope) const {
  WEIR_TRY(detail::check_scope(scope, device_));
  const auto native = scope.driver().stream_query(handle_);
  if (native == driver::CUDA_ERROR_NOT_READY) return false;
  WEIR_TRY(check(call::stream_query, native));
  return true;
}

result<void> stream_ref::wait(const weir::event& event) const {
  const context_scope scope{device_};
  return wait(event, scope);
}

result<void> stream_ref::wait(const weir::event& event, const context_scope& scope) const {
  if (!event) return event.empty_reason();
  WEIR_TRY(detail::check_scope(scope, device_));
  return check(
      call::stream_wait_event,
      scope.driver().stream_wait_event(handle_, event.handle(), driver::CU_EVENT_WAIT_DEFAULT));
}

std::string to_string(capture_status status) {
  switch (status) {
    case capture_status::none:
      return "none";
    case capture_status::active:
      return "active";
    case capture_status::invalidated:
      return "invalidated";
    case capture_status::implicit:
      return "implicit";
  }
  return "unknown";
}

std::string to_string(const capture_info& info) {
  const std::string status = to_string(info.status);
  return info.status == capture_status::active ? status + ' ' + to_string(info.id) : status;
}

result<capture_info> stream_ref::capture() const {
  const context_scope scope{device_};
  return capture(scope);
}

result<capture_info> stream_ref::capture(const context_scope& scope) const {
  WEIR_TRY(detail::check_scope(scope, device_));
  const auto& calls = scope.driver();
  const bool names_captures = calls.stream_get_capture_info != nullptr;
  auto status = driver::CU_STREAM_CAPTURE_STATUS_NONE;
  std::uint64_t number = 0;
  const auto native = names_captures ? calls.stream_get_capture_info(handle_, &status, &number,
                                                                     nullptr, nullptr, nullptr)
                                     : calls.stream_is_capturing(handle_, &status);
  if (native == driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return capture_info{.status = capture_status::implicit};
  }
  WEIR_TRY(
      check(names_captures ? call::stream_get_capture_info : call::stream_is_capturing, native));
  switch (status) {
    case driver::CU_STREAM_CAPTURE_STATUS_NONE:
      return capture_info{};
    case driver::CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return capture_info{.status = capture_status::invalidated};
    case driver::CU_STREAM_CAPTURE_STATUS_ACTIVE:
      break;
  }
  if (!names_captures) return errc::not_supported;
  return capture_info{.status = capture_status::active, .id = capture_id{number}};
}

result<bool> stream_ref::is_capturing() const {
  const context_scope scope{device_};
  return is_capturing(scope);
}

result<bool> stream_ref::is_capturing(const context_scope& scope) const {
  WEIR_TRY(detail::check_scope(scope, device_));
  auto status = driver::CU_STREAM_CAPTURE_STATUS_NONE;
  const auto native = scope.driver().stream_is_capturing(handle_, &status);
  // Said of the legacy stream while another one is captured; the question does no harm.
  if (native == driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  WEIR_TRY(check(call::stream_is_capturing, native));
  return status != driver::CU_STREAM_CAPTURE_STATUS_NONE;
}

result<stream> stream::create(weir::device owner, stream_options settings) try {
  const context_scope scope{owner};
  if (!scope) return scope.error();
  const unsigned flags =
      settings.non_blocking ? driver::CU_STREAM_NON_BLOCKING : driver::CU_STREAM_DEFAULT;
  driver::CUstream handle = nullptr;
  WEIR_TRY(check(call::stream_create_with_priority,
                 scope.driver().stream_create_with_priority(&handle, flags, settings.priority)));
  stream created{device_state::keep(owner), handle};
  // A stream that somebody else destroyed may have had this handle and a number by it.
  detail::forget_stream(*created.home_, handle);
  WEIR_TRY_VALUE(number, stream_ref(owner, handle).id(scope));
  created.id_ = number;
  created.home_->known_streams.add(created.ref());
  return created;
} catch (const std::bad_alloc&) {
  return error{{.code = errc::no_host_memory}};
}

stream::stream(std::shared_ptr<detail::device_state> home, ::CUstream_st* handle) noexcept
    : home_{std::move(home)}, handle_{handle} {}

stream::~stream() { detail::report_failure(close()); }

stream::stream(stream&& other) noexcept
    : home_{std::move(other.home_)},
      handle_{std::exchange(other.handle_, nullptr)},
      id_{std::exchange(other.id_, {})} {}

stream& stream::operator=(stream&& other) noexcept {
  if (this == &other) return *this;
  detail::report_failure(close());
  home_ = std::move(other.home_);
  handle_ = std::exchange(other.handle_, nullptr);
  id_ = std::exchange(other.id_, {});
  return *this;
}

result<void> stream::close() noexcept {
  if (home_ == nullptr) return {};
  const stream_ref closing = ref();
  const auto home = std::move(home_);
  const auto handle = std::exchange(handle_, nullptr);
  id_ = {};
  const context_scope scope{home->handle()};
  if (!scope) return scope.error();
  detail::emit_stream_end(*home, closing);
  detail::forget_stream(*home, handle);
  return check(call::stream_destroy, scope.driver().stream_destroy(handle));
}

stream_ref stream::ref() const {
  if (home_ == nullptr) raise(errc::moved_from);
  stream_ref known{home_->handle(), handle_};
  known.id_ = id_;
  return known;
}

}}  // namespace weir::v0
