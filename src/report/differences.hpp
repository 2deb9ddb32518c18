// SPDX-License-Identifier: Apache-2.0
// What differs between two runs, for the page that shows both.
#pragma once

#include <string>

#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The figures of `weir diff` (replay::compare, replay::changes), packed: every figure, and of each
/// way to group what was live at the peaks the groups that changed, those that grew most first.
[[nodiscard]] std::string pack_differences(const recording& before, const recording& after);

}}}  // namespace weir::v0::report
