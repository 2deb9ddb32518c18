// SPDX-License-Identifier: Apache-2.0
// The table of weir top: the memory of each process on each card, with its history.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json.hpp"
#include "weir/share/budget.hpp"
#include "weir/trace/live_page.hpp"

namespace weir::command {

/// What a process has of a card: the sum over its allocators there.
struct process_row {
  int process = 0;
  std::string name{};
  std::string card{};  ///< empty: the driver does not say which
  bytes capacity{};
  std::optional<bytes> live{};  ///< nothing: it publishes no live page
  bytes reserved{};
  std::optional<budget_share> share{};  ///< nothing: it is no member of a budget
  bytes asked{};
  std::vector<bytes> history{};  ///< of live, or else reserved; the latest last
};

/// Rows of one moment after the other. A process that is gone takes its history along.
class process_table {
 public:
  /// `name_of` names a process that has no name in a budget.
  void update(const live_listing& live, const budget_listing& budgets,
              std::string (*name_of)(int process));
  /// live and reserved: most first; pid and name: upwards.
  void sort(std::string_view by);

  [[nodiscard]] const std::vector<process_row>& rows() const noexcept { return rows_; }
  [[nodiscard]] bool is_empty() const noexcept { return rows_.empty(); }
  [[nodiscard]] std::string text(bool coloured) const;
  [[nodiscard]] json to_json() const;

 private:
  static constexpr std::size_t most_history = 20;

  std::vector<process_row> rows_;
  std::map<std::pair<int, std::string>, std::vector<bytes>> histories_;
};

/// "▁▄█": each of eight heights, the largest is the highest.
[[nodiscard]] std::string sparkline(const std::vector<bytes>& values);

}  // namespace weir::command
