// SPDX-License-Identifier: Apache-2.0
// The peak of what a heap has reserved and suspended together.
#pragma once

#include <cstdint>

#include "base/mutex.hpp"
#include "heap/heap_core.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The most that was reserved and suspended at one time, since the heap or the last reset() began.
///
/// Until the first pool is suspended it is the peak of what is reserved, which others keep; from
/// then on note_growth() has to be called whenever memory may have been taken from the driver. A
/// call walks over the blocks of suspended pools.
///
/// Owned by the central heap. The caller holds the heap's lock.
class suspended_peak {
 public:
  explicit suspended_peak(const heap_core& core) noexcept : core_{core} {}
  suspended_peak(const suspended_peak&) = delete;
  suspended_peak& operator=(const suspended_peak&) = delete;

  /// A pool is going to be suspended, or to come back.
  void begin() noexcept {
    core_.mutex_.assert_held();
    ever_suspended_ = true;
  }
  void note_growth() noexcept {
    core_.mutex_.assert_held();
    if (ever_suspended_) [[unlikely]]
      raise();
  }
  /// As of the last note_growth().
  [[nodiscard]] std::uint64_t read() const noexcept {
    core_.mutex_.assert_held();
    return most_;
  }
  void reset() noexcept;

 private:
  void raise() noexcept WEIR_REQUIRES(core_.mutex_);
  /// Reserved, and what resume() would take of all pools.
  [[nodiscard]] std::uint64_t sum() const noexcept WEIR_REQUIRES(core_.mutex_);

  const heap_core& core_;
  bool ever_suspended_ WEIR_GUARDED_BY(core_.mutex_) = false;
  std::uint64_t most_ WEIR_GUARDED_BY(core_.mutex_) = 0;
};

}}}  // namespace weir::v0::heap
