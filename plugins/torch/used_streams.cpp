// SPDX-License-Identifier: Apache-2.0
// Probing torch's round robin of streams.
#include "used_streams.hpp"

#include <algorithm>

namespace weir_torch {

void used_streams::probe(round_robin& robin, int priority, const taker& take) {
  // Before any is taken: a stream was handed out before it was marked, so this probe passes it.
  const std::uint32_t marked = robin.marked.load(std::memory_order_acquire);
  std::uint32_t known = robin.known.load(std::memory_order_relaxed);
  for (int taken = 0; taken < streams_per_priority; ++taken) {
    const int index = take(priority);
    for (; robin.next != index; robin.next = (robin.next + 1) % streams_per_priority)
      known |= 1U << robin.next;
    robin.next = (index + 1) % streams_per_priority;
    robin.known.store(known, std::memory_order_relaxed);
  }
  if ((marked & ~known) != 0) known = all_streams;
  robin.known.store(known, std::memory_order_relaxed);
  robin.marked.fetch_and(~marked, std::memory_order_release);
}

void used_streams::probe(int priorities, const taker& take) {
  const std::lock_guard lock{mutex_};
  const auto end = robins_.begin() + std::min(priorities, max_priorities);
  for (auto robin = robins_.begin(); robin != end; ++robin) {
    if (robin->known.load(std::memory_order_relaxed) != all_streams)
      probe(*robin, static_cast<int>(robin - robins_.begin()), take);
  }
  // torch creates its streams when the first of them is requested. If nobody seems to have one,
  // some round robin wrapped around exactly, and any of them may be the one.
  const bool any_known = std::any_of(robins_.begin(), end, [](const round_robin& robin) {
    return robin.known.load(std::memory_order_relaxed) != 0;
  });
  if (!probed_ && !any_known)
    std::for_each(robins_.begin(), end, [](round_robin& robin) { robin.known = all_streams; });
  probed_ = true;
}

}  // namespace weir_torch
