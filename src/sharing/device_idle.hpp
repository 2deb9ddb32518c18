// Memory that is about to be unmapped: waiting until no work can be using it.
#pragma once

#include <memory>

#include "weir/base/result.hpp"
#include "weir/device/device.hpp"

namespace weir::inline v0::sharing {

/// Waits until all work that is queued on the device is done, whatever stream it is on; then the
/// mappings that were kept for the device go, too. capture_forbidden: a stream is being captured,
/// and the wait would invalidate the capture; nothing was waited for. A capture of a stream that
/// weir does not know cannot be seen before. Called without a session's lock: a mapping that goes
/// may need one.
[[nodiscard]] result<void> wait_until_idle(weir::device home);

/// Keeps mappings whose device could not be waited for, until a later wait succeeds. Without host
/// memory they go at once.
void keep_until_idle(weir::device home, std::shared_ptr<void> mappings) noexcept;

}  // namespace weir::inline v0::sharing
