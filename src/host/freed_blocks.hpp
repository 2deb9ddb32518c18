// SPDX-License-Identifier: Apache-2.0
// Blocks of a host arena that were freed while queued work may still use them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "host/block.hpp"
#include "host/device_order.hpp"
#include "order/stream_ends.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace host {

/// Which devices may use a block, and when that has ended.
///
/// A block has one use for each device whose streams were named for it. A free stamps them; the
/// block can be given out again once each device has completed its stamp. Devices are kept from
/// their first use on.
///
/// Owned by an arena, whose lock every call needs but listen_to() and stop(). A free makes no
/// driver call and needs no memory.
class freed_blocks final : private detail::stream_listener {
 public:
  freed_blocks(weir::device home, detail::mutex& mutex)
      : mutex_{mutex}, home_{detail::device_state::keep(home)} {}
  ~freed_blocks() override = default;
  freed_blocks(const freed_blocks&) = delete;
  freed_blocks& operator=(const freed_blocks&) = delete;

  /// Learns of the ends of the device's streams from now on. Without the lock. bad_stream: the
  /// stream is of another runtime. Throws std::bad_alloc.
  [[nodiscard]] result<void> listen_to(const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  /// No end of a stream is noticed from now on.
  void stop() noexcept WEIR_EXCLUDES(mutex_) { ends_.stop(); }

  /// The stream as a use of a block, after listen_to(). Throws std::bad_alloc.
  [[nodiscard]] result<block_use> use_of(const stream_ref& stream);
  /// Work on the stream may use the block; of the streams of a device the last one counts, whose
  /// stamp covers all of them. Throws std::bad_alloc.
  static void add(block& live, block_use use);
  /// The block is freed: work that is queued by now counts.
  void push(block& freed) noexcept;
  /// Takes out the blocks that no work uses any more and hands each to `give`.
  template <class Give>
  bool take_completed(const Give& give) {
    bool any = false;
    for (block* next = pending_.first(); next != nullptr;) {
      block& each = *next;
      next = next->right;
      if (!is_completed(each)) continue;
      pending_.remove(each);
      bytes_ -= each.size;
      give(each);
      any = true;
    }
    return any;
  }

  [[nodiscard]] bool empty() const noexcept { return pending_.empty(); }
  [[nodiscard]] std::uint64_t bytes_pending() const noexcept { return bytes_; }
  /// Asks all devices how far they have come. True if one came on.
  [[nodiscard]] result<bool> poll();
  /// The same without new marks.
  [[nodiscard]] result<bool> look();
  /// Waits for what was freed by now. Lets go of the lock.
  [[nodiscard]] result<void> wait();
  /// Waits for all work of the devices, and of the arena's own. Lets go of the lock. A device that
  /// is lost does no work.
  [[nodiscard]] result<void> wait_for_all_work();
  [[nodiscard]] result<void> release_stream(const stream_ref& stream);
  [[nodiscard]] std::uint64_t events_recorded() const noexcept;
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  void stream_closing(const stream_ref& stream) noexcept override WEIR_EXCLUDES(mutex_);
  [[nodiscard]] device_order* order_of(weir::device device) const noexcept;
  [[nodiscard]] bool is_completed(const block& freed) const noexcept;

  detail::mutex& mutex_;
  const std::shared_ptr<detail::device_state> home_;
  order::stream_ends ends_{*this};
  std::atomic<bool> listens_at_home_{false};
  std::vector<std::unique_ptr<device_order>> orders_;
  block_queue pending_;
  std::uint64_t bytes_ = 0;
};

}}}  // namespace weir::v0::host
