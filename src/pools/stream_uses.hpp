// SPDX-License-Identifier: Apache-2.0
// The streams whose work may use a piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// What the host has to wait for. Gathered with the lock of the stream_uses, and waited for without
/// it. One thread.
class awaited_work {
 public:
  void add(std::shared_ptr<const event> mark) { marks_.push_back(std::move(mark)); }
  /// All work of the device.
  void add(weir::device device);
  [[nodiscard]] bool empty() const noexcept { return marks_.empty() && devices_.empty(); }
  /// Waits for all of it, and leaves every capture valid. A device that cannot be waited for does
  /// not keep the others from being waited for. An error that says that a device does no work
  /// (detail::does_no_work) is returned only if nothing else went wrong.
  [[nodiscard]] result<void> wait() const;
  /// Makes `later`, which is in no capture, wait for all of it instead. What has no mark is waited
  /// for on the host.
  [[nodiscard]] result<void> queue_before(const stream_ref& later) const;

 private:
  std::vector<std::shared_ptr<const event>> marks_;
  std::vector<weir::device> devices_;
};

/// The streams that were named as users of a piece of memory, until they are known to be done.
///
/// A stream that ends is remembered by an event behind its work or, where that cannot be had, by
/// its device. So is the default stream of a thread, which no other thread can ask. Owned by a
/// managed_state, whose lock every call needs; no call waits.
class stream_uses {
 public:
  /// Work on the stream may use the memory from now on. Naming it twice is naming it once.
  void add(const stream_ref& stream);
  /// The stream is about to be destroyed.
  void stream_closing(const stream_ref& stream) noexcept;
  [[nodiscard]] bool empty() const noexcept { return uses_.empty(); }
  /// All of it is done.
  void clear() noexcept { uses_.clear(); }

  /// Which answer a captured stream gets: its graph may use the memory later.
  enum class captures : std::uint8_t { refused, ignored };
  /// Adds what has to be waited for. capture_forbidden: a stream is being captured.
  [[nodiscard]] result<void> gather(awaited_work& into, captures captured) const;
  /// capture_forbidden: a stream is being captured.
  [[nodiscard]] result<void> refuse_captures() const;
  /// The device of a use, by its number from 0; none behind the last.
  [[nodiscard]] std::optional<weir::device> device_of(std::size_t number) const noexcept {
    if (number >= uses_.size()) return std::nullopt;
    return uses_[number].stream.device();
  }
  /// Whether everything is done, without waiting. capture_forbidden: a stream is being captured;
  /// not_supported: only waiting can tell.
  [[nodiscard]] result<bool> poll();

 private:
  struct use {
    stream_ref stream;
    std::uint64_t thread = 0;       // detail::thread_of()
    bool closed = false;            // the stream must not be asked any more
    std::shared_ptr<event> mark{};  // if closed: behind its work; null: there is none
  };

  [[nodiscard]] static result<bool> is_done(const use& asked);

  std::vector<use> uses_;
};

}}}  // namespace weir::v0::buffers
