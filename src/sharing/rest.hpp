// Memory that is about to be unmapped: waiting until nobody can be using it.
#pragma once

#include <memory>

#include "weir/base/result.hpp"
#include "weir/device/device.hpp"

namespace weir::inline v0::sharing {

/// Waits until all work that is queued on the device is done, whatever stream it is on; then what
/// was kept for the device goes, too. capture_forbidden: a stream is being captured, and the wait
/// would spoil that; nothing was waited for. A capture of a stream that weir does not know cannot
/// be seen before. Needs no lock of a session: what goes may tell one.
[[nodiscard]] result<void> wait_for_rest(weir::device where);

/// Keeps mappings whose device could not be waited for, until a later wait succeeds. Without host
/// memory they go at once.
void keep_until_rest(weir::device where, std::shared_ptr<void> remains) noexcept;

}  // namespace weir::inline v0::sharing
