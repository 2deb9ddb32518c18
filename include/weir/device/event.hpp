// SPDX-License-Identifier: Apache-2.0
// Events: marks in the order of a stream; a pool of events; and a guard for queries during
// captures.
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

/// The choices of an event.
struct event_options {
  bool timing = false;         ///< needed by elapsed(); makes recording more expensive
  bool interprocess = false;   ///< can be opened by another process; excludes timing
  bool blocking_sync = false;  ///< synchronize() sleeps instead of spinning
};

/// A mark that is recorded after the work queued on a stream and is complete when that work is.
///
/// Holds an event unless moved from or closed; keeps its runtime alive. An event that was never
/// recorded counts as complete. Recording again moves the mark; earlier waits keep waiting for the
/// old mark. An event can be destroyed before it is complete. Any thread may record, query and
/// wait; no other call may run while it is moved or closed. Record, query and wait cost one driver
/// call each (160–225 ns) plus the scope.
///
/// Calls on an empty event return moved_from, or closed after close().
class WEIR_API event {
 public:
  /// A new event of the device. invalid_argument: both timing and interprocess.
  [[nodiscard]] static result<event> create(weir::device owner, event_options settings = {});
  /// An event of another process.
  [[nodiscard]] static result<event> import_handle(weir::device owner,
                                                   const driver::CUipcEventHandle& handle);
  ~event();
  event(event&& other) noexcept;
  event& operator=(event&& other) noexcept;

  /// Destroys the event now and returns the driver's result. The object is empty afterwards, also
  /// on failure.
  result<void> close() noexcept;
  /// Whether it holds an event.
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// Records the mark after the work queued on the stream. bad_stream: the stream belongs to
  /// another device than the event.
  result<void> record(const stream_ref& stream);
  result<void> record(const stream_ref& stream, const context_scope& scope);

  /// Records the mark after everything that was queued in the device's context so far, on all
  /// streams, known to weir or not. Fails while a stream of the context is being captured, and
  /// invalidates that capture. not_supported: the driver is older than CUDA 12.5.
  result<void> record_all(const context_scope& scope);

  /// Whether the work before the mark is complete. While any capture is in progress in the process
  /// this call fails and invalidates that capture, unless the thread is in relaxed mode: see
  /// thread_capture_mode_guard. An event recorded inside a capture cannot be queried
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

  /// The driver's handle; null if empty.
  [[nodiscard]] ::CUevent_st* handle() const noexcept { return handle_; }
  /// The event's device. Precondition: the event was not moved from or closed.
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

/// A pool of reusable events of one device, without timing.
///
/// Holds at most `keep` idle events and creates one if none is idle; further released events are
/// destroyed. An event may be released before it is complete: its next owner records it again, and
/// waits that are already queued are not affected. Acquired events may outlive the pool.
/// Thread-safe; a lock is held for a few instructions, never during a driver call.
class WEIR_API event_pool {
 public:
  /// How many idle events a pool keeps by default.
  static constexpr std::size_t default_keep = 1024;

  /// An empty pool; makes no driver call.
  explicit event_pool(weir::device owner, std::size_t keep = default_keep);
  ~event_pool();
  event_pool(const event_pool&) = delete;
  event_pool& operator=(const event_pool&) = delete;

  /// An idle event, or a new one.
  [[nodiscard]] result<event> acquire();
  /// Returns an event to the pool; `idle` is empty afterwards on success. foreign_pointer: the
  /// event belongs to another device or has other settings than the pool's; moved_from or closed:
  /// it is empty.
  result<void> release(event&& idle);
  /// Destroys the idle events; reports the first failure but destroys all.
  result<void> trim();

  /// How many idle events the pool holds now.
  [[nodiscard]] std::size_t idle() const;
  /// The device of the events.
  [[nodiscard]] weir::device device() const noexcept;

 private:
  std::shared_ptr<detail::device_state> home_;
  std::size_t keep_;
  mutable std::mutex mutex_;
  std::vector<::CUevent_st*> idle_;
};

/// Sets the calling thread's capture mode to relaxed until the end of the scope, so that calls
/// which are forbidden during a capture (event queries, plain allocation) neither fail nor
/// invalidate it.
///
/// Must end on the thread and in the block that created it. Costs one driver call at each end.
/// Events recorded inside a capture still cannot be queried.
class WEIR_API thread_capture_mode_guard {
 public:
  /// Changes the mode; test the guard for success.
  [[nodiscard]] explicit thread_capture_mode_guard(weir::device device) noexcept;
  ~thread_capture_mode_guard();
  thread_capture_mode_guard(const thread_capture_mode_guard&) = delete;
  thread_capture_mode_guard& operator=(const thread_capture_mode_guard&) = delete;

  /// Whether the mode was changed. If not, error() says why, and calls run in the old mode.
  explicit operator bool() const noexcept { return exchanged_; }
  [[nodiscard]] weir::error error() const;

 private:
  weir::device device_;
  driver::CUresult native_ = driver::CUDA_SUCCESS;
  driver::CUstreamCaptureMode previous_ = driver::CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

}}  // namespace weir::v0
