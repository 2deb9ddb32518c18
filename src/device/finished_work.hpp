// SPDX-License-Identifier: Apache-2.0
// Waiting on the host for queued work, without breaking stream captures.
//
// The driver's own waits are not usable by a library: cuCtxSynchronize invalidates every capture on
// the device, and cuStreamSynchronize and cuStreamQuery invalidate a capture that took the stream
// in the meantime. The components above `device` therefore wait by the functions below only.
#pragma once

#include <optional>

#include "weir/base/result.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// Whether work may be queued on the stream without becoming part of a capture or breaking one.
/// False for a stream that is being captured, and for the legacy stream while a stream that
/// synchronises with it is. For the per-thread default stream the answer is about the calling
/// thread's. The question never disturbs a capture.
[[nodiscard]] result<bool> is_outside_captures(const stream_ref& stream,
                                               const context_scope& bound);

/// Whether the driver refused a call on a stream because of a capture that another thread began
/// after it was asked.
[[nodiscard]] inline bool is_refused_for_capture(const error& reason) noexcept {
  return reason.code() == errc::capture_forbidden || reason.code() == errc::capture_invalid;
}

/// Records `mark` behind everything queued on the stream so far. False: the stream is not outside
/// captures, and the mark says nothing; it may be recorded again.
[[nodiscard]] result<bool> record_behind(event& mark, const stream_ref& stream,
                                         const context_scope& bound);

/// Waits until all work that was queued in the context before the call has completed, on whatever
/// stream, known to weir or not, and leaves every capture valid. Work that was queued on a stream
/// before its capture began is waited for, too.
///
/// Allocates a little plain device memory and frees it, for which the driver waits; where the
/// device is full, pinned host memory. Meanwhile the driver keeps other threads from queueing work
/// in the context, so wait for the marks of known streams first. An error means that nothing is
/// known about the work.
[[nodiscard]] result<void> wait_for_all_work(const context_scope& bound);

/// Whether the error of a wait means that nothing runs on the device any more.
[[nodiscard]] inline bool does_no_work(const error& reason) noexcept {
  return reason.code() == errc::device_lost || reason.code() == errc::driver_gone;
}

/// Waits until everything queued on the stream so far has completed. Waits for the whole context
/// where the stream is not outside captures.
[[nodiscard]] result<void> wait_for_work(const stream_ref& stream, const context_scope& bound);

/// The same without waiting: whether it has completed. Nothing: the stream is not outside captures,
/// so that only wait_for_all_work() can tell.
[[nodiscard]] result<std::optional<bool>> has_finished_work(const stream_ref& stream,
                                                            const context_scope& bound);

}}}  // namespace weir::v0::detail
