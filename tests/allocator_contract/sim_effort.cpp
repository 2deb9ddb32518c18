// SPDX-License-Identifier: Apache-2.0
// What a simulated machine can bear: what is touched takes host memory and host time.
#include "allocator_contract/effort.hpp"

namespace weir::testing_support {

using namespace weir::literals;

effort machine_effort() {
  return {.whole_up_to = 256_KiB,
          .largest_block = 4_MiB,
          .tight_limit = 48_MiB,
          .operations = 300,
          .duration = {},
          .replayed_events = 4'000};
}

}  // namespace weir::testing_support
