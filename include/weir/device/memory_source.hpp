// SPDX-License-Identifier: Apache-2.0
// weir::memory_source: where a pool gets its memory, if not from the driver.
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

/// Device memory from anywhere: large segments for the pools of a caching_allocator, which place
/// and reuse blocks in them, and single blocks for a bin_pool.
///
/// Shared by the pools made on it; the last of them to end, once its memory went back, lets it go.
/// Called from any thread with the context of the pool's device current. A caching_allocator calls
/// it with its lock held, so one thread at a time, and with the thread's capture mode relaxed; a
/// bin_pool calls it without a lock, from several threads at once. It and its destructor must not
/// use that allocator or pool, nor wait for a thread that may. What it throws is caught:
/// std::bad_alloc becomes no_host_memory, all else internal.
///
/// Under an allocator's pool it may take the memory away and put it back at the same addresses, as
/// long as no work uses it: the pool neither reads nor maps anything there.
class WEIR_API memory_source {
 public:
  virtual ~memory_source();
  memory_source(const memory_source&) = delete;
  memory_source& operator=(const memory_source&) = delete;

  /// `size` bytes on the pool's device for work of `stream`, aligned to 512, that nothing uses any
  /// more. The stream may be in a capture, which a question for its id would spoil. A bin_pool
  /// names the legacy stream: its blocks go to any stream. out_of_memory, or null: there are none
  /// now; the pool then releases what it caches and asks again. Any other error is the request's.
  [[nodiscard]] virtual result<void*> allocate(bytes size, const stream_ref& stream) = 0;
  /// What allocate() returned, with the same size; no work uses it any more. On failure the memory
  /// stays the pool's, and counts; it is offered again whenever memory is released.
  virtual result<void> deallocate(void* memory, bytes size) = 0;

 protected:
  memory_source() = default;
};

/// A source made of anything that hands out memory in no stream's order: a synchronous_resource
/// over another allocator, for example.
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
