// SPDX-License-Identifier: Apache-2.0
// weir::segment_source: where a pool of an allocator gets its segments, if not from the driver.
//
//   std::shared_ptr<weir::segment_source> source = registered;  // ncclMemAlloc, a suspendable heap
//   auto pool = memory.create_pool("comms", {.source = source}).value();
#pragma once

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 {

/// Device memory from anywhere, in segments of a few megabytes and more. The pool places, splits,
/// counts and reuses blocks in them.
///
/// Shared by the pools made on it; the last of them to end, once its segments went back, lets it
/// go. Called from any thread with the allocator's lock held, so by one thread at a time for all
/// pools of an allocator, with the context of the pool's device current and the thread's capture
/// mode relaxed. It and its destructor must not use that allocator, nor wait for a thread that may.
/// What it throws is caught: std::bad_alloc becomes no_host_memory, all else internal.
///
/// It may take the memory under its segments away and put it back at the same addresses meanwhile,
/// as long as no work uses it: the pool neither reads nor maps anything there.
class WEIR_API segment_source {
 public:
  virtual ~segment_source();
  segment_source(const segment_source&) = delete;
  segment_source& operator=(const segment_source&) = delete;

  /// `size` bytes for work of `stream`, aligned to allocator_alignment, that nothing uses any more.
  /// The stream may be in a capture, which a question for its id would spoil.
  /// out_of_memory, or null: there are none now; the allocator then releases what it caches
  /// elsewhere and asks again. Any other error is the request's.
  [[nodiscard]] virtual result<void*> allocate(bytes size, const stream_ref& stream) = 0;
  /// What allocate() returned, with the same size; no work uses it any more. On failure the segment
  /// stays the pool's, and counts; it is offered again whenever memory is released.
  virtual result<void> deallocate(void* segment, bytes size) = 0;

 protected:
  segment_source() = default;
};

}}  // namespace weir::v0
