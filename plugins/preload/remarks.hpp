// SPDX-License-Identifier: Apache-2.0
// The messages of weir run about what is left to the driver, each printed once.
#pragma once

#include <string_view>

namespace weir_preload {

enum class remark {
  unusable,         ///< weir cannot work here; everything is passed on
  other_context,    ///< memory of a context that is not the device's primary one
  own_pool,         ///< a pool that the program made
  own_mapping,      ///< cuMemCreate
  capture,          ///< an allocation that becomes a node of a graph
  ipc,              ///< cuIpcGetMemHandle of weir's memory
  no_recording,     ///< the trace cannot be written
  recording_ended,  ///< the trace could not be written to its end
  empty_recording,  ///< a trace was requested, and there was nothing to record
  no_service,       ///< a live page or budget that the environment requests
  not_yet,          ///< weir cannot serve a request, but perhaps the next
  count,
};

/// One line on the standard error output, "weir run: …", the first time for each remark, and never
/// with WEIR_RUN_QUIET, nor where the program has put another file in the place of the one that it
/// was started with. Any thread; never throws.
void say_once(remark about, std::string_view detail = {}) noexcept;

}  // namespace weir_preload
