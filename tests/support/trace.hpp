// SPDX-License-Identifier: Apache-2.0
// Recorded allocation traces, and what PyTorch reserved for them (traces/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir::testing_support {

/// Events of one program in the order in which its allocator saw them.
///
/// Blocks and streams are numbered from 0 without gaps, in the order of their first event. Every
/// block is allocated once and before anything else happens to it; it is freed once and reusable
/// once, in this order, or stays alive.
struct trace {
  enum class event_kind : std::uint8_t {
    allocate,
    free,     ///< the program freed the block
    reusable  ///< its memory could be used again, which is later if another stream used it
  };
  struct event {
    event_kind kind{};
    std::uint32_t stream = 0;
    std::uint32_t block = 0;
    std::uint64_t size = 0;  ///< of the block, as asked for
    std::uint64_t time = 0;  ///< microseconds of host time
  };

  std::vector<event> events;
  std::size_t blocks = 0;
  std::size_t streams = 0;
  // What PyTorch's own counters reported: the default segments, and a second run with expandable
  // ones. 0 if the recording does not say.
  std::uint64_t requested_peak = 0;
  std::uint64_t fixed_reserved_peak = 0;
  std::uint64_t expandable_reserved_peak = 0;
};

/// The names of the recorded programs of PyTorch.
[[nodiscard]] const std::vector<std::string>& recorded_programs();

/// traces/<name>.weirtrace. invalid_argument: it is damaged, or trace_of() refuses it; otherwise
/// the errors of weir::read_trace().
[[nodiscard]] result<trace> read_trace(const std::string& name);

/// invalid_argument, with the number of the event: other events than those above, or a block that
/// is not allocated, freed and reusable in this order.
[[nodiscard]] result<trace> trace_of(const recording& recorded);

}  // namespace weir::testing_support
