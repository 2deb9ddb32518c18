// SPDX-License-Identifier: Apache-2.0
// Host memory for the contents of suspended memory, and the copies there and back.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"
#include "weir/driver/types.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// A piece of host memory.
struct backup_piece {
  std::byte* host = nullptr;
  std::uint64_t size = 0;
};

/// Host memory that is held for contents, of all kinds together: now, and the most that it was.
/// Owned by a heap_backup. Any thread, without a lock.
class backup_gauge {
 public:
  void add(std::uint64_t size) noexcept {
    const std::uint64_t now = held_.fetch_add(size, std::memory_order_relaxed) + size;
    std::uint64_t most = peak_.load(std::memory_order_relaxed);
    while (most < now && !peak_.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
  }
  void remove(std::uint64_t size) noexcept { held_.fetch_sub(size, std::memory_order_relaxed); }
  [[nodiscard]] byte_gauge read() const noexcept {
    return {bytes{held_.load(std::memory_order_relaxed)},
            bytes{peak_.load(std::memory_order_relaxed)}};
  }
  void reset_peak() noexcept {
    peak_.store(held_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> held_{0};
  std::atomic<std::uint64_t> peak_{0};
};

/// The arena that contents are kept in: a few large segments, pinned or not, which stay for the
/// next time until somebody trims.
///
/// Every byte of its segments is in one piece that was taken or in one free range. Sizes are in
/// whole units of 512 bytes, so that any part of a piece can be given back. Owned by a
/// heap_backup. Any thread. Taking may pin memory, which takes a second for 2 GiB, and the driver
/// waits for the device before it takes memory back; no lock is held for either. A segment that is
/// on its way back has no free range.
class backup_memory {
 public:
  /// What it holds counts in `held` as well.
  backup_memory(weir::device device, host_memory_kind kind, backup_gauge& held) noexcept
      : home_{detail::device_state::keep(device)}, kind_{kind}, all_held_{held} {}
  ~backup_memory();
  backup_memory(const backup_memory&) = delete;
  backup_memory& operator=(const backup_memory&) = delete;

  /// Pieces of `size` bytes together, behind those that are in `pieces`, or none.
  /// no_host_memory: the host has no more.
  [[nodiscard]] result<void> take(std::uint64_t size, std::vector<backup_piece>& pieces)
      WEIR_EXCLUDES(mutex_);
  /// One piece.
  [[nodiscard]] result<backup_piece> take_whole(std::uint64_t size) WEIR_EXCLUDES(mutex_);
  /// Any part of what was taken.
  void give(backup_piece piece) noexcept WEIR_EXCLUDES(mutex_);
  /// Sees to it that so much can be taken without asking the system.
  [[nodiscard]] result<void> reserve(std::uint64_t size) WEIR_EXCLUDES(mutex_);
  /// Returns segments of which nothing is taken to the system. Returns how much that was. Waits for
  /// the device: not with the heap's lock.
  result<bytes> trim() WEIR_EXCLUDES(mutex_);

  /// What the segments are, taken or not. Waits for nobody.
  [[nodiscard]] std::uint64_t held() const noexcept {
    return held_.load(std::memory_order_relaxed);
  }

 private:
  struct segment {
    std::byte* base = nullptr;
    std::uint64_t size = 0;
    std::vector<backup_piece> free{};  // by address; no two adjoin
    bool leaves = false;               // it is on its way to the system
  };

  [[nodiscard]] std::uint64_t available() const noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> add_segment(std::uint64_t size) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<backup_piece> find_whole(std::uint64_t size) WEIR_EXCLUDES(mutex_);
  void prepare(std::size_t more) WEIR_REQUIRES(mutex_);
  /// An idle segment, which serves nobody from here on; of size 0: there is none.
  [[nodiscard]] backup_piece unlink_idle() noexcept WEIR_REQUIRES(mutex_);
  void end_return(backup_piece idle, bool returned) noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> return_segment(std::byte* base, std::uint64_t size) const noexcept;

  const std::shared_ptr<detail::device_state> home_;
  const host_memory_kind kind_;
  mutable detail::mutex mutex_;
  std::vector<segment> segments_ WEIR_GUARDED_BY(mutex_);
  std::size_t pieces_ WEIR_GUARDED_BY(mutex_) = 0;  // about as many are taken
  std::atomic<std::uint64_t> held_{0};
  backup_gauge& all_held_;
};

/// The heap (its core) whose progress callback the calling thread is in; null: it is in none. Such
/// a thread must not wait until memory has arrived, as it arrives only after the callback returns.
inline thread_local const void* heap_of_progress = nullptr;

/// Adds up what was copied, and says so to whoever asked. Of one suspend or resume.
class copy_meter {
 public:
  copy_meter(const suspend_progress& progress, std::uint64_t total,
             const void* heap = nullptr) noexcept
      : progress_{progress}, total_{total}, heap_{heap} {}

  [[nodiscard]] bool has_reader() const noexcept { return static_cast<bool>(progress_); }
  void add(std::uint64_t size) noexcept {
    done_ += size;
    const void* const before = std::exchange(heap_of_progress, heap_);
    try {
      progress_(bytes{done_}, bytes{total_});
    } catch (...) {  // the user's own; what is under way goes on
    }
    heap_of_progress = before;
  }

 private:
  const suspend_progress& progress_;
  const std::uint64_t total_;
  const void* const heap_;
  std::uint64_t done_ = 0;
};

/// Copies contents between the device and host memory, in chunks, on streams of its own that
/// nothing else is queued on and that nobody else knows.
///
/// What was queued is done when finish() has succeeded or drain() has said so. Owned by a move or
/// by a heap_backup, used by one thread at a time, without the heap's lock; any thread may stop it.
class backup_copies {
 public:
  backup_copies(weir::device device, backup_memory& pinned) noexcept
      : home_{detail::device_state::keep(device)}, pinned_{pinned} {}
  ~backup_copies();
  backup_copies(const backup_copies&) = delete;
  backup_copies& operator=(const backup_copies&) = delete;

  /// For copies of that size to host memory of that kind. `meter`, if it has a reader, counts what
  /// has arrived until drain(); each stream then has one copy at a time.
  [[nodiscard]] result<void> begin(host_memory_kind kind, bytes chunk, copy_meter& meter,
                                   const context_scope& bound);
  [[nodiscard]] result<void> save(std::uint64_t address, backup_piece to,
                                  const context_scope& bound);
  [[nodiscard]] result<void> restore(std::uint64_t address, backup_piece from,
                                     const context_scope& bound);
  /// Makes what is queued on the stream from now on wait for all copies. Not for copies back from
  /// memory that is not pinned: there the host has a part in them. Any thread.
  [[nodiscard]] result<void> precede(const stream_ref& stream, const context_scope& bound)
      WEIR_EXCLUDES(queueing_);
  /// From now on save() queues nothing: nobody wants the contents any more. Any thread.
  void stop() noexcept WEIR_EXCLUDES(queueing_) { set_stopped(true); }
  void restart() noexcept WEIR_EXCLUDES(queueing_) { set_stopped(false); }
  /// Waits for everything.
  [[nodiscard]] result<void> finish(const context_scope& bound);
  /// The same where nothing of it matters any more; lets go of what begin() took. False: the driver
  /// refuses every wait, and copies may still read and write host and device memory.
  bool drain(const context_scope& bound) noexcept;

 private:
  static constexpr std::size_t lanes = 4;
  /// A stream, and for memory that is not pinned the piece that its one copy goes through.
  struct lane {
    driver::CUstream stream = nullptr;
    backup_piece staging{};
    backup_piece waiting{};     // what is in `staging` once the stream is done
    std::uint64_t metered = 0;  // what the stream copies, if somebody wants to know
  };

  [[nodiscard]] result<void> settle(lane& each, const context_scope& bound);
  void set_stopped(bool value) noexcept WEIR_EXCLUDES(queueing_) {
    const detail::mutex_lock lock{queueing_};
    stopped_ = value;
  }

  const std::shared_ptr<detail::device_state> home_;
  backup_memory& pinned_;
  detail::mutex queueing_;  // while a stream of all_ is made or gets a copy that may be stopped
  bool stopped_ WEIR_GUARDED_BY(queueing_) = false;
  std::array<lane, lanes> all_{};
  std::size_t next_ = 0;
  bool staged_ = false;
  copy_meter* meter_ = nullptr;
  std::uint64_t chunk_ = 0;
};

}}}  // namespace weir::v0::heap
