// The story of a recording: which blocks lived when, and where physical memory was meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "report/placement.hpp"
#include "weir/trace/trace.hpp"

namespace weir::inline v0::report {

/// What a reservation or page of physical memory is divided into: the smallest piece that a driver
/// maps and gives back.
inline constexpr std::uint64_t page_bytes = std::uint64_t{2} << 20;

/// A block from its allocation to its free. Live after event `start` and before event `end`, which
/// is the number of events if it was never freed.
struct life {
  std::uint64_t address = 0;
  std::uint64_t size = 0;     ///< as asked for
  std::uint64_t rounded = 0;  ///< what it takes; `size` where the recording does not say
  std::uint32_t start = 0;
  std::uint32_t end = 0;
  std::uint32_t site = 0;  ///< of story::sites
  std::uint32_t stream = 0;
  std::uint16_t tag = 0;
  std::uint16_t pool = 0;
  bool placed = true;  ///< false: the address says nothing

  [[nodiscard]] bool at(std::uint32_t event) const noexcept {
    return start <= event && event < end;
  }
};

/// Physical memory that was mapped at one place, from event to event.
struct span {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint32_t start = 0;
  std::uint32_t end = 0;

  [[nodiscard]] bool at(std::uint32_t event) const noexcept {
    return start <= event && event < end;
  }
};

/// Where blocks come from: a stack, or where there are none a size.
struct site {
  std::uint32_t stack = 0;  ///< the stack's number plus one; 0 is none
  std::uint64_t size = 0;   ///< only without stacks
};

/// Everything later steps ask of the events. Refers to nothing of the recording.
struct story {
  std::vector<life> blocks;  ///< by start
  std::vector<span> spans;   ///< by start
  std::vector<site> sites;
  std::vector<std::uint32_t> ends;      ///< blocks that were freed, in that order
  std::vector<std::uint64_t> live;      ///< bytes asked for, after each event
  std::vector<std::uint64_t> reserved;  ///< after each event; empty if the recording says nothing
  std::uint32_t peak = 0;               ///< the event after which most was live

  [[nodiscard]] std::uint32_t events() const noexcept {
    return static_cast<std::uint32_t>(live.size());
  }
};

/// Calls begin(block) and end(block) as `what` tells them, in order, and passed(event) after each.
template <class Begin, class End, class Passed>
void walk(const story& what, Begin begin, End end, Passed passed) {
  std::size_t next_block = 0;
  std::size_t next_end = 0;
  for (std::uint32_t event = 0; event < what.events(); ++event) {
    while (next_end < what.ends.size() && what.blocks[what.ends[next_end]].end == event) {
      end(what.ends[next_end++]);
    }
    while (next_block < what.blocks.size() && what.blocks[next_block].start == event) {
      begin(static_cast<std::uint32_t>(next_block++));
    }
    passed(event);
  }
}

/// Reads the events once. A block that is allocated twice without a free ends where it begins
/// again; a free of an unknown block changes nothing. With `where`, addresses and physical memory
/// are those of the placement; without it and without real addresses no block is placed.
[[nodiscard]] story tell(const recording& from, const placement* where = nullptr);

}  // namespace weir::inline v0::report
