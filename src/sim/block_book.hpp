// SPDX-License-Identifier: Apache-2.0
// The book of blocks: which bytes caching allocators have handed out, as they tell it.
//
// The driver sees an allocator's memory as one: mapped, whether it is handed out or cached. An
// allocator that tells the machine of its blocks lets the hazard check see the difference.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weir/observe/events.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// What is wrong with a use, and with which bytes of it.
struct block_fault {
  hazard_kind kind{};
  range bytes{};
  /// The block's free, or its allocation where it is overrun; without a label where the bytes were
  /// never handed out.
  party before{};
};

/// Which bytes are handed out, by address. Part of a machine; needs its lock held.
///
/// Pieces are disjoint and cover what allocators have told of. Bytes that nobody told of are
/// nobody's business here. A use or an event costs a look-up in a tree and a step for each piece it
/// touches.
///
/// Host memory may run out in the middle of an event: then what is known of its bytes is forgotten,
/// and no use of them is wrong.
class block_book {
 public:
  /// Work queued now: the bytes of graph pools are judged when it is captured, all others when it
  /// is queued, be it by a launch.
  enum class occasion { queued, captured, launched };

  /// A number for an allocator that is going to tell.
  [[nodiscard]] std::uint64_t join() noexcept { return ++last_teller_; }
  void on_event(std::uint64_t teller, const memory_event& event, time_point now, std::uint64_t step,
                bool capturing) noexcept;
  /// The allocator is gone, and with it what it told.
  void leave(std::uint64_t teller) noexcept;
  /// The addresses are given back to the system, and may be anybody's next.
  void forget(std::uint64_t address, std::uint64_t size) noexcept;

  /// The first thing that is wrong with touching these bytes; nothing if all is right.
  [[nodiscard]] std::optional<block_fault> check(const range& touched, occasion when) const;
  /// The lives of the bytes, oldest first; at most eight.
  [[nodiscard]] std::vector<block_life> lives(const range& of) const;
  /// The block, live or freed, that lies nearest to bytes that are no block's; nothing within 4 MiB
  /// of them.
  [[nodiscard]] std::optional<block_life> nearest(const range& to) const;
  [[nodiscard]] bool empty() const noexcept { return pieces_.empty(); }

 private:
  /// A block from one allocation to the next of the same bytes, and the blocks that lay there just
  /// before.
  struct life {
    block_life told{};
    std::vector<std::shared_ptr<life>> before{};
  };
  enum class piece_state : std::uint8_t {
    live,      ///< handed out
    rounding,  ///< beyond what was asked for
    free,      ///< handed out before, or never if there is no life
    gone,      ///< given back to the driver: kept for the story
  };
  struct piece {
    std::uint64_t end = 0;
    piece_state state{};
    std::uint64_t teller = 0;
    pool_id pool{};
    std::shared_ptr<life> of{};
    /// Pages of growable memory: the begin of its addresses. A use may go on from page to page.
    std::uint64_t range = 0;
  };
  using piece_map = std::map<std::uint64_t, piece>;
  using pool_name = std::pair<std::uint64_t, pool_id>;  // of a teller

  void tell(std::uint64_t teller, const memory_event& event, time_point now, std::uint64_t step,
            bool capturing);
  void allocated(std::uint64_t teller, const memory_event& event, time_point now,
                 std::uint64_t step);
  void freed(std::uint64_t teller, const memory_event& event, time_point now, std::uint64_t step);
  void reserved(std::uint64_t teller, const memory_event& event);
  void released(const memory_event& event);
  [[nodiscard]] bool judged_otherwise(const piece& touched, occasion when) const;

  /// Makes `address` a boundary and returns the first piece at or behind it.
  piece_map::iterator cut(std::uint64_t address);
  /// The first piece that reaches behind `address`.
  [[nodiscard]] piece_map::const_iterator first_at(std::uint64_t address) const;

  piece_map pieces_;
  std::set<pool_name> graph_pools_;  // whose freed blocks replays use again
  std::uint64_t last_teller_ = 0;
};

/// Takes the events of one allocator into the book of a machine. Any thread; takes the machine's
/// lock. Must not outlive the machine.
class block_watch final : public event_sink {
 public:
  explicit block_watch(state& machine);
  ~block_watch() override;
  block_watch(const block_watch&) = delete;
  block_watch& operator=(const block_watch&) = delete;

  void on_event(const memory_event& event) noexcept override;

 private:
  state& machine_;
  std::uint64_t number_;
};

}}}  // namespace weir::v0::sim
