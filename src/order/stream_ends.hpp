// SPDX-License-Identifier: Apache-2.0
// Learning of the ends of streams on several devices.
#pragma once

#include <vector>

#include "base/mutex.hpp"
#include "device/state.hpp"

namespace weir { inline namespace v0 { namespace order {

/// Registers one listener with every device whose streams matter to it.
///
/// Owned by the listener, which calls stop() before it goes, unless the process was forked. Its
/// devices' runtime must be alive until then. Any thread; not with a lock that the listener takes.
class stream_ends {
 public:
  explicit stream_ends(detail::stream_listener& listener) noexcept : listener_{listener} {}
  stream_ends(const stream_ends&) = delete;
  stream_ends& operator=(const stream_ends&) = delete;

  /// From now on the listener learns of the ends of the device's streams; never after stop(), as
  /// nobody would take it away again. Throws std::bad_alloc.
  void listen_on(weir::device device) WEIR_EXCLUDES(mutex_);
  void stop() noexcept WEIR_EXCLUDES(mutex_);

 private:
  detail::stream_listener& listener_;
  detail::mutex mutex_;
  std::vector<detail::device_state*> devices_ WEIR_GUARDED_BY(mutex_);
  bool stopped_ WEIR_GUARDED_BY(mutex_) = false;
};

}}}  // namespace weir::v0::order
