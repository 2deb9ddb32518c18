// Which of torch's streams somebody may have: seen from the turn in which torch hands them out.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace weir_torch {

/// The streams of one device that torch has handed out.
///
/// torch makes 32 streams of each priority, all at once and for good, and hands them out in turn,
/// over and over. Where the turn is cannot be asked, but a look shows it: it takes 32 streams of
/// each priority, which leaves the turn where it was. What lies between where the turn was at the
/// end of the last look and where it is now, or is left out between two that the look took, others
/// have got.
///
/// Because the turn goes round, 33 streams look like one. So whoever hears of a stream by another
/// way notes it: one that is noted and that the look did not pass shows that the turn went round,
/// and then all of that priority count. Unseen remain only streams that were handed out 32 or more
/// between two looks with no note of those that the look did not pass. What is known to be handed
/// out stays so; a priority of which all streams are is not looked at any more.
///
/// Any thread. A note is an atomic operation; looks come one at a time. Never destroyed.
class handed_out {
 public:
  static constexpr int streams = 32;  // of a priority
  static constexpr int most_priorities = 4;
  /// Takes the next stream of a priority; its place in the turn, from 0.
  using taker = std::function<int(int priority)>;

  handed_out() = default;
  handed_out(const handed_out&) = delete;
  handed_out& operator=(const handed_out&) = delete;

  /// Somebody has the stream.
  void note(int priority, int index) noexcept {
    turn& its = turns_[static_cast<std::size_t>(priority)];
    const std::uint32_t bit = 1U << index;
    const std::uint32_t known = its.known.load(std::memory_order_relaxed);
    if (((known | its.noted.load(std::memory_order_relaxed)) & bit) == 0)
      its.noted.fetch_or(bit, std::memory_order_release);  // behind its being handed out
  }
  /// Looks at so many priorities. torch must have made its streams already. If `take` throws, what
  /// was seen until then counts.
  void look(int priorities, const taker& take);
  /// One bit a stream.
  [[nodiscard]] std::uint32_t of(int priority) const noexcept {
    const turn& its = turns_[static_cast<std::size_t>(priority)];
    const std::uint32_t noted =
        its.noted.load(std::memory_order_acquire);  // a look moves them over
    return noted | its.known.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint32_t all_streams = ~std::uint32_t{0};
  struct turn {
    std::atomic<std::uint32_t> known{0};
    std::atomic<std::uint32_t> noted{0};  // since the last look
    int next = 0;                         // after the last look; torch begins at 0
  };
  static void look(turn& at, int priority, const taker& take);

  std::array<turn, most_priorities> turns_;
  std::mutex mutex_;  // of looks
  bool looked_ = false;
};

}  // namespace weir_torch
