// SPDX-License-Identifier: Apache-2.0
// Managed memory and its users: the streams, the host's views.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "buffers/exclusive_devices.hpp"
#include "device/state.hpp"
#include "order/stream_ends.hpp"
#include "pools/stream_uses.hpp"
#include "weir/buffer/managed_memory.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace buffers {

/// Whether a view waits for the streams that use the memory.
enum class view_patience : std::uint8_t { wait, do_not_wait };

/// One managed allocation. Shared by its buffer and the buffer's views; freed with the last of
/// them. The memory is the host's or the streams': views and users exclude each other. A view that
/// waits for the streams counts as a view already, so that no stream is added meanwhile. Any
/// thread.
///
/// Nobody waits with `mutex_` held, so that neither the end of a stream nor another call has to
/// wait, too. Locks, outer first: the device's listeners, then `mutex_`. So nothing is listened to
/// under `mutex_`. In a forked child no lock is taken.
class managed_state final : public detail::stream_listener {
 public:
  /// Without memory yet, which will be allocated with `mode`: global or host.
  managed_state(weir::device home, bytes size, bytes alignment, attachment mode);
  ~managed_state() override;
  managed_state(const managed_state&) = delete;
  managed_state& operator=(const managed_state&) = delete;

  [[nodiscard]] weir::device device() const noexcept { return home_->handle(); }
  [[nodiscard]] bool forked() const noexcept { return home_->forked(); }
  [[nodiscard]] device_address base() const noexcept { return base_; }
  [[nodiscard]] device_address first() const noexcept { return first_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }
  [[nodiscard]] bytes alignment() const noexcept { return alignment_; }
  /// In a forked child: global.
  [[nodiscard]] attachment attached() const WEIR_EXCLUDES(mutex_);

  /// Once, before anything else.
  result<void> allocate() WEIR_EXCLUDES(mutex_);
  /// Work on `stream` may use the memory from now on.
  result<void> use_on(const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  /// Queues the change on the stream; the new mode counts from now on.
  result<void> attach(attachment mode, const stream_ref& stream) WEIR_EXCLUDES(mutex_);

  using patience = view_patience;
  /// Begins a host view, once nobody uses the memory. `behind` null: behind all recorded streams.
  result<void> begin_view(patience waiting, const event* behind) WEIR_EXCLUDES(mutex_);
  void end_view() noexcept WEIR_EXCLUDES(mutex_);
  /// not_ready: a host view uses the memory.
  result<void> wait_until_unused() WEIR_EXCLUDES(mutex_);

  /// Waits for the users and frees the memory, once. Memory that cannot be waited for stays
  /// allocated: the error says how much.
  result<void> free() noexcept WEIR_EXCLUDES(mutex_);

  void stream_closing(const stream_ref& stream) noexcept override WEIR_EXCLUDES(mutex_);

 private:
  [[nodiscard]] result<void> check_runtime(const stream_ref& stream) const;
  /// Whether the host may use the memory only while devices without concurrent access are idle.
  [[nodiscard]] bool needs_idle_devices() const WEIR_REQUIRES(mutex_);
  /// Whether all work of the stream that the memory is attached to matters, recorded or not.
  [[nodiscard]] bool is_of_one_stream() const WEIR_REQUIRES(mutex_);
  result<void> check_use(const stream_ref& stream) const WEIR_REQUIRES(mutex_);
  /// What a view has to wait for.
  result<void> gather(pools::awaited_work& work, const event* behind) WEIR_REQUIRES(mutex_);
  /// Counts a view, and keeps streams away meanwhile; throws std::bad_alloc.
  void add_view() WEIR_REQUIRES(mutex_);
  void drop_view() noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> wait_for_users() noexcept WEIR_EXCLUDES(mutex_);

  std::shared_ptr<detail::device_state> home_;
  device_address base_ = 0;
  device_address first_ = 0;
  bytes size_;
  bytes alignment_;

  order::stream_ends ends_{*this};
  mutable detail::mutex mutex_;
  attachment mode_ WEIR_GUARDED_BY(mutex_);
  /// With attachment::single, while the stream lives.
  std::optional<stream_ref> attached_to_ WEIR_GUARDED_BY(mutex_);
  pools::stream_uses uses_ WEIR_GUARDED_BY(mutex_);
  unsigned views_ WEIR_GUARDED_BY(mutex_) = 0;
  std::optional<idle_part> kept_idle_ WEIR_GUARDED_BY(mutex_);  // while there are views
};

}}}  // namespace weir::v0::buffers
