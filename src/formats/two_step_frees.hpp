// SPDX-License-Identifier: Apache-2.0
// Frees that a recording has in two steps: the free, and the moment from which the memory is
// reusable.
#pragma once

#include <cstddef>
#include <vector>

#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// Says of each block of a recording whether its free is followed by a `reusable`. A recording may
/// have both kinds of blocks. Reads the events once; a bit an event, none where no event is
/// `reusable`.
class two_step_frees {
 public:
  explicit two_step_frees(const recording& recording);

  /// Of the event with this index, an allocate or deallocate: whether its block has both steps.
  [[nodiscard]] bool contains(std::size_t event) const noexcept {
    return event < has_both_.size() && has_both_[event];
  }
  /// Whether there is any.
  [[nodiscard]] bool empty() const noexcept { return has_both_.empty(); }

 private:
  std::vector<bool> has_both_;
};

}}}  // namespace weir::v0::formats
