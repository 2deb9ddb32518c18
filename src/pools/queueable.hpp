// SPDX-License-Identifier: Apache-2.0
// Work that must not be queued on the legacy stream beside a capture.
#pragma once

#include "device/finished_work.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// capture_forbidden: the stream is the legacy stream, and one that synchronises with it is being
/// captured; the driver would invalidate that capture. Work on any other captured stream becomes
/// part of its graph. A driver call for the legacy stream, none for others.
[[nodiscard]] inline result<void> check_queueable(const stream_ref& stream,
                                                  const context_scope& bound) {
  if (!bound) return bound.error();
  if (!stream.is_legacy()) return {};
  WEIR_TRY_VALUE(outside, detail::is_outside_captures(stream, bound));
  if (outside) return {};
  return error{{.code = errc::capture_forbidden,
                .detail =
                    "the legacy stream cannot be used while a stream that synchronises with it "
                    "is being captured; use another stream"}};
}

}}}  // namespace weir::v0::pools
