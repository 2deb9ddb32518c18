// SPDX-License-Identifier: Apache-2.0
// Pools that are suspended or brought back together, and how far that is.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "heap/backup.hpp"
#include "heap/private_pools.hpp"
#include "order/awaited_marks.hpp"
#include "placement/suspension.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// A pool that is on its way, and how far it is.
struct moving_pool {
  pool_state* pool = nullptr;
  placement::suspension plan{};
  std::vector<saved_range> saved{};
  std::uint64_t restored = 0;  // of its contents
  bool planned = false;
  bool was_suspended = false;
  bool stays_away = false;
};
using moving_pools = std::vector<moving_pool>;

/// How far a move is. These are all transitions:
///
///   a suspension:   waiting ----> reading ----> committed ----.
///                      |             |                        |
///                      |             |--> stopping -----------|
///                      |             |                        v
///                      '-------------'------------------> settled ----> ended
///                                                             ^
///   a return:       returning --------------------------------'
///
/// A suspension can be called off until it is committed. From `waiting` it then settles at once.
/// From `reading` it is `stopping` first, until the copies that are under way have ended. It
/// settles from these two also if a step fails, and from `waiting` if no thread can carry it.
enum class move_stage : std::uint8_t {
  waiting,    ///< for the work that may use the memory
  reading,    ///< that work is done; contents are copied out, and nothing else has changed
  stopping,   ///< called off while `reading`
  committed,  ///< the memory is unmapped and released
  returning,  ///< memory is created and mapped, and contents are copied in
  settled,    ///< the pools have left the move: each is where it was going, or where it was
  ended,      ///< no thread uses the move any more; its carrier can be joined
};

[[nodiscard]] constexpr bool may_follow(move_stage from, move_stage to) noexcept {
  switch (from) {
    case move_stage::waiting:
      return to == move_stage::reading || to == move_stage::settled;
    case move_stage::reading:
      return to == move_stage::stopping || to == move_stage::committed || to == move_stage::settled;
    case move_stage::stopping:
    case move_stage::committed:
    case move_stage::returning:
      return to == move_stage::settled;
    case move_stage::settled:
      return to == move_stage::ended;
    case move_stage::ended:
      break;
  }
  return false;
}

/// The stage of one move, which changes along the transitions of move_stage only. Read and changed
/// with the heap's lock.
class move_progress {
 public:
  explicit constexpr move_progress(move_stage first) noexcept : stage_{first} {}

  [[nodiscard]] constexpr bool is(move_stage stage) const noexcept { return stage_ == stage; }
  /// Whether a suspension can be called off, or is being.
  [[nodiscard]] constexpr bool is_revocable() const noexcept {
    return is(move_stage::waiting) || is(move_stage::reading) || is(move_stage::stopping);
  }
  constexpr void advance(move_stage to) noexcept {
    assert(may_follow(stage_, to));
    stage_ = to;
  }

 private:
  move_stage stage_;
};

/// Pools that go or come together, and what that needs.
///
/// A move whose caller does not wait for it is queued and has a carrier: a thread that waits for
/// the device and does the rest. The carrier is joined once the move has ended, or by close().
/// Owned by the residency, or by the stack of the thread that carries it out. Without the lock only
/// that thread uses it.
struct queued_move {
  moving_pools pools{};  // none from `settled` on
  move_progress progress{move_stage::waiting};
  suspend_options options{};
  std::vector<vmm::access> rights{};
  std::unique_ptr<backup_copies> copies{};
  order::awaited_marks behind{};  // work of the streams that were known before
  bool waits_for_all = true;      // and for all other work, also what is queued later
  std::uint64_t pledged = 0;      // by a return
  bool evicts = true;             // for a return: not where everything is to come back
  std::thread carrier{};
};

[[nodiscard]] inline std::uint64_t size_of_all(const std::vector<saved_range>& saved) noexcept {
  std::uint64_t total = 0;
  for (const saved_range& each : saved) total += each.to.size;
  return total;
}

}}}  // namespace weir::v0::heap
