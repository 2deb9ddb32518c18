// Looking at the turn.
#include "handed_out.hpp"

#include <algorithm>

namespace weir_torch {

void handed_out::look(turn& at, int priority, const taker& take) {
  // Before anything is taken: a stream was handed out before it was noted, so this look passes it.
  const std::uint32_t noted = at.noted.load(std::memory_order_acquire);
  std::uint32_t known = at.known.load(std::memory_order_relaxed);
  for (int taken = 0; taken < streams; ++taken) {
    const int index = take(priority);
    for (; at.next != index; at.next = (at.next + 1) % streams) known |= 1U << at.next;
    at.next = (index + 1) % streams;
    at.known.store(known, std::memory_order_relaxed);
  }
  if ((noted & ~known) != 0) known = all_streams;
  at.known.store(known, std::memory_order_relaxed);
  at.noted.fetch_and(~noted, std::memory_order_release);
}

void handed_out::look(int priorities, const taker& take) {
  const std::lock_guard lock{mutex_};
  const auto end = turns_.begin() + std::min(priorities, most_priorities);
  for (auto each = turns_.begin(); each != end; ++each) {
    if (each->known.load(std::memory_order_relaxed) != all_streams)
      look(*each, static_cast<int>(each - turns_.begin()), take);
  }
  // torch makes its streams when the first of them is asked for. If nobody seems to have one, some
  // turn went round exactly, and nobody knows which.
  const bool any = std::any_of(turns_.begin(), end, [](const turn& each) {
    return each.known.load(std::memory_order_relaxed) != 0;
  });
  if (!looked_ && !any)
    std::for_each(turns_.begin(), end, [](turn& each) { each.known = all_streams; });
  looked_ = true;
}

}  // namespace weir_torch
