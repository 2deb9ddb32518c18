// Where a policy would put the blocks of a recording, found out by playing it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "replay/replay.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/events.hpp"
#include "weir/trace/trace.hpp"

namespace weir::inline v0::report {

/// The addresses that a policy gave to the blocks of a recording, by the order of their
/// allocation, and what it did with physical memory in between.
struct placement {
  struct place {
    std::uint64_t address = 0;  ///< 0: there was no memory for it
    std::uint64_t rounded = 0;
  };
  /// A reservation, move or release, and the block whose allocation it came before.
  struct physical {
    std::uint32_t before = 0;
    memory_event_kind kind{};
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    std::uint64_t from = 0;
  };
  replay::policy by{};
  std::vector<place> places;
  std::vector<physical> steps;
};

/// Plays `what` on the simulated GPU as `how` says. Fails as replay::play does; invalid_argument:
/// the policy is the driver's, which does not say where its memory is.
[[nodiscard]] result<std::pair<placement, replay::outcome>> place(const replay::script& what,
                                                                  replay::settings how);

/// The recording as that placement tells it: with its addresses, and with what was done about
/// physical memory instead of what the recording says of it. A block that there was no memory for
/// becomes an out_of_memory; empty blocks, which have no place, are left out.
[[nodiscard]] recording placed(const recording& what, const placement& where);

}  // namespace weir::inline v0::report
