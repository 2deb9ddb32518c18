// SPDX-License-Identifier: Apache-2.0
// Out of memory, explained: what held the memory when a request failed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "report/history.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// Free memory among the live blocks of a moment, in one pool.
struct holes {
  std::uint64_t bytes = 0;  ///< reserved by the pool, and in no block
  std::uint64_t pieces = 0;
  std::uint64_t longest = 0;
};

/// A request that failed.
struct oom_report {
  std::uint32_t event = 0;
  std::uint64_t requested = 0;
  std::uint32_t stream = 0;
  std::uint64_t live = 0;      ///< as requested
  std::uint64_t rounded = 0;   ///< what the live blocks take
  std::uint64_t reserved = 0;  ///< 0 if the recording does not say
  std::uint64_t limit = 0;     ///< 0 without one
  holes free;
  std::vector<std::pair<std::uint16_t, std::uint64_t>> tags;  ///< most live first, at most 5
  std::string verdict;                                        ///< why, in one or two sentences
};

/// The first `most` failed requests of the recording.
[[nodiscard]] std::vector<oom_report> explain_ooms(const recording& recording,
                                                   const history& history, std::size_t most);

}}}  // namespace weir::v0::report
