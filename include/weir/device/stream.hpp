// SPDX-License-Identifier: Apache-2.0
// Streams: a reference to anybody's stream, and a stream that weir owns.
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

enum class capture_status : std::uint8_t {
  none,
  active,
  /// The capture was broken and must be ended.
  invalidated,
  /// The legacy stream, while a stream that synchronises with it is being captured: it is not part
  /// of the capture, but work must not be queued on it now.
  implicit,
};

/// "none", "active", "invalidated", "implicit".
[[nodiscard]] WEIR_API std::string to_string(capture_status status);

struct capture_info {
  capture_status status = capture_status::none;
  weir::capture_id id{};  ///< only with status active
};

/// The status, with the capture's id where it is active: "active 5".
[[nodiscard]] WEIR_API std::string to_string(const capture_info& info);

/// Somebody's stream and the device it belongs to; a reference that owns nothing.
///
/// Takes a CUstream or a cudaStream_t, which are the same type. A null handle is the legacy stream,
/// as in every program built without per-thread default streams. Good as long as the stream and its
/// runtime live. As cheap to copy as three pointers; any thread may use it, though per_thread()
/// means another stream on each thread.
///
/// Equal references have the same handle and device. That says little about streams that come and
/// go, because the driver recycles handles; id() is what tells streams apart.
class WEIR_API stream_ref {
 public:
  stream_ref(weir::device owner, ::CUstream_st* handle) noexcept
      : device_{owner}, handle_{handle != nullptr ? handle : driver::legacy_stream()} {}
  [[nodiscard]] static stream_ref legacy(weir::device owner) noexcept {
    return {owner, driver::legacy_stream()};
  }
  [[nodiscard]] static stream_ref per_thread(weir::device owner) noexcept {
    return {owner, driver::per_thread_stream()};
  }

  [[nodiscard]] ::CUstream_st* handle() const noexcept { return handle_; }
  [[nodiscard]] weir::device device() const noexcept { return device_; }
  [[nodiscard]] bool is_legacy() const noexcept { return handle_ == driver::legacy_stream(); }
  [[nodiscard]] bool is_per_thread() const noexcept {
    return handle_ == driver::per_thread_stream();
  }

  /// The stream's own number, never used twice while its runtime lives, and by no stream of another
  /// device or runtime: the driver's, with the runtime's number above it where several are open.
  /// Two driver calls (50 ns) unless the reference knows it already (identified()).
  ///
  /// capture_forbidden: the stream is being captured, and the driver would break the capture rather
  /// than answer. A reference that is used during captures is identified() before.
  ///
  /// Drivers before CUDA 12.0 have no such number. There weir numbers handles itself, at first
  /// sight, and renumbers a handle when a weir::stream with it is destroyed; a stream that somebody
  /// else destroys and the driver's next stream with the same handle then share a number.
  [[nodiscard]] result<stream_id> id() const {
    if (id_ != stream_id{}) return id_;
    return query_id();
  }
  [[nodiscard]] result<stream_id> id(const context_scope& scope) const;
  /// What id() would say without a driver call; 0 if it needs one.
  [[nodiscard]] stream_id known_id() const noexcept { return id_; }
  /// The same reference with its id looked up, so that id() makes no driver call from now on. The
  /// per-thread stream stays as it is: its id depends on who asks.
  [[nodiscard]] result<stream_ref> identified() const;

  /// bad_stream: the stream belongs to another device than device().
  result<void> validate() const;

  /// Waits until all work queued so far is done.
  result<void> synchronize() const;
  /// Whether all work queued so far is done (cuStreamQuery).
  [[nodiscard]] result<bool> is_complete() const;
  [[nodiscard]] result<bool> is_complete(const context_scope& scope) const;
  /// Work queued from now on waits for what `event` was last recorded behind, on any device.
  /// moved_from or closed: the event is empty.
  result<void> wait(const weir::event& event) const;
  result<void> wait(const weir::event& event, const context_scope& scope) const;

  /// Whether the stream is being captured into a graph, and into which. Never disturbs a capture.
  /// not_supported: a capture is active, but the driver (before CUDA 11.3) cannot name it.
  [[nodiscard]] result<capture_info> capture() const;
  [[nodiscard]] result<capture_info> capture(const context_scope& scope) const;
  /// Only whether: cheaper (22 ns), on every driver. An invalidated capture counts as one.
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

struct stream_options {
  /// Whether the stream runs beside the legacy stream instead of synchronising with it.
  bool non_blocking = true;
  /// Smaller goes first; what is out of device::stream_priorities() is brought into it.
  int priority = 0;
};

/// A stream that is destroyed with this object. Work still queued then is carried out.
///
/// Holds a stream unless moved from or closed; keeps its runtime alive. A reference taken from it
/// knows its id. One thread at a time may move or close it; its references are for any thread.
class WEIR_API stream {
 public:
  [[nodiscard]] static result<stream> create(weir::device owner, stream_options settings = {});
  ~stream();
  stream(stream&& other) noexcept;
  stream& operator=(stream&& other) noexcept;

  /// Destroys the stream now and says what came of it. The object is empty afterwards in any case.
  result<void> close() noexcept;
  explicit operator bool() const noexcept { return home_ != nullptr; }

  /// A reference. A stream that was moved from or closed throws moved_from, here and below; its
  /// handle is null, its id 0.
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
