// SPDX-License-Identifier: Apache-2.0
// The findings of `weir replay`, before anything is printed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "json.hpp"
#include "replay/fit.hpp"
#include "replay/replay.hpp"

namespace weir::command {

/// One trace under one policy.
struct replay_row {
  std::string trace;
  replay::outcome outcome;
  /// The peak of the recorded program's own allocator: where it had this policy, or where the
  /// recording does not say which it had.
  std::optional<std::uint64_t> recorded;
};

/// The least memory for one trace under one policy.
struct fit_row {
  std::string trace;
  replay::fit fit;
};

/// Lines with a heading, for people.
[[nodiscard]] std::string to_table(const std::vector<replay_row>& rows);
/// The columns that docs/replay.md promises, in their order.
[[nodiscard]] std::string to_csv(const std::vector<replay_row>& rows);
/// With their profiles, where they have one.
[[nodiscard]] std::string to_json(const std::vector<replay_row>& rows, const std::string& device);

// The profiles of replays that have one.

[[nodiscard]] std::string to_profile_table(const std::vector<replay_row>& rows);
[[nodiscard]] std::string to_profile_csv(const std::vector<replay_row>& rows);
[[nodiscard]] json profile_json(const replay::profile& profile);

// Fits. All of them were asked about the same cards.

[[nodiscard]] std::string to_table(const std::vector<fit_row>& rows);
[[nodiscard]] std::string to_csv(const std::vector<fit_row>& rows, const std::vector<bytes>& cards);
[[nodiscard]] std::string to_json(const std::vector<fit_row>& rows, const std::string& device);

/// "out of memory at 0.001250000 s: 2 MiB could not be had with 3 MiB in use; 4 requests in all":
/// of an outcome with requests that were not met.
[[nodiscard]] std::string out_of_memory_text(const replay::outcome& outcome);

/// A field of CSV; only a trace's name can need quotes.
[[nodiscard]] std::string csv_field(const std::string& text);

}  // namespace weir::command
