// How many bytes were ever asked for, counted by every thread for itself.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace weir_torch {

/// Two sums for every device: bytes asked for, and the same rounded to whole units of 512.
///
/// weir counts what is live; torch also wants to know what ever was. A thread adds to a counter of
/// its own, which costs a load and two stores; read() adds them up. What a thread counted stays
/// when it ends. Never destroyed: threads may end after everything else.
class tally {
 public:
  static constexpr std::size_t most_devices = 64;
  struct sums {
    std::uint64_t asked = 0;
    std::uint64_t rounded = 0;
  };

  void add(std::size_t device, std::uint64_t size) noexcept {
    counters* const mine = quick_.owner == this ? quick_.held : join();
    if (mine == nullptr) [[unlikely]]
      return;
    cell& at = (*mine)[device];
    // One writer: no read-modify-write is needed.
    at.asked.store(at.asked.load(std::memory_order_relaxed) + size, std::memory_order_relaxed);
    at.rounded.store(at.rounded.load(std::memory_order_relaxed) + ((size + 511) & ~511ULL),
                     std::memory_order_relaxed);
  }

  [[nodiscard]] sums read(std::size_t device) const {
    const std::lock_guard lock{mutex_};
    sums out;
    for (const counters* each : all_) {
      out.asked += (*each)[device].asked.load(std::memory_order_relaxed);
      out.rounded += (*each)[device].rounded.load(std::memory_order_relaxed);
    }
    return out;
  }

 private:
  struct cell {
    std::atomic<std::uint64_t> asked{0};
    std::atomic<std::uint64_t> rounded{0};
  };
  using counters = std::array<cell, most_devices>;

  /// Where a thread finds its counters.
  struct shortcut {
    tally* owner;
    counters* held;
  };
  /// Hands them to the next thread that comes, when this one ends.
  struct farewell {
    ~farewell() {
      if (quick_.owner != nullptr) quick_.owner->leave(quick_.held);
      quick_ = {};
    }
  };

  [[gnu::noinline]] counters* join() noexcept try {
    static thread_local farewell leaving;
    static_cast<void>(&leaving);
    if (quick_.owner != nullptr) quick_.owner->leave(quick_.held);
    quick_ = {};
    const std::lock_guard lock{mutex_};
    counters* given = nullptr;
    if (!idle_.empty()) {
      given = idle_.back();
      idle_.pop_back();
    } else {
      idle_.reserve(all_.size() + 1);
      all_.reserve(all_.size() + 1);
      given = new counters{};
      all_.push_back(given);
    }
    quick_ = {this, given};
    return given;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  void leave(counters* given) noexcept {
    const std::lock_guard lock{mutex_};
    idle_.push_back(given);  // room was made when the counters were
  }

  // In the static block of thread-local memory: found without a call.
  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit shortcut quick_{};

  mutable std::mutex mutex_;
  std::vector<counters*> all_;
  std::vector<counters*> idle_;
};

}  // namespace weir_torch
