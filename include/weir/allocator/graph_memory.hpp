// SPDX-License-Identifier: Apache-2.0
// weir::graph_memory: the memory of a captured graph. weir::capture_guard: for captures without it.
// Created by caching_allocator::begin_capture() and guard_captures().
#pragma once

#include <memory>
#include <utility>

#include "weir/allocator/memory_pool.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/driver/types.hpp"

namespace weir { inline namespace v0 {

namespace heap {
class central_heap;
struct graph_claim;
}  // namespace heap

/// The memory of one captured graph, private to it.
///
/// Created by caching_allocator::begin_capture() before the capture of a stream begins. Until
/// end_capture(), requests on that stream, and on streams that join the capture, are served from a
/// private pool. Memory freed inside the capture is reused inside it by the same stream. The pool
/// keeps all its memory, freed or not, while this object or a graph from tie_to_graph() exists, so
/// the graph can be replayed at any time. After that the memory is released to the driver, once the
/// blocks that are still live are freed.
///
/// Movable, not copyable. One thread at a time.
class WEIR_API graph_memory {
 public:
  graph_memory() noexcept = default;
  ~graph_memory();
  graph_memory(graph_memory&&) noexcept = default;
  graph_memory& operator=(graph_memory&& other) noexcept;

  /// Whether it refers to memory of a capture; false if default-constructed or moved from.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  /// Declares that the capture is over: later requests are served as usual. Idempotent.
  void end_capture() noexcept;
  /// Ties the memory to `graph` and to executables instantiated from it from now on: it lives as
  /// long as any of them, also without this object. not_supported: the driver is older than
  /// CUDA 11.3.
  result<void> tie_to_graph(driver::CUgraph graph) const;
  /// The private pool of the capture.
  [[nodiscard]] memory_pool pool() const;

 private:
  friend class caching_allocator;
  explicit graph_memory(std::shared_ptr<heap::graph_claim> state) noexcept
      : state_{std::move(state)} {}

  std::shared_ptr<heap::graph_claim> state_;
};

/// Declares that captures of any streams may be in progress while it exists.
///
/// In the meantime the allocator queries no stream, records no event and waits for none. Streams
/// keep what they free, blocks with recorded streams stay pending, and requests that find no memory
/// take new memory. So no query of one thread can invalidate a capture that another thread begins.
/// For programs that capture without begin_capture(), in pools for graphs.
///
/// Created by caching_allocator::guard_captures() before the first capture begins. Movable, not
/// copyable; may end on another thread.
class WEIR_API capture_guard {
 public:
  capture_guard() noexcept = default;
  ~capture_guard();
  capture_guard(capture_guard&& other) noexcept = default;
  capture_guard& operator=(capture_guard&& other) noexcept;

  /// Declares that no capture is in progress any more. Idempotent.
  void close() noexcept;

 private:
  friend class caching_allocator;
  explicit capture_guard(std::weak_ptr<heap::central_heap> owner) noexcept
      : owner_{std::move(owner)} {}

  std::weak_ptr<heap::central_heap> owner_;
};

}}  // namespace weir::v0
