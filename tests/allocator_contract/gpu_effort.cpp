// SPDX-License-Identifier: Apache-2.0
// What a GPU can bear: some thousand operations in every millisecond.
#include "allocator_contract/effort.hpp"

namespace weir::testing_support {

using namespace weir::literals;

effort machine_effort() {
  return {.whole_up_to = bytes::max(),
          .largest_block = 64_MiB,
          .tight_limit = 2_GiB,
          .operations = 2'000,
          .duration = std::chrono::milliseconds{1'000},
          .replayed_events = ~std::size_t{0}};
}

}  // namespace weir::testing_support
