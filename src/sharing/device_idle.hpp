// SPDX-License-Identifier: Apache-2.0
// Memory that is about to be unmapped: waiting until no work can be using it.
#pragma once

#include <list>
#include <memory>

#include "device/finished_work.hpp"
#include "device/state.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"

namespace weir { inline namespace v0 { namespace sharing {

/// Waits until all work that is queued on the device is done, whatever stream it is on, and leaves
/// every capture valid. Then the mappings that were kept for the device go, too. Called without a
/// session's lock: a mapping that goes may need one.
///
/// device_lost, driver_gone: the device does no work any more, so that all mappings may go. Another
/// error: nothing is known about the work.
[[nodiscard]] result<void> wait_until_idle(weir::device home);

/// Whether such an outcome means that no work can be using the device's mappings.
[[nodiscard]] inline bool may_unmap(const result<void>& waited) noexcept {
  return waited || detail::does_no_work(waited.error());
}

/// Mappings that may be in use, and the device whose work may use them.
struct kept_mapping {
  const detail::device_state* home = nullptr;  // alive: the mappings keep its runtime
  std::shared_ptr<void> mappings;
};

/// A place among the kept mappings. Made before it is needed, so that to keep needs no host memory.
class keeping_place {
 public:
  /// Throws std::bad_alloc.
  keeping_place();

  /// Keeps mappings whose device could not be waited for, until a later wait succeeds. Once.
  void keep_until_idle(weir::device home, std::shared_ptr<void> mappings) noexcept;

 private:
  std::list<kept_mapping> place_;
};

}}}  // namespace weir::v0::sharing
