// SPDX-License-Identifier: Apache-2.0
// JSON as the command writes it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace weir::command {

/// Members keep the order in which they were added.
using json = nlohmann::ordered_json;

/// Indented for people, with a line end. Always valid, whatever bytes the strings hold: those that
/// are no UTF-8 become U+FFFD, and numbers that JSON has no text for null.
[[nodiscard]] inline std::string json_text(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace weir::command
