// Managed memory and its users: the streams, the host's views.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "weir/buffer/managed_memory.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::inline v0::buffers {

/// One managed allocation. Shared by its buffer and the buffer's views; freed with the last of
/// them. The memory is the host's or the streams': views and users exclude each other, and the
/// mutex is held while the one waits for the other to end. Any thread.
///
/// Locks, outer first: the device's listeners, then `mutex_`. So nothing is watched under `mutex_`.
class managed_state final : public detail::stream_listener {
 public:
  /// Without memory yet, which will be allocated with `mode`: global or host.
  managed_state(weir::device home, bytes size, bytes alignment, attachment mode);
  ~managed_state() override;
  managed_state(const managed_state&) = delete;
  managed_state& operator=(const managed_state&) = delete;

  [[nodiscard]] weir::device device() const noexcept { return home_->handle(); }
  [[nodiscard]] device_address base() const noexcept { return base_; }
  [[nodiscard]] device_address first() const noexcept { return first_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }
  [[nodiscard]] bytes alignment() const noexcept { return alignment_; }
  [[nodiscard]] attachment attached() const WEIR_EXCLUDES(mutex_);

  /// Once, before anything else.
  result<void> allocate() WEIR_EXCLUDES(mutex_);
  /// Work on `stream` may use the memory from now on.
  result<void> record_stream(const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  /// Queues the change on the stream; the new mode counts from now on.
  result<void> attach(attachment mode, const stream_ref& stream) WEIR_EXCLUDES(mutex_);

  enum class patience : std::uint8_t { wait, do_not_wait };
  /// Begins a host view, once nobody uses the memory. `behind` null: behind all recorded streams.
  result<void> begin_view(patience waiting, const event* behind) WEIR_EXCLUDES(mutex_);
  void end_view() noexcept WEIR_EXCLUDES(mutex_);
  /// not_ready: a host view uses the memory.
  result<void> wait_until_unused() WEIR_EXCLUDES(mutex_);

  /// Waits for the users and frees the memory, once.
  result<void> free() noexcept WEIR_EXCLUDES(mutex_);

  void stream_closing(const stream_ref& stream) noexcept override WEIR_EXCLUDES(mutex_);

 private:
  /// Makes sure that stream_closing() is called for the device's streams.
  void watch(weir::device home) WEIR_EXCLUDES(watch_mutex_);
  /// Whether the host may use the memory only while the whole device is idle.
  [[nodiscard]] bool needs_idle_device() const noexcept WEIR_REQUIRES(mutex_);
  result<void> check_use(const stream_ref& stream) const WEIR_REQUIRES(mutex_);
  void add_user(const stream_ref& stream) WEIR_REQUIRES(mutex_);
  /// Whether every user is done; waits for them with patience::wait.
  result<bool> settle(patience waiting) WEIR_REQUIRES(mutex_);
  result<void> settle_behind(const event* behind, patience waiting) WEIR_REQUIRES(mutex_);

  std::shared_ptr<detail::device_state> home_;
  device_address base_ = 0;
  device_address first_ = 0;
  bytes size_;
  bytes alignment_;

  detail::mutex watch_mutex_;
  std::vector<detail::device_state*> watched_ WEIR_GUARDED_BY(watch_mutex_);

  mutable detail::mutex mutex_;
  attachment mode_ WEIR_GUARDED_BY(mutex_);
  /// With attachment::single, while the stream lives.
  std::optional<stream_ref> attached_to_ WEIR_GUARDED_BY(mutex_);
  std::vector<stream_ref> users_ WEIR_GUARDED_BY(mutex_);
  std::vector<event> closed_users_ WEIR_GUARDED_BY(mutex_);  ///< recorded when the stream closed
  unsigned views_ WEIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir::inline v0::buffers
