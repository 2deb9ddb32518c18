// SPDX-License-Identifier: Apache-2.0
// The known word nearest to one that is not known, for "did you mean".
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace weir { inline namespace v0 { namespace replay {

/// How many letters must be added, dropped or changed to make `b` of `a`.
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

/// The one of `known`, of which there is one at least, that is nearest to `word`.
[[nodiscard]] inline std::string_view nearest(std::string_view word,
                                              const std::vector<std::string_view>& known) {
  word = word.substr(0, 64);  // known words are shorter
  return *std::min_element(known.begin(), known.end(), [&](auto a, auto b) {
    return edit_distance(word, a) < edit_distance(word, b);
  });
}

}}}  // namespace weir::v0::replay
