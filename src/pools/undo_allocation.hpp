// SPDX-License-Identifier: Apache-2.0
// Freeing stream-ordered memory that nobody was handed.
#pragma once

#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// Queues the free of memory that was just allocated on the stream. Tried twice: nobody else knows
/// the address, so a driver call that fails once would cost the memory.
[[nodiscard]] inline driver::CUresult undo_allocation(const driver::table& calls,
                                                      driver::CUdeviceptr memory,
                                                      driver::CUstream stream) noexcept {
  const auto freed = calls.mem_free_async(memory, stream);
  if (freed == driver::CUDA_SUCCESS) return freed;
  return calls.mem_free_async(memory, stream);
}

}}}  // namespace weir::v0::pools
