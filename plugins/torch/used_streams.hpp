// SPDX-License-Identifier: Apache-2.0
// The streams of torch's that somebody may have, read from the round robin that hands them out.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace weir_torch {

/// The streams of one device that torch has handed out.
///
/// torch creates 32 streams of each priority, all at once and for good, and hands them out round
/// robin. The position of the round robin cannot be queried, but a probe shows it: it takes 32
/// streams of each priority, which leaves the position as it was. The streams between the position
/// at the end of the last probe and the one now, and those that are skipped between two that the
/// probe took, were handed out to others.
///
/// Because the position wraps around, 33 streams look like one. So whoever learns of a stream in
/// another way marks it: a marked stream that the probe did not pass shows that the position
/// wrapped around, and then all of that priority count. Unseen remain only streams of which 32 or
/// more were handed out between two probes with no mark on one that the probe did not pass. A
/// stream that is known to be handed out stays so; a priority of which all streams are is not
/// probed any more.
///
/// Any thread. A mark is an atomic operation; probes are serialized. Never destroyed.
class used_streams {
 public:
  static constexpr int streams_per_priority = 32;
  static constexpr int max_priorities = 4;
  /// Takes the next stream of a priority; its index in the round robin, from 0.
  using taker = std::function<int(int priority)>;

  used_streams() = default;
  used_streams(const used_streams&) = delete;
  used_streams& operator=(const used_streams&) = delete;

  /// Somebody has the stream.
  void mark(int priority, int index) noexcept {
    round_robin& robin = robins_[static_cast<std::size_t>(priority)];
    const std::uint32_t bit = 1U << index;
    const std::uint32_t known = robin.known.load(std::memory_order_relaxed);
    if (((known | robin.marked.load(std::memory_order_relaxed)) & bit) == 0)
      robin.marked.fetch_or(bit, std::memory_order_release);  // behind its being handed out
  }
  /// Probes so many priorities. torch must have created its streams already. If `take` throws, what
  /// was seen until then counts.
  void probe(int priorities, const taker& take);
  /// One bit a stream.
  [[nodiscard]] std::uint32_t of(int priority) const noexcept {
    const round_robin& robin = robins_[static_cast<std::size_t>(priority)];
    const std::uint32_t marked =
        robin.marked.load(std::memory_order_acquire);  // a probe moves them to `known`
    return marked | robin.known.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint32_t all_streams = ~std::uint32_t{0};
  struct round_robin {
    std::atomic<std::uint32_t> known{0};
    std::atomic<std::uint32_t> marked{0};  // since the last probe
    int next = 0;                          // after the last probe; torch begins at 0
  };
  static void probe(round_robin& robin, int priority, const taker& take);

  std::array<round_robin, max_priorities> robins_;
  std::mutex mutex_;  // of probes
  bool probed_ = false;
};

}  // namespace weir_torch
