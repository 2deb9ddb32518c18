// SPDX-License-Identifier: Apache-2.0
// Per-thread default streams that are named on one thread and left to another.
#pragma once

#include <cstdint>

#include "base/thread_number.hpp"
#include "device/finished_work.hpp"
#include "device/state.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// The thread whose stream a reference means, for whoever stores the reference; 0: it means the
/// same stream on every thread.
[[nodiscard]] inline std::uint64_t thread_of(const stream_ref& stream) noexcept {
  return stream.is_per_thread() ? thread_number() : 0;
}

/// Whether a reference that was stored with thread_of() means another stream here.
[[nodiscard]] inline bool is_of_another_thread(std::uint64_t thread) noexcept {
  return thread != 0 && thread != thread_number();
}

/// Frees memory whose stream cannot be named here: it was destroyed, or is another thread's default
/// stream. Waits for all work of `worked`, the stream's device; then free(stream) is called with a
/// stream of `home` on which nothing is queued. An error of the wait: nothing was freed.
template <class Free>
[[nodiscard]] result<void> free_behind_all_work(weir::device worked, weir::device home,
                                                const Free& free) {
  {
    const context_scope bound{worked};
    const auto waited = wait_for_all_work(bound);
    if (!waited && !does_no_work(waited.error())) return waited.error();
  }
  auto substitute = stream::create(home);
  if (!substitute) return free(stream_ref::per_thread(home));
  auto freed = free(substitute->ref());
  report_failure(substitute->close());
  return freed;
}

}}}  // namespace weir::v0::detail
