// SPDX-License-Identifier: Apache-2.0
// Driver calls of a store that wait for the device: made without the heap's lock.
#pragma once

namespace weir { inline namespace v0 { namespace placement {

/// Lets go of the heap's lock for a call that may wait for the device. Other threads may need the
/// lock before the device goes on: the end of any stream takes it. Implemented by the central heap,
/// called with its lock.
class unlocked_calls {
 public:
  using call = void (*)(void* argument);
  /// The lock is held again when it returns. Other threads used the heap meanwhile, and one may
  /// have begun to close it.
  virtual void call_unlocked(call made, void* argument) noexcept = 0;

 protected:
  ~unlocked_calls() = default;
};

}}}  // namespace weir::v0::placement
