// SPDX-License-Identifier: Apache-2.0
// Where the blocks of a block_cache come from: the driver, or an upstream of the user's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/memory_source.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// Hands out memory that nothing uses, and takes it back. Owned by a block_cache, which calls it
/// without its lock, from several threads at once.
struct block_source {
  std::function<result<std::uint64_t>(const context_scope& scope, bytes size)> allocate;
  std::function<result<void>(const context_scope& scope, std::uint64_t base, bytes size)> release;
  /// The host touches the memory, in no stream's order: the stream of the free must have completed,
  /// too, before a block is reused.
  bool host_touches = false;
};

[[nodiscard]] block_source plain_memory();
[[nodiscard]] block_source pinned_memory();
[[nodiscard]] block_source upstream_memory(std::shared_ptr<memory_source> upstream);

}}}  // namespace weir::v0::pools
