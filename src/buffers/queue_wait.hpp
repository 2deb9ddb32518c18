// SPDX-License-Identifier: Apache-2.0
// One stream behind another.
#pragma once

#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace buffers {

/// Work queued on `later` from now on waits for the work that is queued on `earlier` so far.
/// Nothing where they are one stream.
///
/// Inside a capture, `later` becomes part of the capture that `earlier` is in. capture_forbidden:
/// `later` is being captured and `earlier` is not, or in another capture; `later` is the legacy
/// stream and `earlier` is being captured; or one of them is the legacy stream beside a capture.
/// Whatever is refused leaves every capture valid.
[[nodiscard]] result<void> queue_wait(const stream_ref& later, const stream_ref& earlier);

}}}  // namespace weir::v0::buffers
