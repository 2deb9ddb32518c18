// SPDX-License-Identifier: Apache-2.0
// weir::memory_source: where a bin_pool gets its blocks, if not from the driver.
//
//   auto below = weir::synchronous_resource::create(memory).value();
//   auto pool = weir::bin_pool::create(gpu, {}, weir::make_memory_source(below)).value();
#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/pool/memory_owner.hpp"

namespace weir { inline namespace v0 {

/// Device memory from anywhere, in no stream's order. Kept alive by the pools made on it.
///
/// Called from any thread, from several at once, with no lock of the pool held and with the context
/// of the pool's device current. Must not use the pool, nor throw anything but std::bad_alloc.
class WEIR_API memory_source {
 public:
  virtual ~memory_source();
  memory_source(const memory_source&) = delete;
  memory_source& operator=(const memory_source&) = delete;

  /// `size` bytes on the pool's device, aligned to pool_alignment, that nothing uses any more.
  /// out_of_memory: there are none now; the pool then frees all that it caches and asks again.
  [[nodiscard]] virtual result<void*> allocate(bytes size) = 0;
  /// What allocate() returned, with the same size; nothing uses it any more. On failure the pool
  /// keeps the memory, and frees it later.
  virtual result<void> deallocate(void* memory, bytes size) = 0;

 protected:
  memory_source() = default;
};

/// A source made of anything that hands out memory in no stream's order: a synchronous_resource
/// over an allocator or another resource, for example.
template <class Memory>
requires requires(Memory& memory, void* pointer, bytes size) {
  { memory.try_allocate(size, size) } -> std::same_as<result<void*>>;
  { memory.try_deallocate(pointer, size) } -> std::same_as<result<void>>;
}
[[nodiscard]] std::shared_ptr<memory_source> make_memory_source(Memory memory) {
  class adapted final : public memory_source {
   public:
    explicit adapted(Memory upstream) : upstream_{std::move(upstream)} {}
    result<void*> allocate(bytes size) override {
      return upstream_.try_allocate(size, pool_alignment);
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
