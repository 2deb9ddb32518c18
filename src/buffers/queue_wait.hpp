// One stream behind another.
#pragma once

#include "weir/base/result.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir::inline v0::buffers {

/// Work queued on `later` from now on waits for the work that is queued on `earlier` so far.
/// Nothing where they are one stream.
[[nodiscard]] inline result<void> queue_wait(const stream_ref& later, const stream_ref& earlier) {
  if (earlier == later) return {};
  WEIR_TRY_VALUE(mark, event::create(earlier.device()));
  WEIR_TRY(mark.record(earlier));
  return later.wait(mark);
}

}  // namespace weir::inline v0::buffers
