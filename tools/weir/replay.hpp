// The findings of `weir replay`, before anything is printed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "replay/replay.hpp"

namespace weir::command {

/// One trace under one policy.
struct replay_row {
  std::string trace;
  replay::outcome outcome;
  /// The peak of the recorded program's own allocator, where it had this policy.
  std::optional<std::uint64_t> recorded;
};

/// Lines with a heading, for people.
[[nodiscard]] std::string to_table(const std::vector<replay_row>& rows);
/// The columns that docs/replay.md promises, in their order.
[[nodiscard]] std::string to_csv(const std::vector<replay_row>& rows);
[[nodiscard]] std::string to_json(const std::vector<replay_row>& rows, const std::string& device);

}  // namespace weir::command
