// SPDX-License-Identifier: Apache-2.0
// An event between two streams.
#include "buffers/queue_wait.hpp"

#include "device/finished_work.hpp"
#include "pools/stream_pool_state.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 { namespace buffers {

namespace {

error outside_of_the_capture() {
  return {
      {.code = errc::capture_forbidden,
       .detail =
           "a captured stream cannot wait for work outside its capture; end the capture first"}};
}

error joined_by_the_legacy_stream() {
  return {{.code = errc::capture_forbidden,
           .detail = "the legacy stream cannot wait for captured work; end the capture first"}};
}

}  // namespace

result<void> queue_wait(const stream_ref& later, const stream_ref& earlier) {
  if (earlier == later) return {};
  const context_scope bound{earlier.device()};
  WEIR_TRY_VALUE(from, pools::capture_of(earlier, bound));
  {
    const context_scope there{later.device()};
    WEIR_TRY_VALUE(to, pools::capture_of(later, there));
    if (to && from != to) return outside_of_the_capture();
    if (from && later.is_legacy()) return joined_by_the_legacy_stream();
  }
  WEIR_TRY_VALUE(mark, event::create(earlier.device()));
  if (from) {
    WEIR_TRY(mark.record(earlier, bound));
  } else {
    // A capture that takes `earlier` meanwhile must not take `later` along.
    WEIR_TRY_VALUE(recorded, detail::record_behind(mark, earlier, bound));
    if (!recorded) return outside_of_the_capture();
  }
  return later.wait(mark);
}

}}}  // namespace weir::v0::buffers
