// SPDX-License-Identifier: Apache-2.0
// The pools of captures: when a stream gets one, and what keeps it.
#pragma once

#include <memory>

#include "base/mutex.hpp"
#include "heap/graph_pools.hpp"
#include "heap/heap_core.hpp"
#include "heap/identified_stream.hpp"
#include "heap/reclaimer.hpp"
#include "heap/stream_progress.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What the pools of captures ask of the rest of the heap. Implemented by the central heap.
class capture_pools_host {
 public:
  /// The stream with its number. Called without the lock; may ask the driver.
  [[nodiscard]] virtual result<identified_stream> identify(const stream_ref& stream) = 0;

 protected:
  ~capture_pools_host() = default;
};

/// The part of a heap that gives captured streams pools of their own.
///
/// Which captures there are is in the core (capture_registry), as are the pools. Always true, with
/// the lock: a pool of a capture has as holders its claim, if the capture was declared, and the
/// graphs that it was tied to; it serves requests until its declared capture ends. While a capture
/// is declared the threads' caches serve nobody.
///
/// Owned by the central heap. Any thread may call what takes the lock; the rest is for other parts
/// of the heap, which hold it. Declaring a capture and ending it stop all caches.
class capture_pools {
 public:
  capture_pools(heap_core& core, stream_progress& progress, capture_pools_host& host) noexcept
      : core_{core}, progress_{progress}, host_{host} {}
  capture_pools(const capture_pools&) = delete;
  capture_pools& operator=(const capture_pools&) = delete;

  /// Declares that the stream will be captured. The claim holds the pool.
  [[nodiscard]] result<std::shared_ptr<graph_claim>> begin(const stream_ref& stream)
      WEIR_EXCLUDES(core_.mutex_);
  /// The capture is over; the claim holds the pool further on. Idempotent.
  void end(const graph_claim& claim) noexcept WEIR_EXCLUDES(core_.mutex_);
  /// The graph holds the claim's pool as well.
  [[nodiscard]] result<void> tie_to_graph(const graph_claim& claim, driver::CUgraph graph)
      WEIR_EXCLUDES(core_.mutex_);
  /// Captures may be under way until end_notice(); both are counted.
  void begin_notice() noexcept WEIR_EXCLUDES(core_.mutex_);
  void end_notice() noexcept WEIR_EXCLUDES(core_.mutex_);

  // With the lock.

  /// The pool of the capture that the stream is in: of a declared one, or tied to its graph. The
  /// allocator's own pool if the stream is not being captured.
  [[nodiscard]] result<pool_state*> find_pool(const stream_ref& stream, stream_slot slot,
                                              order::driver_access& driver);
  /// Waits once a search for all work, if graphs hold pools; whether a graph ended with it. Lets go
  /// of the lock.
  [[nodiscard]] result<bool> wait_for_graphs(pool_state& asking, wait_bound& bound,
                                             order::driver_access& driver);

 private:
  /// Tells the caches whether requests have to look for captures.
  void update_reason() noexcept WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  stream_progress& progress_;
  capture_pools_host& host_;
};

}}}  // namespace weir::v0::heap
