// SPDX-License-Identifier: Apache-2.0
// How many bytes were ever requested, counted by every thread for itself.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace weir_torch {

/// Two sums for every device: bytes requested, and the same rounded to whole units of 512.
///
/// weir counts what is live; torch also wants to know what ever was. A thread adds to counters of
/// its own, which costs a load and two stores; read() adds them up. What a thread counted stays
/// when it ends. Never destroyed: threads may end after everything else.
class byte_counters {
 public:
  static constexpr std::size_t max_devices = 64;
  struct sums {
    std::uint64_t requested = 0;
    std::uint64_t rounded = 0;
  };

  void add(std::size_t device, std::uint64_t size) noexcept { add(device, size, size); }
  /// `taken` is what a block for the request takes, if that is more than its size rounded.
  void add(std::size_t device, std::uint64_t size, std::uint64_t taken) noexcept {
    counters* const own = attached_.owner == this ? attached_.own : attach_thread();
    if (own == nullptr) [[unlikely]]
      return;
    counter& cell = (*own)[device];
    // One writer: no read-modify-write is needed.
    cell.requested.store(cell.requested.load(std::memory_order_relaxed) + size,
                         std::memory_order_relaxed);
    cell.rounded.store(cell.rounded.load(std::memory_order_relaxed) + ((taken + 511) & ~511ULL),
                       std::memory_order_relaxed);
  }

  [[nodiscard]] sums read(std::size_t device) const {
    const std::lock_guard lock{mutex_};
    sums total;
    for (const counters* each : all_) {
      total.requested += (*each)[device].requested.load(std::memory_order_relaxed);
      total.rounded += (*each)[device].rounded.load(std::memory_order_relaxed);
    }
    return total;
  }

 private:
  struct counter {
    std::atomic<std::uint64_t> requested{0};
    std::atomic<std::uint64_t> rounded{0};
  };
  using counters = std::array<counter, max_devices>;

  /// A thread's counters, and the object that they belong to.
  struct attachment {
    byte_counters* owner;
    counters* own;
  };
  /// Leaves them to the next thread that is attached, when this one ends.
  struct thread_exit {
    ~thread_exit() {
      if (attached_.owner != nullptr) attached_.owner->recycle(attached_.own);
      attached_ = {};
    }
  };

  [[gnu::noinline]] counters* attach_thread() noexcept try {
    // Where it has no memory to note a destructor, the C library ends the process.
    void* volatile const ample = std::malloc(4096);
    std::free(ample);
    if (ample == nullptr) return nullptr;
    static thread_local thread_exit at_exit;
    static_cast<void>(&at_exit);
    if (attached_.owner != nullptr) attached_.owner->recycle(attached_.own);
    attached_ = {};
    const std::lock_guard lock{mutex_};
    counters* own = nullptr;
    if (!idle_.empty()) {
      own = idle_.back();
      idle_.pop_back();
    } else {
      idle_.reserve(all_.size() + 1);
      all_.reserve(all_.size() + 1);
      own = new counters{};
      all_.push_back(own);
    }
    attached_ = {this, own};
    return own;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  void recycle(counters* unused) noexcept {
    const std::lock_guard lock{mutex_};
    idle_.push_back(unused);  // reserved when the counters were made
  }

  // In the static block of thread-local memory: reached without a call.
  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit attachment attached_{};

  mutable std::mutex mutex_;
  std::vector<counters*> all_;
  std::vector<counters*> idle_;
};

}  // namespace weir_torch
