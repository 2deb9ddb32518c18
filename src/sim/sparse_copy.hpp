// SPDX-License-Identifier: Apache-2.0
// Copies that leave alone what nobody ever wrote.
#pragma once

#include <cstdint>

#include "sim/memory.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// Copies `size` bytes like memmove. Memory of a machine that nobody ever wrote is zero and has no
/// pages. In a large copy such parts of the source are not read, and the destination is cleared
/// there only where it was written. To touch every page costs more than the copy itself.
void copy_sparsely(memory& space, std::uint64_t to, std::uint64_t from, std::uint64_t size);

}}}  // namespace weir::v0::sim
