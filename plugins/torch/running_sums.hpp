// SPDX-License-Identifier: Apache-2.0
// What was ever allocated and ever freed, of an amount whose two parts are counted apart.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weir_torch {

/// At every reading `allocated - freed` is what is live, and neither ever falls.
///
/// weir tells what is live at one moment; what was ever allocated every thread counts for itself,
/// a little after the memory is live. So what is live and was freed can be more than was counted:
/// then it is what was allocated. While no thread allocates, the sums are what was counted.
///
/// Not for several threads at a time.
class running_sums {
 public:
  struct values {
    std::uint64_t allocated = 0;
    std::uint64_t freed = 0;

    friend bool operator==(const values&, const values&) = default;
  };

  /// The next reading; `counted` was read before `live`, so that it is not ahead of it.
  values update(std::uint64_t counted, std::uint64_t live) noexcept {
    last_.allocated = std::max({last_.allocated, counted, last_.freed + live});
    last_.freed = last_.allocated - live;
    return last_;
  }

 private:
  values last_;
};

}  // namespace weir_torch
