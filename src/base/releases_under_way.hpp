// SPDX-License-Identifier: Apache-2.0
// Memory on its way back to where it came from.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <thread>

#include "base/mutex.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// The releases that are under way: memory that has left a cache, and that the driver
/// or the upstream does not have yet. A request that finds no memory waits for them.
///
/// Owned by a pool or a heap, whose lock every call needs. Needs no host memory. A wait walks over
/// the releases, of which each thread has at most a few.
class releases_under_way {
 public:
  /// One release, on the stack of the thread that makes it. Made and destroyed with the lock.
  class release {
   public:
    [[nodiscard]] explicit release(releases_under_way& all) noexcept;
    ~release();
    release(const release&) = delete;
    release& operator=(const release&) = delete;

   private:
    friend class releases_under_way;

    releases_under_way& all_;
    const std::thread::id thread_;
    const std::uint64_t number_;
    release* before_ = nullptr;
    release* after_ = nullptr;
  };

  /// Waits for the releases of other threads that are under way at the call, and lets go of the
  /// lock meanwhile. False: there was none to wait for. A thread inside a release of its own waits
  /// for nobody, because others may wait for it.
  bool wait_for_others(mutex& held) WEIR_REQUIRES(held);
  [[nodiscard]] bool any() const noexcept { return first_ != nullptr; }
  /// How many releases have ended. A request that was refused is worth another try if this changed.
  [[nodiscard]] std::uint64_t ended() const noexcept { return ended_; }

 private:
  [[nodiscard]] bool any_until(std::uint64_t number) const noexcept;

  release* first_ = nullptr;
  std::uint64_t last_number_ = 0;
  std::uint64_t ended_ = 0;
  std::condition_variable_any changed_;
};

}}}  // namespace weir::v0::detail
