// SPDX-License-Identifier: Apache-2.0
// stream_ref: a reference to any CUDA stream. stream: a stream that weir owns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/driver/types.hpp"

namespace weir { inline namespace v0 {

class event;

/// Whether a stream is being captured into a graph.
enum class capture_status : std::uint8_t {
  none,    ///< not being captured
  active,  ///< being captured
  /// The capture was invalidated and must be ended.
  invalidated,
  /// The legacy stream, while a stream that synchronises with it is being captured. It is not part
  /// of the capture, but no work may be queued on it now.
  implicit,
};

/// "none", "active", "invalidated", "implicit".
[[nodiscard]] WEIR_API std::string to_string(capture_status status);

/// The capture state of a stream.
struct capture_info {
  capture_status status = capture_status::none;  ///< whether it is being captured
  weir::capture_id id{};                         ///< only with status active
};

/// The status, with the capture's id if it is active: "active 5".
[[nodiscard]] WEIR_API std::string to_string(const capture_info& info);

/// A non-owning reference to a stream and its device.
///
/// Takes a CUstream or a cudaStream_t, which are the same type. A null handle is the legacy stream,
/// as in programs built without per-thread default streams. Valid while the stream and its runtime
/// exist. As cheap to copy as three pointers. Thread-safe; per_thread() means a different stream on
/// each thread.
///
/// Equal references have the same handle and device. The driver recycles handles of destroyed
/// streams; only id() identifies a stream.
class WEIR_API stream_ref {
 public:
  /// The stream with this handle on `owner`; null is the legacy stream.
  stream_ref(weir::device owner, ::CUstream_st* handle) noexcept
      : device_{owner}, handle_{handle != nullptr ? handle : driver::legacy_stream()} {}
  /// The device's legacy default stream.
  [[nodiscard]] static stream_ref legacy(weir::device owner) noexcept {
    return {owner, driver::legacy_stream()};
  }
  /// The calling thread's default stream on the device.
  [[nodiscard]] static stream_ref per_thread(weir::device owner) noexcept {
    return {owner, driver::per_thread_stream()};
  }

  /// The driver's handle, never null.
  [[nodiscard]] ::CUstream_st* handle() const noexcept { return handle_; }
  /// The device that the reference was created with.
  [[nodiscard]] weir::device device() const noexcept { return device_; }
  /// Whether it is the legacy default stream.
  [[nodiscard]] bool is_legacy() const noexcept { return handle_ == driver::legacy_stream(); }
  /// Whether it is the calling thread's default stream.
  [[nodiscard]] bool is_per_thread() const noexcept {
    return handle_ == driver::per_thread_stream();
  }

  /// The number of the stream, unique among all streams of the process while its runtime exists:
  /// the driver's number, combined with the runtime's if several are open. Two driver calls (50 ns)
  /// unless the reference already knows it (identified()).
  ///
  /// capture_forbidden: the stream is being captured; the query would invalidate the capture. Call
  /// identified() before the capture.
  ///
  /// Drivers before CUDA 12.0 have no such number. There weir numbers each handle at its first use,
  /// and again after a weir::stream with that handle is destroyed. If other code destroys a stream,
  /// the next stream with the same handle gets the same number.
  [[nodiscard]] result<stream_id> id() const {
    if (id_ != stream_id{}) return id_;
    return query_id();
  }
  [[nodiscard]] result<stream_id> id(const context_scope& scope) const;
  /// The id if the reference already knows it, otherwise 0. No driver call.
  [[nodiscard]] stream_id known_id() const noexcept { return id_; }
  /// The same reference with its id looked up, so that id() makes no driver call from now on. A
  /// per-thread stream is returned unchanged: its id depends on the calling thread.
  [[nodiscard]] result<stream_ref> identified() const;

  /// Checks that the stream belongs to device(); bad_stream if not.
  result<void> validate() const;

  /// Waits until all work queued so far is complete.
  result<void> synchronize() const;
  /// Whether all work queued so far is complete (cuStreamQuery).
  [[nodiscard]] result<bool> is_complete() const;
  [[nodiscard]] result<bool> is_complete(const context_scope& scope) const;
  /// Work queued from now on waits for the last record of `event`, which may be of any device.
  /// moved_from or closed: the event is empty.
  result<void> wait(const weir::event& event) const;
  result<void> wait(const weir::event& event, const context_scope& scope) const;

  /// Whether the stream is being captured into a graph, and into which. Never disturbs a capture.
  /// not_supported: a capture is active, but the driver (before CUDA 11.3) cannot name it.
  [[nodiscard]] result<capture_info> capture() const;
  [[nodiscard]] result<capture_info> capture(const context_scope& scope) const;
  /// Whether the stream is being captured; cheaper than capture() (22 ns), on every driver. An
  /// invalidated capture counts as one.
  [[nodiscard]] result<bool> is_capturing() const;
  [[nodiscard]] result<bool> is_capturing(const context_scope& scope) const;

  friend bool operator==(const stream_ref& a, const stream_ref& b) noexcept {
    return a.handle_ == b.handle_ && a.device_ == b.device_;
  }

 private:
  friend class stream;
  [[nodiscard]] result<stream_id> query_id() const;

  weir::device device_;
  ::CUstream_st* handle_;
  stream_id id_{};  // 0: not looked up; the driver's ids begin above
};

/// The choices of a stream.
struct stream_options {
  /// Whether the stream runs independently of the legacy stream instead of synchronising with it.
  bool non_blocking = true;
  /// Smaller numbers have precedence; clamped to device::stream_priorities().
  int priority = 0;
};

/// A stream that is destroyed with this object. Work that is still queued then is executed.
///
/// Holds a stream unless moved from or closed; keeps its runtime alive. References to it know their
/// id. One thread at a time may move or close it; its references are thread-safe.
class WEIR_API stream {
 public:
  /// A new stream of the device.
  [[nodiscard]] static result<stream> create(weir::device owner, stream_options settings = {});
  ~stream();
  stream(stream&& other) noexcept;
  stream& operator=(stream&& other) noexcept;

  /// Destroys the stream now and returns the driver's result. The object is empty afterwards, also
  /// on failure.
  result<void> close() noexcept;
  /// Whether it holds a stream.
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// A reference to the stream, and the calls of stream_ref. A stream that was moved from or closed
  /// throws moved_from; its handle is null, its id 0.
  [[nodiscard]] stream_ref ref() const;
  operator stream_ref() const { return ref(); }
  [[nodiscard]] ::CUstream_st* handle() const noexcept { return handle_; }
  [[nodiscard]] weir::device device() const { return ref().device(); }
  [[nodiscard]] stream_id id() const noexcept { return id_; }
  result<void> synchronize() const { return ref().synchronize(); }
  [[nodiscard]] result<bool> is_complete() const { return ref().is_complete(); }
  result<void> wait(const weir::event& event) const { return ref().wait(event); }

 private:
  stream(std::shared_ptr<detail::device_state> home, ::CUstream_st* handle) noexcept;

  std::shared_ptr<detail::device_state> home_;
  ::CUstream_st* handle_ = nullptr;
  stream_id id_{};
};

}}  // namespace weir::v0
