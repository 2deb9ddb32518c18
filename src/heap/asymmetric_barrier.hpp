// SPDX-License-Identifier: Apache-2.0
// A barrier between two sides of which one pays nothing: the frequent side, at the rare one's cost.
#pragma once

#include <atomic>

#include "base/sanitizers.hpp"

// A sanitizer that knows nothing of membarrier is shown the order in terms it understands.
#define WEIR_HEAP_SHOW_ORDER WEIR_WITH_THREAD_SANITIZER

namespace weir { inline namespace v0 { namespace heap {

/// Dekker's question ("I am in" / "are you?") between a thread that asks it at every call and one
/// that asks it seldom. The frequent side stores, calls light() and loads; the rare side stores,
/// calls heavy() and loads: at least one of them sees the other's store.
///
/// heavy() also orders what the rare side wrote before it with what the frequent side reads once
/// it sees a store that the rare side made behind it: so the frequent side may load relaxed. On the
/// machines where that matters an acquiring load would wait for the releasing store of the call
/// before, which costs more than the rest of the call.
///
/// Any thread. light() is nothing where the kernel has membarrier, a full fence where not; heavy()
/// interrupts the processors that run this process: 0.1 to 10 microseconds.
class asymmetric_barrier {
 public:
#if WEIR_HEAP_SHOW_ORDER
  static constexpr std::memory_order load_order = std::memory_order_acquire;
#else
  static constexpr std::memory_order load_order = std::memory_order_relaxed;
#endif

  /// Asks the kernel, once in a process; before the first light().
  static void prepare() noexcept;
  /// From now on as on a kernel without membarrier. For tests: before the first prepare().
  static void refuse_membarrier() noexcept { refused_ = true; }
  /// Whether light() costs nothing: then a compiler's fence is all that it is.
  [[nodiscard]] static bool is_free() noexcept { return expedited_; }
  static void light() noexcept {
    if (expedited_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  /// Behind the load of the frequent side: keeps what follows behind it.
  static void loaded() noexcept {
    if (expedited_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_acquire);
    }
  }
  static void heavy() noexcept;

 private:
  static bool expedited_;
  static bool refused_;
};

}}}  // namespace weir::v0::heap
