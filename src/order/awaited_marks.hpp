// SPDX-License-Identifier: Apache-2.0
// Marks that a thread waits for on the host.
#pragma once

#include <memory>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 { namespace order {

/// Events behind the work of streams, shared with the stream_order that recorded them.
///
/// Taken with the lock of that stream_order, and waited for without it, so that nobody who needs
/// the lock has to wait, too. The events stay recorded where they are while this lives. Afterwards
/// the owner polls the stream_order, which finds out what was reached. One thread.
class awaited_marks {
 public:
  awaited_marks() = default;
  explicit awaited_marks(std::vector<std::shared_ptr<const event>> marks) noexcept
      : marks_{std::move(marks)} {}

  [[nodiscard]] bool empty() const noexcept { return marks_.empty(); }
  void add(std::shared_ptr<const event> mark) { marks_.push_back(std::move(mark)); }
  /// Waits until every mark is reached. The thread must be in relaxed capture mode.
  result<void> wait() const;

 private:
  std::vector<std::shared_ptr<const event>> marks_;
};

/// Events for marks, for reuse. An event that somebody still waits for is not reused.
///
/// Owned by a stream_order, whose lock every call needs.
class mark_events {
 public:
  explicit mark_events(weir::device device) noexcept : device_{device} {}

  [[nodiscard]] result<std::shared_ptr<event>> acquire();
  /// Keeps the event for the next acquire(). It is destroyed instead where enough are kept, or once
  /// those who wait for it are done.
  void release(std::shared_ptr<event> mark) noexcept;

 private:
  static constexpr std::size_t most_idle = 1024;

  weir::device device_;
  std::vector<std::shared_ptr<event>> idle_;  // has room for those that will be kept
  std::size_t acquired_ = 0;
};

}}}  // namespace weir::v0::order
