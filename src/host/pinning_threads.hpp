// SPDX-License-Identifier: Apache-2.0
// Helper threads that pin memory ahead of need.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.hpp"

namespace weir { inline namespace v0 { namespace host {

/// What a helper thread pins at a time.
struct pinning_piece {
  std::uint64_t size = 0;
  bool reserved = false;  // by reserve(): failures are reported, and the memory stays
};

/// What helper threads do for an arena. Called without any lock.
class pinning_work {
 public:
  virtual void pin_ahead(pinning_piece piece) noexcept = 0;
  /// Gives back what was idle for long. Returns in how long to look again; nothing: not before the
  /// next pin.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> give_back_idle() noexcept = 0;

 protected:
  ~pinning_work() = default;
};

/// A queue of pieces to pin, and the threads that work on it, which start with the first piece.
///
/// Owned by an arena, which stops it before anything that the work needs goes. Any thread. The
/// threads take no signals.
class pinning_threads {
 public:
  /// `most` threads; 0: post() does nothing. Throws std::bad_alloc: a queue needs memory.
  pinning_threads(pinning_work& work, unsigned most) : work_{work}, most_{most} {}
  ~pinning_threads();
  pinning_threads(const pinning_threads&) = delete;
  pinning_threads& operator=(const pinning_threads&) = delete;

  /// False: no thread will pin it, because there is none, or no memory for the record.
  bool post(pinning_piece piece) noexcept WEIR_EXCLUDES(mutex_);
  /// The bytes of pieces that are queued or being pinned.
  [[nodiscard]] std::uint64_t queued() const noexcept WEIR_EXCLUDES(mutex_);
  /// Waits until no piece is queued or being pinned.
  void wait_until_idle() WEIR_EXCLUDES(mutex_);
  /// Drops what is queued and waits for the threads. No thread starts from here on.
  void stop() noexcept WEIR_EXCLUDES(mutex_);
  /// In a child of fork(): the threads are not there, and must not be waited for.
  /// Without the lock, which a thread of the parent may have held.
  void abandon() noexcept WEIR_UNCHECKED_LOCKING;

 private:
  void run() noexcept;
  bool start_thread() noexcept WEIR_REQUIRES(mutex_);

  pinning_work& work_;
  const unsigned most_;
  mutable detail::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<pinning_piece> pieces_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t queued_ WEIR_GUARDED_BY(mutex_) = 0;
  unsigned idle_ WEIR_GUARDED_BY(mutex_) = 0;
  bool stopped_ WEIR_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::vector<std::thread>> threads_ WEIR_GUARDED_BY(mutex_);
};

}}}  // namespace weir::v0::host
