// SPDX-License-Identifier: Apache-2.0
// Writing whole files: they appear under their name when they are whole, or not at all.
#pragma once

#include <string>
#include <string_view>

#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// Replaces the file if there is one. system, with path and reason: it cannot be written, e.g.
/// because the disk is full; what was there is as it was then.
[[nodiscard]] result<void> write_file(const std::string& path, std::string_view content);

}}}  // namespace weir::v0::formats
