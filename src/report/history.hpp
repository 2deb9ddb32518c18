// SPDX-License-Identifier: Apache-2.0
// The allocation history of a recording: the lifetimes of blocks and of physical memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "report/placement.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The smallest piece of physical memory that a driver maps and releases.
inline constexpr std::uint64_t page_bytes = std::uint64_t{2} << 20;

/// A block from its allocation to its free. Live after event `start` and before event `end`, which
/// is the number of events if it was never freed.
struct block_lifetime {
  std::uint64_t address = 0;
  std::uint64_t size = 0;     ///< as requested
  std::uint64_t rounded = 0;  ///< the block's own size; `size` where the recording does not say
  std::uint32_t start = 0;
  std::uint32_t end = 0;
  std::uint32_t site = 0;  ///< of history::sites
  std::uint32_t stream = 0;
  std::uint16_t tag = 0;
  std::uint16_t pool = 0;
  bool placed = true;  ///< false: the address is made up

  [[nodiscard]] bool at(std::uint32_t event) const noexcept {
    return start <= event && event < end;
  }
};

/// Physical memory that was mapped at one place, from event to event.
struct mapped_range {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint32_t start = 0;
  std::uint32_t end = 0;
  std::uint16_t pool = 0;

  [[nodiscard]] bool at(std::uint32_t event) const noexcept {
    return start <= event && event < end;
  }
};

/// A time during which the blocks of a pool that were live when it began had no physical memory:
/// after event `start` and before event `end`, which is the number of events if they never got it
/// back.
struct suspension {
  std::uint16_t pool = 0;
  std::uint32_t start = 0;
  std::uint32_t end = 0;
  std::uint64_t size = 0;  ///< physical memory that went
  std::uint64_t kept = 0;  ///< contents that the host kept
};

/// Where blocks come from: a stack, or where there are none a size; sizes that read the same
/// ("20 MiB") are one.
struct site {
  std::uint32_t stack = 0;  ///< the stack's number plus one; 0 is none
  std::uint64_t size = 0;   ///< only without stacks: the first of them
};

/// Everything that later steps need of the events. Refers to nothing of the recording.
struct history {
  std::vector<block_lifetime> blocks;   ///< by start
  std::vector<mapped_range> mappings;   ///< by start
  std::vector<suspension> suspensions;  ///< by start
  std::vector<site> sites;
  std::vector<std::uint32_t> freed;     ///< blocks that were freed, in that order
  std::vector<std::uint64_t> live;      ///< requested bytes, after each event
  std::vector<std::uint64_t> reserved;  ///< after each event; empty if the recording says nothing
  std::uint32_t peak = 0;               ///< the event after which most was live

  [[nodiscard]] std::uint32_t events() const noexcept {
    return static_cast<std::uint32_t>(live.size());
  }
};

/// Calls begin(block) and end(block) in the order of the events, and after(event) behind each
/// event.
template <class Begin, class End, class After>
void walk(const history& history, Begin begin, End end, After after) {
  std::size_t next_block = 0;
  std::size_t next_end = 0;
  for (std::uint32_t event = 0; event < history.events(); ++event) {
    while (next_end < history.freed.size() &&
           history.blocks[history.freed[next_end]].end == event) {
      end(history.freed[next_end++]);
    }
    while (next_block < history.blocks.size() && history.blocks[next_block].start == event) {
      begin(static_cast<std::uint32_t>(next_block++));
    }
    after(event);
  }
}

/// Reads the events once. A block that is allocated twice without a free ends where it begins
/// again; a free of an unknown block changes nothing. With `placement`, addresses and physical
/// memory are the placement's; without it and without real addresses no block is placed.
[[nodiscard]] history make_history(const recording& recording,
                                   const placement* placement = nullptr);

/// The most that was in use: from the request until the memory could be used again, which is later
/// than the free where a stream still worked on it. What a replay divides by, from the same rule
/// (replay::script); a recording that does not say when memory was reusable has the most live.
[[nodiscard]] std::uint64_t most_in_use(const recording& recording, const history& history);

}}}  // namespace weir::v0::report
