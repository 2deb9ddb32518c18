// SPDX-License-Identifier: Apache-2.0
// A stream of another device that uses a block.
#pragma once

#include <memory>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// One use of a block by a stream of another device than the pool's.
///
/// An event belongs to the device of the stream it is recorded on, so a stream_order keeps nothing
/// of such a stream. Instead the use records an event of its own when the block is freed. A stream
/// that cannot be asked then, for one because it is being captured, is asked again with every
/// poll. One that ends before is asked at its end. Where that failed, too, only a wait for all work
/// of its device tells.
///
/// Owned by a block, under the lock of the block_cache. Copies and moves need no host memory.
class foreign_use {
 public:
  /// bad_stream: the stream is of another runtime, or a thread's default stream, or gone.
  [[nodiscard]] static result<foreign_use> of(const stream_ref& stream, weir::device home);

  [[nodiscard]] bool is_of(const stream_ref& stream) const noexcept {
    return stream_.known_id() == stream.known_id();
  }
  /// Work that the stream is given from now on is not this use's.
  [[nodiscard]] bool has_ended() const noexcept { return ended_; }
  /// The stream is about to be destroyed. `behind` is behind all its work; null: it cannot be had.
  void end(const std::shared_ptr<const event>& behind) noexcept;
  /// The block is freed: the work that is queued by now counts.
  void free() noexcept;
  /// Whether the work of a freed block's use is done. Waits for nothing.
  [[nodiscard]] bool poll() noexcept;
  /// All work of the device was waited for since the free.
  void set_done() noexcept { done_ = true; }

  [[nodiscard]] weir::device device() const noexcept { return stream_.device(); }
  [[nodiscard]] const stream_ref& stream() const noexcept { return stream_; }
  /// Behind the work of the freed block's use. Null: there is no event.
  [[nodiscard]] const std::shared_ptr<const event>& mark() const noexcept { return mark_; }

 private:
  explicit foreign_use(const stream_ref& stream) noexcept : stream_{stream} {}

  stream_ref stream_;  // with its id
  std::shared_ptr<const event> mark_;
  bool ended_ = false;
  bool done_ = false;
};

/// An event behind all work of a stream of any device. Null: it cannot be had now.
[[nodiscard]] std::shared_ptr<const event> event_behind(const stream_ref& stream) noexcept;

/// What has to be waited for on behalf of freed blocks. Filled with the lock of the block_cache,
/// and waited for without it. One thread.
class foreign_wait {
 public:
  void add(const foreign_use& use);
  [[nodiscard]] bool empty() const noexcept { return marks_.empty() && devices_.empty(); }
  /// An error: nothing is known about the work. A device that is lost does none.
  [[nodiscard]] result<void> wait();
  /// Whether the use, which was added, is known to be done after wait().
  [[nodiscard]] bool covers(const foreign_use& use) const noexcept;

 private:
  void add(weir::device device);

  std::vector<std::shared_ptr<const event>> marks_;
  std::vector<weir::device> devices_;
};

}}}  // namespace weir::v0::pools
