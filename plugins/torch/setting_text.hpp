// SPDX-License-Identifier: Apache-2.0
// The text of torch's allocator settings ("key:value,key:[a:1,b:2]"), cut and changed.
#pragma once

#include <string>
#include <vector>

namespace weir_torch {

/// Its parts between commas, without white space. A list in brackets is cut, too.
[[nodiscard]] std::vector<std::string> setting_parts(const std::string& text);

/// weir stands in for the backend that the program began with: to name that one changes nothing.
[[nodiscard]] std::string without_native_backend(const std::string& text);

/// The same settings with expandable_segments:True, whatever they say of it.
[[nodiscard]] std::string with_expandable_segments(const std::string& text);

}  // namespace weir_torch
