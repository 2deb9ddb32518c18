// SPDX-License-Identifier: Apache-2.0
// What a thread has until it ends, on a host that may have no memory to note that.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

namespace weir { inline namespace v0 { namespace detail {

/// One T for each thread, created when it is first asked for, and destroyed with the thread, after
/// its thread-local objects. The main thread's stays when the process ends.
///
/// Kept by a key of pthreads, not thread-local: the C library ends the process where it has no
/// memory to note the destructor of a thread-local object. The code that is called at the thread's
/// end must still be loaded then: libweir.so stays loaded, and so must a library that contains
/// libweir.a.
template <class T>
class until_thread_end {
 public:
  /// Null where the host has no memory, or the process no key left.
  [[nodiscard]] static T* own() noexcept {
    if (own_ != nullptr) return own_;
    const std::optional<pthread_key_t> key = destructor_key();
    if (!key) return nullptr;
    std::unique_ptr<T> created{new (std::nothrow) T};
    if (created == nullptr || pthread_setspecific(*key, created.get()) != 0) return nullptr;
    return own_ = created.release();
  }
  /// Null if the thread has none yet, or no more.
  [[nodiscard]] static T* existing() noexcept { return own_; }

 private:
  // Later calls of a thread that is being taken down get a new one, and the key another call.
  static std::optional<pthread_key_t> destructor_key() noexcept {
    static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
      pthread_key_t created{};
      const int refused = pthread_key_create(&created, [](void* ended) {
        own_ = nullptr;
        delete static_cast<T*>(ended);
      });
      if (refused != 0) return std::nullopt;
      return created;
    }();
    return key;
  }

  static inline constinit thread_local T* own_ = nullptr;
};

/// Whether there is host memory to note the destructor of a thread-local object, for those that
/// must end before the driver's part of the thread, which a key keeps.
[[nodiscard]] inline bool can_note_destructor() noexcept {
  constexpr std::size_t ample = 4096;  // what the C library asks for is some 32 bytes
  void* volatile const asked = std::malloc(ample);
  std::free(asked);
  return asked != nullptr;
}

}}}  // namespace weir::v0::detail
