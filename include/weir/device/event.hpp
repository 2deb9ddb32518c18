// SPDX-License-Identifier: Apache-2.0
// Events: marks in the order of a stream; a pool of them; and the guard that keeps captures whole.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/driver/types.hpp"

namespace weir { inline namespace v0 {

struct event_options {
  bool timing = false;         ///< needed by elapsed(); makes recording dearer
  bool interprocess = false;   ///< can be opened by another process; excludes timing
  bool blocking_sync = false;  ///< synchronize() sleeps instead of spinning
};

/// A mark that is recorded behind the work queued on a stream and is complete when that work is.
///
/// Holds an event unless moved from or closed; keeps its runtime alive. Never recorded counts as
/// complete. Recording again moves the mark; waits queued before keep waiting for the old place.
/// Destroying an event that is not complete yet is safe. Any thread may record, query and wait;
/// moving and closing need to be alone. Record, query and wait cost one driver call each
/// (160–225 ns) besides the scope.
///
/// Calls on an empty event return moved_from, or closed after close().
class WEIR_API event {
 public:
  /// invalid_argument: both timing and interprocess.
  [[nodiscard]] static result<event> create(weir::device owner, event_options settings = {});
  /// An event of another process.
  [[nodiscard]] static result<event> import_handle(weir::device owner,
                                                   const driver::CUipcEventHandle& handle);
  ~event();
  event(event&& other) noexcept;
  event& operator=(event&& other) noexcept;

  /// Destroys the event now and says what came of it. The object is empty afterwards in any case.
  result<void> close() noexcept;
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// bad_stream: the stream is on another device than the event.
  result<void> record(const stream_ref& stream);
  result<void> record(const stream_ref& stream, const context_scope& scope);

  /// Behind everything that was queued in the device's context so far, on whatever stream, known to
  /// weir or not. Fails while a stream of the context is being captured, and breaks that capture.
  /// not_supported: the driver is older than CUDA 12.5.
  result<void> record_all(const context_scope& scope);

  /// Whether the work before the mark is done. While a capture is under way anywhere in the process
  /// this call fails and breaks that capture, unless the thread is in relaxed mode: see
  /// thread_capture_mode_guard. An event recorded inside a capture cannot be queried at all
  /// (capture_forbidden).
  [[nodiscard]] result<bool> is_complete() const;
  [[nodiscard]] result<bool> is_complete(const context_scope& scope) const;
  /// Waits until the event is complete.
  result<void> synchronize() const;
  /// The time between two marks of timing events. not_ready: one of them is not complete.
  [[nodiscard]] static result<std::chrono::duration<float, std::milli>> elapsed(const event& from,
                                                                                const event& to);
  /// For import_handle() in another process; the event must be interprocess.
  [[nodiscard]] result<driver::CUipcEventHandle> export_handle() const;

  /// Null if empty.
  [[nodiscard]] ::CUevent_st* handle() const noexcept { return handle_; }
  /// Needs an event that was not moved from or closed.
  [[nodiscard]] weir::device device() const noexcept;

 private:
  friend class event_pool;
  friend class stream_ref;
  event(std::shared_ptr<detail::device_state> home, ::CUevent_st* handle, unsigned flags) noexcept;
  /// Why the event is empty.
  [[nodiscard]] errc empty_reason() const noexcept {
    return closed_ ? errc::closed : errc::moved_from;
  }

  std::shared_ptr<detail::device_state> home_;
  ::CUevent_st* handle_ = nullptr;
  unsigned flags_ = 0;
  bool closed_ = false;
};

/// Events of one device (without timing), for reuse.
///
/// Holds at most `keep` idle events and creates one when none is idle; what is released beyond that
/// is destroyed. An event may be released before it is complete, and whoever acquires it next
/// records it anew: waits already queued on it are not affected. Acquired events may outlive the
/// pool. Any thread may acquire and release; a lock is held for a few instructions, never around a
/// driver call.
class WEIR_API event_pool {
 public:
  static constexpr std::size_t default_keep = 1024;

  explicit event_pool(weir::device owner, std::size_t keep = default_keep);
  ~event_pool();
  event_pool(const event_pool&) = delete;
  event_pool& operator=(const event_pool&) = delete;

  [[nodiscard]] result<event> acquire();
  /// foreign_pointer: the event is of another device or has not the pool's settings; moved_from or
  /// closed: it is empty. `idle` is empty afterwards if this succeeds.
  result<void> release(event&& idle);
  /// Destroys the idle events; reports the first failure but destroys all.
  result<void> trim();

  [[nodiscard]] std::size_t idle() const;
  [[nodiscard]] weir::device device() const noexcept;

 private:
  std::shared_ptr<detail::device_state> home_;
  std::size_t keep_;
  mutable std::mutex mutex_;
  std::vector<::CUevent_st*> idle_;
};

/// Puts the calling thread's capture mode to relaxed and back, so that calls which are forbidden
/// while a capture runs (event queries, plain allocation) neither fail nor break it.
///
/// Stays on the thread and in the block where it was made. Costs one driver call at each end. Says
/// nothing about the thread's own captures: events recorded inside one still cannot be queried.
class WEIR_API thread_capture_mode_guard {
 public:
  [[nodiscard]] explicit thread_capture_mode_guard(weir::device device) noexcept;
  ~thread_capture_mode_guard();
  thread_capture_mode_guard(const thread_capture_mode_guard&) = delete;
  thread_capture_mode_guard& operator=(const thread_capture_mode_guard&) = delete;

  /// Whether the mode was changed; if not, error() says why and calls go on in the old mode.
  explicit operator bool() const noexcept { return exchanged_; }
  [[nodiscard]] weir::error error() const;

 private:
  weir::device device_;
  driver::CUresult native_ = driver::CUDA_SUCCESS;
  driver::CUstreamCaptureMode previous_ = driver::CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

}}  // namespace weir::v0
