// Managed memory and who may be using it: the streams, the host's views.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/state.hpp"
#include "weir/buffer/managed_memory.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::inline v0::buffers {

/// One managed allocation. Shared by its buffer and the buffer's views; freed with the last of
/// them. The memory is the host's or the streams': views and users exclude each other, and the lock
/// is held while the one waits for the other to end.
///
/// Locks, outer first: the device's listeners, then `lock_`. So nothing is watched under `lock_`.
class managed_state final : public detail::stream_listener {
 public:
  /// Without memory yet. `mode` is what it will be allocated with: global or host.
  managed_state(weir::device where, bytes size, bytes alignment, attachment mode);
  ~managed_state() override;
  managed_state(const managed_state&) = delete;
  managed_state& operator=(const managed_state&) = delete;

  [[nodiscard]] weir::device device() const noexcept { return home_->handle(); }
  [[nodiscard]] device_address base() const noexcept { return base_; }
  [[nodiscard]] device_address first() const noexcept { return first_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }
  [[nodiscard]] bytes alignment() const noexcept { return alignment_; }
  [[nodiscard]] attachment attached() const;

  /// Once, before anything else.
  result<void> allocate();
  /// Notes that work on `stream` may use the memory from now on.
  result<void> use_on(const stream_ref& stream);
  /// Queues the change on the stream and goes by the new mode from now on.
  result<void> attach(attachment mode, const stream_ref& stream);

  enum class patience : std::uint8_t { wait, do_not_wait };
  /// Begins a host view, once nobody uses the memory. `behind` null: all streams noted.
  result<void> begin_view(patience how, const event* behind);
  void end_view() noexcept;
  /// Waits until nobody uses the memory. not_ready: a host view does.
  result<void> rest();

  /// Waits for the users and frees the memory, once.
  result<void> free() noexcept;

  void stream_closing(const stream_ref& which) noexcept override;

 private:
  /// Makes sure that stream_closing() is told of the device's streams.
  void watch(weir::device where);
  [[nodiscard]] bool exclusive(weir::device where) const noexcept;
  result<void> may_use(const stream_ref& stream) const;
  void note(const stream_ref& stream);
  /// Whether every user is done; waits for them if told to.
  result<bool> settle(patience how);
  result<void> settle_behind(const event* behind, patience how);

  std::shared_ptr<detail::device_state> home_;
  device_address base_ = 0;
  device_address first_ = 0;
  bytes size_;
  bytes alignment_;

  std::mutex watch_lock_;
  std::vector<detail::device_state*> watched_;

  mutable std::mutex lock_;
  attachment mode_;
  std::optional<stream_ref> attached_to_;  ///< with attachment::single, while the stream lives
  std::vector<stream_ref> users_;
  std::vector<event> marks_;  ///< of users whose stream is gone
  unsigned views_ = 0;
};

}  // namespace weir::inline v0::buffers
