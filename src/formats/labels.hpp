// SPDX-License-Identifier: Apache-2.0
// Labels of groups that have no name of their own.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace weir { inline namespace v0 { namespace formats {

/// `label`, in as many parentheses as it takes to be none of the names.
[[nodiscard]] inline std::string label_beside(std::string label,
                                              const std::vector<std::string>& names) {
  while (std::find(names.begin(), names.end(), label) != names.end()) label = "(" + label + ")";
  return label;
}

}}}  // namespace weir::v0::formats
