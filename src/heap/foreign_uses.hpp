// SPDX-License-Identifier: Apache-2.0
// Blocks that streams of other devices use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/state.hpp"
#include "heap/vocabulary.hpp"
#include "order/stream_order.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// A stream of another device that uses a block.
struct foreign_use {
  stream_ref stream;
  std::uint64_t registration = 0;       // on its device; 0: nobody tells of its end
  std::shared_ptr<const event> last{};  // it has ended, and this is behind all its work
  order::epoch owed_since = 0;          // of a use that is owed: the epoch that was open then
};

/// Which streams of other devices use live blocks, and what freed blocks wait for on their account.
///
/// An event belongs to the device of the stream it is recorded on, so marks on a stream of another
/// device are nothing that stream_order could keep. Instead a stream of the allocator's device, the
/// joint one, is made to wait for the foreign ones when the block is freed, and the block waits for
/// the joint stream. A foreign stream that cannot be waited for then is owed: the joint stream is
/// not marked until it was joined later, or until all work of its device was waited for.
///
/// Owned by the central heap, whose lock every call needs but the two that say otherwise.
class foreign_uses {
 public:
  /// The use of memory of `home`, with everything that the driver has to be asked for. Without the
  /// heap's lock.
  [[nodiscard]] static result<foreign_use> describe(const stream_ref& stream, weir::device home);
  /// A joint stream for add(), if there is none yet. Without the heap's lock: the end of a stream
  /// tells every allocator of its device.
  [[nodiscard]] static result<std::optional<weir::stream>> make_joint_stream(weir::device home,
                                                                             bool exists);

  [[nodiscard]] bool has_joint_stream() const noexcept { return joint_.has_value(); }
  /// The block is used by the stream; returns the slot that it has to wait for when it is freed.
  /// `joint` is taken if there is no joint stream yet. If another thread was faster, it stays with
  /// the caller, whose lock its end needs.
  [[nodiscard]] stream_slot add(block_index index, const foreign_use& use,
                                std::optional<weir::stream>& joint, order::stream_order& order);
  /// The block is freed: the joint stream waits for the foreign ones that use it.
  void join(block_index index, order::stream_order& order) noexcept;
  /// Tries again what could not be waited for at the free.
  void join_late(order::stream_order& order) noexcept;
  /// The devices whose work has to be waited for, because streams of theirs are owed.
  [[nodiscard]] std::vector<weir::device> owed_devices() const;
  /// A wait for all work of these devices begins, and everything until now was cut off by
  /// stream_order::cut(). It tells nothing of streams that are being captured now.
  void wait_begins(const order::stream_order& order) noexcept;
  /// All work of these devices that was queued by the end of the epoch was waited for.
  void waited(order::epoch until, order::stream_order& order) noexcept;
  /// A foreign stream is about to be destroyed: what it did is remembered by an event.
  void stream_closing(const stream_ref& stream) noexcept;
  void clear() noexcept;
  [[nodiscard]] std::size_t footprint() const noexcept {
    return owed_.capacity() * sizeof(foreign_use);
  }

 private:
  [[nodiscard]] bool join(const foreign_use& use, const order::stream_order& order) noexcept;
  [[nodiscard]] static bool is_captured(const foreign_use& use) noexcept;
  /// While the joint stream is held it counts as one whose capture is expected.
  void release_joint_stream(order::stream_order& order) const noexcept;
  /// A mark on the joint stream would be reached too early while it does not wait for everybody.
  void hold_joint_stream(order::stream_order& order) const noexcept;

  std::optional<weir::stream> joint_;
  std::unordered_map<block_index, std::vector<foreign_use>> uses_;
  std::size_t count_ = 0;          // of uses in uses_
  std::vector<foreign_use> owed_;  // has room for all uses
};

/// The other devices whose streams' ends a listener is told of. Any thread; must not be called with
/// a lock that the listener takes.
class foreign_listening {
 public:
  explicit foreign_listening(detail::stream_listener& listener) noexcept : listener_{listener} {}
  /// Nothing after end(): nobody would take the listener away again.
  void add(weir::device other);
  void end() noexcept;

 private:
  detail::stream_listener& listener_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<detail::device_state>> homes_;
  bool ended_ = false;
};

}}}  // namespace weir::v0::heap
