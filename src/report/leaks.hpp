// SPDX-License-Identifier: Apache-2.0
// Blocks that were never freed, by site and tag.
#pragma once

#include <cstdint>
#include <vector>

#include "report/history.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The blocks of one site and tag that were live when the recording ended.
struct leak {
  std::uint32_t site = 0;  ///< of history::sites
  std::uint16_t tag = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint32_t first = 0;  ///< the event that allocated the first of them
  std::uint32_t last = 0;
};

/// Most memory first; of equal ones the one that began first.
[[nodiscard]] std::vector<leak> find_leaks(const history& history);

}}}  // namespace weir::v0::report
