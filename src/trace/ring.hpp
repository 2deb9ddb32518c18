// SPDX-License-Identifier: Apache-2.0
// A thread's ring of records: written by the thread, drained by the recorder.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "heap/asymmetric_barrier.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// An event as its thread wrote it: times in ticks, streams and tags by the program's numbers.
struct record {
  std::uint64_t time = 0;
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t extra = 0;
  std::uint64_t stream = 0;
  std::uint64_t other = 0;
  std::uint32_t pool = 0;
  std::uint16_t tag = 0;
  std::uint16_t thread = 0;  ///< the recorder's number of the ring, written when it is drained
  trace_kind kind{};
};
static_assert(sizeof(record) == 64);

/// One writer, one reader, no lock. Whether the writer has begun something can be seen from
/// outside: what it began before the reader's asymmetric_barrier::heavy() is in the ring once
/// settled() says so. That costs the writer one plain store more.
class ring {
 public:
  ring(std::uint32_t capacity, std::uint16_t number, std::uint64_t thread)
      : records_(std::bit_ceil(capacity)),
        first_{records_.data()},
        mask_{records_.size() - 1},
        number_{number},
        thread_{thread} {}

  // --- The writer -------------------------------------------------------------------------------

  [[nodiscard]] bool is_full() noexcept {
    if (written_ - drained_seen_ <= mask_) [[likely]]
      return false;
    drained_seen_ = drained_.load(std::memory_order_acquire);
    return written_ - drained_seen_ > mask_;
  }
  /// From here to publish() or cancel() the reader waits for the writer.
  void begin() noexcept {
    state_.store(2 * written_ + busy, std::memory_order_relaxed);
    heap::asymmetric_barrier::light();
  }
  /// Not is_full().
  [[nodiscard]] record& next() noexcept {
    // The reader had the lines last: by the time they are written they should be here again.
    prefetch_for_writing(&first_[(written_ + ahead) & mask_]);
    return first_[written_ & mask_].content;
  }
  void publish() noexcept { state_.store(2 * ++written_, std::memory_order_release); }
  void cancel() noexcept { state_.store(2 * written_, std::memory_order_release); }
  /// Whether the reader should be woken: once each time that another half was written.
  [[nodiscard]] bool is_half_way() const noexcept { return (written_ & (mask_ >> 1)) == 0; }
  void drop() noexcept { dropped_.fetch_add(1, std::memory_order_relaxed); }
  void end_thread() noexcept { ended_.store(true, std::memory_order_release); }

  // --- The reader -------------------------------------------------------------------------------

  /// How much was written so far; nothing while a record is begun.
  [[nodiscard]] std::optional<std::uint64_t> settled() const noexcept {
    const std::uint64_t state = state_.load(std::memory_order_acquire);
    if ((state & busy) != 0) return std::nullopt;
    return state / 2;
  }
  /// Moves the records that were written until then to `out`.
  void drain(std::uint64_t until, std::vector<record>& out) {
    std::uint64_t position = drained_.load(std::memory_order_relaxed);
    for (; position != until; ++position) {
      record& moved = out.emplace_back(first_[position & mask_].content);
      moved.thread = number_;
      // A thread's own order is certain, whatever the clock says.
      last_time_ = moved.time = std::max(moved.time, last_time_);
    }
    drained_.store(position, std::memory_order_release);
  }
  [[nodiscard]] std::uint64_t dropped() const noexcept {
    return dropped_.load(std::memory_order_relaxed);
  }
  /// Its thread has ended and everything was drained.
  [[nodiscard]] bool is_done() const noexcept {
    return ended_.load(std::memory_order_acquire) &&
           settled() == drained_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint16_t number() const noexcept { return number_; }
  [[nodiscard]] std::uint64_t thread() const noexcept { return thread_; }

 private:
  static void prefetch_for_writing(const void* line) noexcept {
#if defined(__x86_64__)
    // The built-in would only ask to read it, as long as the oldest processors count.
    asm volatile("prefetchw (%0)" : : "r"(line));
#else
    __builtin_prefetch(line, 1);
#endif
  }

  static constexpr std::uint64_t busy = 1;
  static constexpr std::uint64_t ahead = 8;

  /// A line each. The record itself claims no alignment: the standard library's sorting forgets it.
  struct alignas(64) slot {
    record content;
  };

  std::vector<slot> records_;  // its pages are touched here, so that no event has to
  slot* const first_;
  const std::uint64_t mask_;
  std::uint64_t written_ = 0;
  std::uint64_t drained_seen_ = 0;
  std::atomic<std::uint64_t> state_{0};  // twice what was written, plus busy
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> ended_{false};
  std::uint16_t number_;
  std::uint64_t thread_;
  // The reader's.
  alignas(64) std::atomic<std::uint64_t> drained_{0};
  std::uint64_t last_time_ = 0;
};

}}}  // namespace weir::v0::trace
