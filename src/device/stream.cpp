// Streams: their numbers, their state of capture, and owning one.
#include "weir/device/stream.hpp"

#include <atomic>
#include <utility>

#include "device/state.hpp"
#include "weir/device/event.hpp"

namespace weir::inline v0 {

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
std::atomic<std::uint64_t> next_thread{1};

stream_id own_number(device_state& where, driver::CUstream handle) {
  if (handle == driver::per_thread_stream()) {
    thread_local const std::uint64_t thread = next_thread.fetch_add(1, std::memory_order_relaxed);
    return stream_id{
        per_thread_mark |
        where.runtime_is->with(thread << 16 | static_cast<std::uint16_t>(where.id.number()))};
  }
  const std::lock_guard lock{where.numbers_mutex};
  auto& number = where.numbers[handle];
  if (number == 0) number = next_stream.fetch_add(1, std::memory_order_relaxed);
  return stream_id{where.runtime_is->with(number)};
}

}  // namespace

void add_listener(device_state& where, stream_listener& who) {
  const std::lock_guard lock{where.listeners_mutex};
  where.listeners.push_back(&who);
}

void tell_end(device_state& where, const stream_ref& stream) noexcept {
  // Told first and forgotten then: whoever looks in between finds the stream in one place or the
  // other. And with the lock, so that a listener that comes later finds it in neither.
  const std::lock_guard lock{where.listeners_mutex};
  for (stream_listener* each : where.listeners) each->stream_closing(stream);
  where.known_streams.remove(stream.known_id());
}

void remove_listener(device_state& where, stream_listener& who) noexcept {
  const std::lock_guard lock{where.listeners_mutex};
  std::erase(where.listeners, &who);
}

void forget_stream(device_state& where, driver::CUstream handle) noexcept {
  if (where.calls->stream_get_id != nullptr) return;
  const std::lock_guard lock{where.numbers_mutex};
  where.numbers.erase(handle);
}

}  // namespace detail

result<stream_id> stream_ref::ask_id() const {
  const context_scope bound{device_};
  return id(bound);
}

result<stream_id> stream_ref::id(const context_scope& bound) const {
  if (id_ != stream_id{}) return id_;
  WEIR_TRY(detail::entered(bound, device_));
  const auto get_id = bound.driver().stream_get_id;
  if (get_id == nullptr) return detail::own_number(device_state::of(device_), handle_);
  // The driver takes the question for a use of the stream: a capture would not survive it.
  driver::CUstreamCaptureStatus status{};
  const auto asked = bound.driver().stream_is_capturing(handle_, &status);
  if (asked == driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
      (asked == driver::CUDA_SUCCESS && status != driver::CU_STREAM_CAPTURE_STATUS_NONE)) {
    return error{.code = errc::capture_forbidden,
                 .call = driver::info(call::stream_get_id).symbol,
                 .detail = "a stream's id must be known before its capture begins"};
  }
  WEIR_TRY(check(call::stream_is_capturing, asked));
  unsigned long long number = 0;
  WEIR_TRY(check(call::stream_get_id, get_id(handle_, &number)));
  return stream_id{device_state::of(device_).runtime_is->with(number)};
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
  const context_scope bound{device_};
  if (!bound) return bound.error();
  const auto& calls = bound.driver();
  driver::CUcontext theirs = nullptr;
  const auto native = calls.stream_get_ctx(handle_, &theirs);
  if (native != driver::CUDA_SUCCESS) {
    auto reason = driver::make_error(call::stream_get_ctx, native);
    if (native == driver::CUDA_ERROR_INVALID_HANDLE || native == driver::CUDA_ERROR_INVALID_VALUE ||
        native == driver::CUDA_ERROR_INVALID_CONTEXT ||
        native == driver::CUDA_ERROR_CONTEXT_IS_DESTROYED) {
      reason.code = errc::bad_stream;
    }
    return reason;
  }
  WEIR_TRY_VALUE(ours, device_.context());
  if (theirs == ours) return {};
  // A context of the user's own, or a green one: what counts is whose device it is on.
  WEIR_TRY(check(call::ctx_push_current, calls.ctx_push_current(theirs)));
  driver::CUdevice where = 0;
  const auto asked = calls.ctx_get_device(&where);
  driver::CUcontext popped = nullptr;
  WEIR_TRY(check(call::ctx_pop_current, calls.ctx_pop_current(&popped)));
  WEIR_TRY(check(call::ctx_get_device, asked));
  if (where == device_state::of(device_).native) return {};
  return error{.code = errc::bad_stream,
               .detail = "the stream belongs to another device than device " +
                         std::to_string(device_.id().number())};
}

