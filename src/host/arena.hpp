// SPDX-License-Identifier: Apache-2.0
// The state of a host arena: what host_arena, pools and suspend backups share.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "host/best_fit.hpp"
#include "host/demand.hpp"
#include "host/freed_blocks.hpp"
#include "host/idle_holders.hpp"
#include "host/live_blocks.hpp"
#include "host/pinning_threads.hpp"
#include "host/pins_under_way.hpp"
#include "host/sinks.hpp"
#include "weir/base/result.hpp"
#include "weir/host/host_arena.hpp"

namespace weir { inline namespace v0 { namespace host {

/// The core of a host arena.
///
/// Two ways lead to memory. allocate() and deallocate() are in stream order, for users. take() and
/// give() are for parts of weir that order their memory themselves: what they give nobody uses.
///
/// Memory is pinned and unpinned without the lock, and waited for without it. A segment that is on
/// its way to the system serves nobody and is counted until the system has it. Streams are asked
/// with the lock held.
///
/// Shared by handles and by parts of weir; any thread. In a forked child nothing is touched.
class arena final : public std::enable_shared_from_this<arena>, private pinning_work {
 public:
  [[nodiscard]] static result<std::shared_ptr<arena>> create(weir::device device,
                                                             host_arena_options options);
  /// The shared arena of the device.
  [[nodiscard]] static result<std::shared_ptr<arena>> of(weir::device device,
                                                         host_arena_options options = {});
  arena(weir::device device, host_arena_options options);
  ~arena();
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  // --- For parts of weir: arena.cpp -------------------------------------------------------------

  /// Memory that nothing uses. Pins exactly what is missing, and nothing ahead. Asks no streams
  /// unless memory is freed and not yet free.
  [[nodiscard]] result<void*> take(bytes size, bytes alignment) WEIR_EXCLUDES(mutex_);
  /// The start of what take() returned; nothing uses it.
  void give(void* pointer) noexcept WEIR_EXCLUDES(mutex_);
  /// The same, and back to the system if nothing else is in its segment, for who is asked to return
  /// memory. After an error the caller has it as before. The driver may wait for the devices.
  [[nodiscard]] result<void> release(void* pointer) noexcept WEIR_EXCLUDES(mutex_);
  /// Who holds memory of the arena that it could give back; asked before more is pinned.
  [[nodiscard]] idle_holders& holders() noexcept { return holders_; }

  // --- In stream order: arena.cpp ---------------------------------------------------------------

  [[nodiscard]] result<void*> allocate(bytes size, const stream_ref& stream, bytes alignment)
      WEIR_EXCLUDES(mutex_);
  /// Null: the streams it was allocated and recorded for.
  result<void> deallocate(void* pointer, const stream_ref* stream) WEIR_EXCLUDES(mutex_);
  result<void> record_stream(const void* pointer, const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  result<void> release_stream(const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] bool owns(const void* pointer) const WEIR_EXCLUDES(mutex_);

  // --- What is pinned: arena_pins.cpp -----------------------------------------------------------

  result<void> reserve(bytes size, host_wait wait) WEIR_EXCLUDES(mutex_);
  result<bytes> trim(bytes keep) WEIR_EXCLUDES(mutex_);
  result<bytes> empty_cache() WEIR_EXCLUDES(mutex_);
  result<void> set_limit(bytes limit) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] bytes limit() const WEIR_EXCLUDES(mutex_);
  result<void> close() WEIR_EXCLUDES(mutex_);

  // --- What is told: arena_view.cpp -------------------------------------------------------------

  [[nodiscard]] weir::device device() const noexcept { return device_; }
  [[nodiscard]] host_arena_stats stats() const WEIR_EXCLUDES(mutex_);
  void reset_peaks() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] host_snapshot snapshot() const WEIR_EXCLUDES(mutex_);
  result<void> add_observer(event_sink& sink) WEIR_EXCLUDES(mutex_);
  void remove_observer(event_sink& sink) noexcept WEIR_EXCLUDES(mutex_);
  /// What contradicts the invariants; empty if nothing.
  [[nodiscard]] std::string check() const WEIR_EXCLUDES(mutex_);

 private:
  struct request {
    std::uint64_t size = 0;  // rounded
    std::uint64_t alignment = granularity;
    std::uint64_t requested = 0;
    bool ordered = false;

    /// What a segment needs so that the block fits wherever it begins: at a page.
    [[nodiscard]] std::uint64_t with_slack() const noexcept {
      return size + (alignment > page ? alignment : 0);
    }
    static constexpr std::uint64_t page = 4096;
  };
  /// Segments that left the arena and are on their way to the system.
  using leaving = std::vector<segment*>;

