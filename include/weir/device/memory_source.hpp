// SPDX-License-Identifier: Apache-2.0
// weir::memory_source: the interface through which a pool gets memory from elsewhere than the
// driver.
//
//   std::shared_ptr<weir::memory_source> source = registered;  // ncclMemAlloc, a suspendable heap
//   auto pool = memory.create_pool("comms", {.source = source}).value();
//   auto bins = weir::bin_pool::create(gpu, {}, source).value();
#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 {

/// The interface of a source of device memory: segments for the pools of a caching_allocator, which
/// place and reuse blocks in them, and single blocks for a bin_pool.
///
/// Shared by the pools created on it, and kept alive until the last of them has returned its
/// memory. Called from any thread with the context of the pool's device current. A
/// caching_allocator calls it with its lock held, so from one thread at a time, and with the
/// thread's capture mode relaxed. A bin_pool calls it without a lock, from several threads at once.
/// It and its destructor must not use that allocator or pool, nor wait for a thread that may.
/// Exceptions are caught: std::bad_alloc becomes no_host_memory, all others internal.
///
/// The source of an allocator's pool may unmap the memory and map it again at the same addresses
/// while no work uses it: the pool neither reads nor maps anything there.
class WEIR_API memory_source {
 public:
  virtual ~memory_source();
  memory_source(const memory_source&) = delete;
  memory_source& operator=(const memory_source&) = delete;

  /// Returns `size` unused bytes on the pool's device for work of `stream`, aligned to 512. The
  /// stream may be in a capture, which querying its id would invalidate. A bin_pool passes the
  /// legacy stream, because its blocks go to any stream. After out_of_memory or null the pool
  /// releases its cache and calls again. Any other error fails the request.
  [[nodiscard]] virtual result<void*> allocate(bytes size, const stream_ref& stream) = 0;
  /// Takes back what allocate() returned, with the same size; no work uses it any more. On failure
  /// the memory stays with the pool and counts as reserved; it is offered again when memory is
  /// released.
  virtual result<void> deallocate(void* memory, bytes size) = 0;

 protected:
  memory_source() = default;
};

/// A memory_source over any type with try_allocate(size, alignment) and try_deallocate(pointer,
/// size), for example a synchronous_resource over another allocator.
template <class Memory>
requires requires(Memory& memory, void* pointer, bytes size) {
  { memory.try_allocate(size, size) } -> std::same_as<result<void*>>;
  { memory.try_deallocate(pointer, size) } -> std::same_as<result<void>>;
}
[[nodiscard]] std::shared_ptr<memory_source> make_memory_source(Memory memory) {
  class adapted final : public memory_source {
   public:
    explicit adapted(Memory upstream) : upstream_{std::move(upstream)} {}
    result<void*> allocate(bytes size, const stream_ref&) override {
      return upstream_.try_allocate(size, bytes{512});
    }
    result<void> deallocate(void* pointer, bytes size) override {
      return upstream_.try_deallocate(pointer, size);
    }

   private:
    Memory upstream_;
  };
  return std::make_shared<adapted>(std::move(memory));
}

}}  // namespace weir::v0
