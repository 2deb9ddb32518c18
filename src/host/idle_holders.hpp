// SPDX-License-Identifier: Apache-2.0
// Who holds memory of a host arena without using it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.hpp"

namespace weir { inline namespace v0 { namespace host {

/// A cache over an arena, as of a pool. Called without locks of the arena.
class idle_holder {
 public:
  /// Gives back to the arena what it holds and does not use, about `wanted` bytes. Returns how much
  /// that was. Takes nothing from the arena meanwhile.
  virtual std::uint64_t give_back(std::uint64_t wanted) noexcept = 0;

 protected:
  ~idle_holder() = default;
};

/// The caches over an arena, so that memory which one of them holds is not pinned again for
/// another.
///
/// Owned by an arena. Any thread. A holder that was removed is not being called.
class idle_holders {
 public:
  /// Throws std::bad_alloc.
  void add(idle_holder& holder) WEIR_EXCLUDES(mutex_) {
    const detail::mutex_lock lock{mutex_};
    holders_.push_back(&holder);
  }
  void remove(idle_holder& holder) noexcept WEIR_EXCLUDES(mutex_) {
    const detail::mutex_lock lock{mutex_};
    std::erase(holders_, &holder);
  }
  /// Asks them one after the other, until `wanted` bytes came back. Returns how much it was.
  std::uint64_t give_back(std::uint64_t wanted) noexcept WEIR_EXCLUDES(mutex_) {
    const detail::mutex_lock lock{mutex_};
    asking_.fetch_add(1, std::memory_order_relaxed);
    std::uint64_t given = 0;
    for (idle_holder* const each : holders_) {
      if (given >= wanted) break;
      given += each->give_back(wanted - given);
    }
    asking_.fetch_sub(1, std::memory_order_relaxed);
    return given;
  }
  /// Whether they are being asked: what comes back now is wanted.
  [[nodiscard]] bool asking() const noexcept {
    return asking_.load(std::memory_order_relaxed) != 0;
  }

 private:
  detail::mutex mutex_;
  std::atomic<int> asking_{0};
  std::vector<idle_holder*> holders_ WEIR_GUARDED_BY(mutex_);
};

}}}  // namespace weir::v0::host