  // arena.cpp
  [[nodiscard]] static result<request> make_request(bytes size, bytes alignment);
  [[nodiscard]] result<void> usable() const WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block*> find_room(const request& wanted) WEIR_REQUIRES(mutex_);
  /// Asks the streams how far they have come, and tries again.
  [[nodiscard]] result<block*> find_completed(const request& wanted) WEIR_REQUIRES(mutex_);
  /// `use` is null for take().
  [[nodiscard]] void* hand_out(block& chosen, const request& wanted, const block_use* use,
                               stream_id stream) WEIR_REQUIRES(mutex_);
  /// The live block that starts there, or the error of a free of what is there instead.
  [[nodiscard]] result<block*> find_live(const void* pointer) const WEIR_REQUIRES(mutex_);
  void count_free(const block& freed, stream_id stream) noexcept WEIR_REQUIRES(mutex_);
  /// Nothing uses the block any more.
  void give_to_fit(block& gone) noexcept WEIR_REQUIRES(mutex_);
  void retire() noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t in_use() const noexcept WEIR_REQUIRES(mutex_) {
    return stats_.allocated.current.count() + freed_.bytes_pending();
  }

  // arena_pins.cpp
  /// Whether a live block is all that its segment holds, and the segment is not wanted.
  [[nodiscard]] bool is_last(const block& live) const noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block*> find_by_pinning(const request& wanted) WEIR_REQUIRES(mutex_);
  /// A new segment of about that size. Lets go of the lock.
  enum class purpose : std::uint8_t { request, ahead, reserved };
  [[nodiscard]] result<void> pin(std::uint64_t size, purpose why) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<pinned_memory> pin_unlocked(std::uint64_t size, purpose why) const
      WEIR_EXCLUDES(mutex_);
  void add_segment(const pinned_memory& memory, purpose why) WEIR_REQUIRES(mutex_);
  /// For a request that was refused: unpins idle segments, or waits for freed blocks. False: there
  /// are none.
  [[nodiscard]] result<bool> make_room(const request& wanted) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block*> pageable_block(const request& wanted) WEIR_REQUIRES(mutex_);
  void pin_more_ahead() noexcept WEIR_REQUIRES(mutex_);
  void pin_ahead(pinning_piece piece) noexcept override WEIR_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<std::chrono::nanoseconds> give_back_idle() noexcept override
      WEIR_EXCLUDES(mutex_);
  [[nodiscard]] bool is_old(const segment& idle, std::chrono::nanoseconds now) const noexcept
      WEIR_REQUIRES(mutex_);
  /// Idle segments, the longest idle first, until at most `keep` bytes are pinned.
  [[nodiscard]] leaving take_idle(std::uint64_t keep) WEIR_REQUIRES(mutex_);
  /// Lets go of the lock. What the driver refuses serves again.
  result<bytes> unpin(const leaving& gone) WEIR_REQUIRES(mutex_);
  void count_unpinned(std::uint64_t size) noexcept WEIR_REQUIRES(mutex_);
  void release_pageable(segment& idle) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bytes> release_idle() WEIR_REQUIRES(mutex_);
  /// Waits, reports what is live, and gives back everything that nothing can use.
  void end() noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<error> leak() const noexcept WEIR_REQUIRES(mutex_);
  /// Whether a block of take() is live there: it may be in use for all that the arena knows.
  [[nodiscard]] static bool has_taken(const segment& home) noexcept;

  void emit(const memory_event& event) const noexcept WEIR_REQUIRES(mutex_) { sinks_.emit(event); }

  const weir::device device_;
  const std::shared_ptr<detail::device_state> home_;
  const host_arena_options options_;
  idle_holders holders_;
  mutable detail::mutex mutex_;
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
  std::uint64_t limit_ WEIR_GUARDED_BY(mutex_);
  best_fit fit_ WEIR_GUARDED_BY(mutex_);
  live_blocks live_ WEIR_GUARDED_BY(mutex_);
  freed_blocks freed_;
  demand demand_ WEIR_GUARDED_BY(mutex_);
  pins_under_way under_way_ WEIR_GUARDED_BY(mutex_);
  sinks sinks_ WEIR_GUARDED_BY(mutex_);
  host_arena_stats stats_ WEIR_GUARDED_BY(mutex_);  // but for pending, free, segments, events
  pinning_threads helpers_;
};

/// The time that ages of segments are measured in.
[[nodiscard]] inline std::chrono::nanoseconds steady_time() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}}}  // namespace weir::v0::host
