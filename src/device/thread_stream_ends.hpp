// SPDX-License-Identifier: Apache-2.0
// Telling listeners that a thread's default stream ends with its thread.
#pragma once

#include "device/state.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// When the calling thread ends, the device's listeners learn that its default stream closes, while
/// the stream can still be marked. Called by whoever learns the stream's number on its thread;
/// twice is once. Nothing is told where the runtime is gone by then, in a forked child, or if the
/// host has no memory to remember it. A thread_local object that names the stream in its destructor
/// after that is not waited for: the stream is then one of a thread that still runs.
///
/// A thread_local destructor, not a pthread key: the driver destroys the stream by a key of its
/// own, after all thread_local destructors (H200, driver 580).
void announce_thread_stream_end(device_state& state, stream_id number) noexcept;

}}}  // namespace weir::v0::detail
