// SPDX-License-Identifier: Apache-2.0
// The streams that were recorded for live memory of a driver that keeps no such list.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <unordered_map>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "order/stream_ends.hpp"
#include "pools/stream_uses.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// For each live block the further streams that use it, from record_stream() until the free.
///
/// Streams that end meanwhile leave an event behind. Owned by the state of a pool or resource,
/// which calls stop() before its runtime may go. Any thread. A free of a block without records
/// costs one atomic load. Locks, outer first: the device's listeners, then `mutex_`.
class recorded_uses final : public detail::stream_listener {
 public:
  recorded_uses() = default;
  ~recorded_uses() override = default;
  recorded_uses(const recorded_uses&) = delete;
  recorded_uses& operator=(const recorded_uses&) = delete;

  /// Work queued on `stream` until the block is freed may use it. The caller knows that the block
  /// is live and that the stream is of its runtime. capture_forbidden: the stream is being
  /// captured. Throws std::bad_alloc.
  result<void> add(const void* block, const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  /// Makes `stream` wait for the recorded uses of the block, which is about to be freed there.
  /// capture_forbidden: one of the streams is being captured. On failure the uses are kept.
  [[nodiscard]] result<void> queue_before(const void* block, const stream_ref& stream)
      WEIR_EXCLUDES(mutex_);
  /// The same for the host, which waits.
  [[nodiscard]] result<void> wait(const void* block) WEIR_EXCLUDES(mutex_);
  /// The block is gone.
  void forget(const void* block) noexcept WEIR_EXCLUDES(mutex_);

  /// No end of a stream is noticed from now on.
  void stop() noexcept { ends_.stop(); }
  void stream_closing(const stream_ref& stream) noexcept override WEIR_EXCLUDES(mutex_);

 private:
  [[nodiscard]] bool has_none() const noexcept {
    return count_.load(std::memory_order_acquire) == 0;
  }
  [[nodiscard]] result<void> gather(const void* block, awaited_work& work) WEIR_EXCLUDES(mutex_);
  /// Waits for all work of the devices of the recorded streams. Needs no memory of the host.
  [[nodiscard]] result<void> wait_for_devices(const void* block) WEIR_EXCLUDES(mutex_);

  order::stream_ends ends_{*this};
  detail::mutex mutex_;
  std::unordered_map<const void*, stream_uses> uses_ WEIR_GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};  // of uses_
};

}}}  // namespace weir::v0::pools
