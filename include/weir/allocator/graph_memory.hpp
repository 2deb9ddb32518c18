// SPDX-License-Identifier: Apache-2.0
// weir::graph_memory: the memory of a captured graph, and weir::capture_guard for who captures
// without it. Made by caching_allocator::begin_capture() and guard_captures().
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
/// Made by caching_allocator::begin_capture() before the capture of a stream begins. Until
/// end_capture(), requests on that stream, and on streams that the capture takes in, are served
/// from a pool of its own. What is freed inside the capture is reused inside it by the same stream.
/// The pool keeps all its memory, freed or not, as long as this object or a graph it was tied to by
/// tie_to_graph() lives, so that the graph can be replayed whatever else allocates. Then it is
/// released to the driver, once the blocks that left the capture alive are freed too.
///
/// Moves, does not copy. One thread at a time.
class WEIR_API graph_memory {
 public:
  graph_memory() noexcept = default;
  ~graph_memory();
  graph_memory(graph_memory&&) noexcept = default;
  graph_memory& operator=(graph_memory&& other) noexcept;

  explicit operator bool() const noexcept { return state_ != nullptr; }
  /// The capture is over: requests go their usual way again. Twice does no harm.
  void end_capture() noexcept;
  /// Ties the memory to `graph` and every executable made of it from now on: it lives as long as
  /// they do, whatever becomes of this object. not_supported: the driver is older than CUDA 11.3.
  result<void> tie_to_graph(driver::CUgraph graph) const;
  [[nodiscard]] memory_pool pool() const;

 private:
  friend class caching_allocator;
  explicit graph_memory(std::shared_ptr<heap::graph_claim> state) noexcept
      : state_{std::move(state)} {}

  std::shared_ptr<heap::graph_claim> state_;
};

/// Says that captures may be under way, of whatever streams, as long as it lives.
///
/// Meanwhile the allocator asks no stream how far it has come, records no event and waits for
/// nobody: what streams free stays their own, blocks with recorded streams stay pending, and
/// requests that find no room take new memory. So no question of one thread can meet the beginning
/// of a capture on another. For who captures without begin_capture(), in pools for graphs.
///
/// Made by caching_allocator::guard_captures() before the first capture begins. Moves, does not
/// copy; may end on another thread.
class WEIR_API capture_guard {
 public:
  capture_guard() noexcept = default;
  ~capture_guard();
  capture_guard(capture_guard&& other) noexcept = default;
  capture_guard& operator=(capture_guard&& other) noexcept;

  /// No capture is in progress any more. Idempotent.
  void close() noexcept;

 private:
  friend class caching_allocator;
  explicit capture_guard(std::weak_ptr<heap::central_heap> owner) noexcept
      : owner_{std::move(owner)} {}

  std::weak_ptr<heap::central_heap> owner_;
};

}}  // namespace weir::v0
