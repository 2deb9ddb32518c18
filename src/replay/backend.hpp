// SPDX-License-Identifier: Apache-2.0
// The allocator under replay: the interface, and one implementation a kind of policy.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "heap/rung.hpp"
#include "replay/replay.hpp"
#include "replay/script.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// An allocator under replay. Calls come one at a time, from the threads of the recording. Errors,
/// but for a lack of memory, are thrown as weir::failure.
class backend {
 public:
  virtual ~backend() = default;
  /// Null if there is no memory, or for zero bytes.
  [[nodiscard]] virtual void* allocate(const step& request, const stream_ref& stream) = 0;
  virtual void free(void* block, const stream_ref& stream) = 0;
  virtual void record_stream(void* block, const stream_ref& stream) = 0;
  /// The recorded program released the pool; its blocks may still live. Nothing where there are no
  /// pools.
  virtual void release_pool(std::uint16_t /*pool*/) {}
  /// Gives back the memory of released pools that streams are done with.
  virtual void sweep() {}

  /// The most that was reserved since the last call.
  [[nodiscard]] virtual std::uint64_t take_reserved_peak() = 0;
  [[nodiscard]] virtual memory_stats stats() const { return {}; }
  /// What is reserved now, in bytes; 0: the allocator does not say.
  [[nodiscard]] virtual std::uint64_t reserved() const { return 0; }
  /// Every block and handle; nothing: the allocator does not say.
  [[nodiscard]] virtual std::optional<allocator_snapshot> snapshot() const { return {}; }
  /// How the latest requests went, to be read between them; null: the allocator does not say.
  [[nodiscard]] virtual const heap::search_trail* trail() const { return nullptr; }
  /// Releases all memory; all blocks are freed.
  virtual void close() = 0;
};

/// weir's caching allocator, for every policy but driver_pool.
[[nodiscard]] result<std::unique_ptr<backend>> make_heap_backend(device gpu,
                                                                 const settings& settings);
/// One memory pool of the driver that releases nothing by itself, as PyTorch's and RMM's
/// asynchronous back ends use it. It has no record_stream: its users make the freeing stream wait,
/// which is what a recorded stream becomes here, too.
[[nodiscard]] result<std::unique_ptr<backend>> make_driver_pool_backend(device gpu,
                                                                        const settings& settings);

}}}  // namespace weir::v0::replay
