// SPDX-License-Identifier: Apache-2.0
// A mutex that clang checks: what it guards, who must hold it and who must not are said in the
// declarations, and -Wthread-safety refuses code that does otherwise. To other compilers the words
// are nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "base/sanitizers.hpp"

// ThreadSanitizer looks for locks that are taken in two orders, among those of the system alone.
#define WEIR_MUTEX_IS_NATIVE WEIR_WITH_THREAD_SANITIZER

#if defined(__clang__)
#define WEIR_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define WEIR_THREAD_SAFETY(attribute)
#endif

/// Of a member: read and written only with the mutex.
#define WEIR_GUARDED_BY(mutex) WEIR_THREAD_SAFETY(guarded_by(mutex))
/// Of what a pointer member points to.
#define WEIR_POINTEE_GUARDED_BY(mutex) WEIR_THREAD_SAFETY(pt_guarded_by(mutex))
/// Of a function: the caller holds the mutex, before and after.
#define WEIR_REQUIRES(...) WEIR_THREAD_SAFETY(requires_capability(__VA_ARGS__))
/// The same of a shared_mutex, held by readers or by the writer.
#define WEIR_REQUIRES_SHARED(...) WEIR_THREAD_SAFETY(requires_shared_capability(__VA_ARGS__))
/// Of a function: the caller does not hold the mutex; the function takes it itself.
#define WEIR_EXCLUDES(...) WEIR_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
/// Of a function that returns a reference to the mutex.
#define WEIR_RETURN_CAPABILITY(mutex) WEIR_THREAD_SAFETY(lock_returned(mutex))
/// Of a function that is right for a reason the compiler cannot see; say which beside it.
#define WEIR_UNCHECKED_LOCKING WEIR_THREAD_SAFETY(no_thread_safety_analysis)

namespace weir { inline namespace v0 { namespace detail {

/// A mutex, with the words that clang understands: one word, an exchange to take it and one to let
/// it go, inlined, where std::mutex takes two calls and 60 instructions. Who finds it held sleeps
/// in the kernel until it is let go. Not fair, not recursive. Any thread.
class WEIR_THREAD_SAFETY(capability("mutex")) mutex {
 public:
  constexpr mutex() noexcept = default;
  mutex(const mutex&) = delete;
  mutex& operator=(const mutex&) = delete;

#if WEIR_MUTEX_IS_NATIVE
  void lock() WEIR_THREAD_SAFETY(acquire_capability()) { native_.lock(); }
  void unlock() WEIR_THREAD_SAFETY(release_capability()) { native_.unlock(); }
  [[nodiscard]] bool try_lock() WEIR_THREAD_SAFETY(try_acquire_capability(true)) {
    return native_.try_lock();
  }
#else
  void lock() noexcept WEIR_THREAD_SAFETY(acquire_capability()) {
    if (!try_lock_word()) [[unlikely]]
      wait();
  }
  void unlock() noexcept WEIR_THREAD_SAFETY(release_capability()) {
    if (state_.exchange(unlocked, std::memory_order_release) == contended) [[unlikely]]
      wake();
  }
  [[nodiscard]] bool try_lock() noexcept WEIR_THREAD_SAFETY(try_acquire_capability(true)) {
    return try_lock_word();
  }
#endif
  /// For code that the compiler cannot follow into: the caller knows that the mutex is held.
  void assert_held() const noexcept WEIR_THREAD_SAFETY(assert_capability(this)) {}

 private:
#if WEIR_MUTEX_IS_NATIVE
  std::mutex native_;
#else
  static constexpr std::uint32_t unlocked = 0;
  static constexpr std::uint32_t locked = 1;
  static constexpr std::uint32_t contended = 2;  // locked, and somebody may sleep over it

  [[nodiscard]] bool try_lock_word() noexcept {
    std::uint32_t expected = unlocked;
    return state_.load(std::memory_order_relaxed) == unlocked &&
           state_.compare_exchange_strong(expected, locked, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void wait() noexcept;
  void wake() noexcept;

  std::atomic<std::uint32_t> state_{unlocked};
#endif
};

/// Holds a mutex from here to the end of the scope.
class WEIR_THREAD_SAFETY(scoped_lockable) mutex_lock {
 public:
  [[nodiscard]] explicit mutex_lock(mutex& held) WEIR_THREAD_SAFETY(acquire_capability(held))
      : mutex_{held} {
    mutex_.lock();
  }
  ~mutex_lock() WEIR_THREAD_SAFETY(release_capability()) {
    if (held_) mutex_.unlock();
  }
  mutex_lock(const mutex_lock&) = delete;
  mutex_lock& operator=(const mutex_lock&) = delete;

  /// Lets go for a while, or for good.
  void unlock() WEIR_THREAD_SAFETY(release_capability()) {
    held_ = false;
    mutex_.unlock();
  }
  void lock() WEIR_THREAD_SAFETY(acquire_capability()) {
    mutex_.lock();
    held_ = true;
  }

 private:
  mutex& mutex_;
  bool held_ = true;
};

/// Lets go of a mutex that the caller holds, from here to the end of the scope.
class WEIR_THREAD_SAFETY(scoped_lockable) mutex_unlock {
 public:
  [[nodiscard]] explicit mutex_unlock(mutex& held) WEIR_THREAD_SAFETY(release_capability(held))
      : mutex_{held} {
    mutex_.unlock();
  }
  /// To the compiler the end of the scope undoes what its beginning did.
  ~mutex_unlock() WEIR_THREAD_SAFETY(release_capability()) { mutex_.lock(); }
  mutex_unlock(const mutex_unlock&) = delete;
  mutex_unlock& operator=(const mutex_unlock&) = delete;

 private:
  mutex& mutex_;
};

/// std::shared_mutex: many readers or one writer. Any thread.
class WEIR_THREAD_SAFETY(capability("shared mutex")) shared_mutex {
 public:
  void lock() WEIR_THREAD_SAFETY(acquire_capability()) { native_.lock(); }
  void unlock() WEIR_THREAD_SAFETY(release_capability()) { native_.unlock(); }
  void lock_shared() WEIR_THREAD_SAFETY(acquire_shared_capability()) { native_.lock_shared(); }
  void unlock_shared() WEIR_THREAD_SAFETY(release_shared_capability()) { native_.unlock_shared(); }

 private:
  std::shared_mutex native_;
};

/// Holds a shared mutex as its writer from here to the end of the scope.
class WEIR_THREAD_SAFETY(scoped_lockable) write_lock {
 public:
  [[nodiscard]] explicit write_lock(shared_mutex& held) WEIR_THREAD_SAFETY(acquire_capability(held))
      : mutex_{held} {
    mutex_.lock();
  }
  ~write_lock() WEIR_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  write_lock(const write_lock&) = delete;
  write_lock& operator=(const write_lock&) = delete;

 private:
  shared_mutex& mutex_;
};

/// The same as one of its readers.
class WEIR_THREAD_SAFETY(scoped_lockable) read_lock {
 public:
  [[nodiscard]] explicit read_lock(shared_mutex& held)
      WEIR_THREAD_SAFETY(acquire_shared_capability(held))
      : mutex_{held} {
    mutex_.lock_shared();
  }
  ~read_lock() WEIR_THREAD_SAFETY(release_capability()) { mutex_.unlock_shared(); }
  read_lock(const read_lock&) = delete;
  read_lock& operator=(const read_lock&) = delete;

 private:
  shared_mutex& mutex_;
};

}}}  // namespace weir::v0::detail