result<void> stream_ref::synchronize() const {
  const context_scope bound{device_};
  if (!bound) return bound.error();
  return check(call::stream_synchronize, bound.driver().stream_synchronize(handle_));
}

result<bool> stream_ref::ready() const {
  const context_scope bound{device_};
  return ready(bound);
}

result<bool> stream_ref::ready(const context_scope& bound) const {
  WEIR_TRY(detail::entered(bound, device_));
  const auto native = bound.driver().stream_query(handle_);
  if (native == driver::CUDA_ERROR_NOT_READY) return false;
  WEIR_TRY(check(call::stream_query, native));
  return true;
}

result<void> stream_ref::wait(const event& until) const {
  const context_scope bound{device_};
  return wait(until, bound);
}

result<void> stream_ref::wait(const event& until, const context_scope& bound) const {
  if (!until) return errc::already_freed;
  WEIR_TRY(detail::entered(bound, device_));
  return check(
      call::stream_wait_event,
      bound.driver().stream_wait_event(handle_, until.handle(), driver::CU_EVENT_WAIT_DEFAULT));
}

result<capture_info> stream_ref::capture() const {
  const context_scope bound{device_};
  return capture(bound);
}

result<capture_info> stream_ref::capture(const context_scope& bound) const {
  WEIR_TRY(detail::entered(bound, device_));
  const auto& calls = bound.driver();
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
  const context_scope bound{device_};
  return is_capturing(bound);
}

result<bool> stream_ref::is_capturing(const context_scope& bound) const {
  WEIR_TRY(detail::entered(bound, device_));
  auto status = driver::CU_STREAM_CAPTURE_STATUS_NONE;
  const auto native = bound.driver().stream_is_capturing(handle_, &status);
  // Said of the legacy stream while another one is captured; the question does no harm.
  if (native == driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  WEIR_TRY(check(call::stream_is_capturing, native));
  return status != driver::CU_STREAM_CAPTURE_STATUS_NONE;
}

result<stream> stream::create(weir::device owner, stream_options settings) {
  const context_scope bound{owner};
  if (!bound) return bound.error();
  const unsigned flags =
      settings.non_blocking ? driver::CU_STREAM_NON_BLOCKING : driver::CU_STREAM_DEFAULT;
  driver::CUstream handle = nullptr;
  WEIR_TRY(check(call::stream_create_with_priority,
                 bound.driver().stream_create_with_priority(&handle, flags, settings.priority)));
  stream created{device_state::keep(owner), handle};
  // A stream that somebody else destroyed may have had this handle and a number by it.
  detail::forget_stream(*created.home_, handle);
  WEIR_TRY_VALUE(number, stream_ref(owner, handle).id(bound));
  created.id_ = number;
  created.home_->known_streams.add(created.ref());
  return created;
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
  const stream_ref going = ref();
  const auto home = std::move(home_);
  const auto handle = std::exchange(handle_, nullptr);
  id_ = {};
  const context_scope bound{home->handle()};
  if (!bound) return bound.error();
  detail::tell_end(*home, going);
  detail::forget_stream(*home, handle);
  return check(call::stream_destroy, bound.driver().stream_destroy(handle));
}

stream_ref stream::ref() const noexcept {
  stream_ref known{home_->handle(), handle_};
  known.id_ = id_;
  return known;
}

}  // namespace weir::inline v0
