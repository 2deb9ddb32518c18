// SPDX-License-Identifier: Apache-2.0
// Where a policy would put the blocks of a recording, by a replay.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "replay/replay.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/events.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The addresses that a policy gave to the blocks of a recording, by the order of their
/// allocation, and its reservations, moves and releases of physical memory in between.
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
    std::uint16_t pool = 0;  ///< the recording's number
  };
  replay::policy policy{};
  std::vector<place> places;
  std::vector<physical> steps;
};

/// Plays `script` on the simulated GPU with those settings. Fails as replay::play does;
/// invalid_argument: the policy is the driver's, which does not say where its memory is.
[[nodiscard]] result<std::pair<placement, replay::outcome>> place(const replay::script& script,
                                                                  replay::settings settings);

/// The recording with the placement's addresses, and with its reservations, moves and releases
/// instead of the recording's own. A block that there was no memory for becomes an out_of_memory;
/// empty blocks, which have no place, are left out.
[[nodiscard]] recording relocate(const recording& recording, const placement& placement);

}}}  // namespace weir::v0::report
