// SPDX-License-Identifier: Apache-2.0
// weir::caching_allocator: device memory for any thread and any stream, in nanoseconds.
//
//   auto machine = weir::runtime::open().value();
//   auto gpu = machine->device(weir::device_id{0}).value();
//   auto memory = weir::caching_allocator::create(gpu).value();
//   auto stream = weir::stream::create(gpu).value();
//
//   void* p = memory.allocate(64_MiB, stream);   // work queued on `stream` from now on may use it
//   launch(p, stream);
//   memory.deallocate(p, stream);                // work queued so far may still use it
//
// docs/allocator.md explains how it works, docs/tuning.md what can be tuned, docs/stats.md what the
// numbers mean.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/allocator/allocator_options.hpp"
#include "weir/allocator/graph_memory.hpp"
#include "weir/allocator/memory_pool.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/result.hpp"
#include "weir/device/cuda_mr_calls.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 {

namespace heap {
class central_heap;
class observers;
}  // namespace heap

/// Called to free memory because a request of `needed` bytes cannot be met. Returns whether it
/// freed anything. Called without locks on the thread that allocates. It may use the allocator;
/// requests made from inside do not call it again. An exception that it throws passes through
/// allocate() or try_allocate(), and the request counts as failed (memory_stats::failures, an event
/// out_of_memory).
using out_of_memory_callback = std::function<bool(bytes needed)>;

/// Keeps a callback registered until this object ends. A call that began on another thread may
/// still be running then: what the callback refers to must outlive it.
class WEIR_API callback_registration {
 public:
  callback_registration() noexcept = default;
  ~callback_registration();
  callback_registration(callback_registration&& other) noexcept;
  callback_registration& operator=(callback_registration&& other) noexcept;

  /// Whether a callback is registered by this object.
  explicit operator bool() const noexcept { return key_ != 0; }
  /// Ends the registration now. Idempotent.
  void close() noexcept;

 private:
  friend class caching_allocator;
  callback_registration(std::weak_ptr<heap::central_heap> owner, std::uint64_t key) noexcept
      : owner_{std::move(owner)}, key_{key} {}

  std::weak_ptr<heap::central_heap> owner_;
  std::uint64_t key_ = 0;
};

/// Keeps an observer registered until this object ends or the allocator is destroyed.
class WEIR_API observer_registration {
 public:
  observer_registration() noexcept = default;
  ~observer_registration();
  observer_registration(observer_registration&& other) noexcept;
  observer_registration& operator=(observer_registration&& other) noexcept;

  /// Whether an observer is registered by this object.
  explicit operator bool() const noexcept { return sink_ != nullptr; }
  /// Ends the registration now. The sink is not called after this returns. Idempotent.
  void close() noexcept;

 private:
  friend class caching_allocator;
  observer_registration(std::weak_ptr<heap::central_heap> owner,
                        std::shared_ptr<heap::observers> all, event_sink* sink) noexcept
      : owner_{std::move(owner)}, all_{std::move(all)}, sink_{sink} {}

  std::weak_ptr<heap::central_heap> owner_;
  std::shared_ptr<heap::observers> all_;
  event_sink* sink_ = nullptr;
};

// --- The allocator ------------------------------------------------------------------------------

/// An allocator for the memory of one device.
///
/// **Order.** allocate(size, s) returns memory that work queued on s from now on may use. After
/// deallocate(p, s), work queued on s so far may still use it. If p was allocated for another
/// stream, s must have waited for that stream's work. s can get the memory back at once. Another
/// stream gets it only after all work that was queued on any known stream is complete, or behind
/// waits for all of it. If further streams used p, call record_stream() for them before the free,
/// or make s wait for them. docs/allocator.md lists the known streams.
///
/// **Threads.** Every call may be made from any thread at any time.
///
/// **Cost.** allocate and deallocate of recently used sizes are served by the calling thread alone:
/// no lock, no driver call. That needs a stream whose id is known: a weir::stream, a reference from
/// stream_ref::identified(), or the legacy stream; a bare handle costs two driver calls (50 ns)
/// each time, because handles are recycled. Other requests take the allocator's lock; requests for
/// which no room is found make driver calls (tens of microseconds).
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr; a const handle can allocate.
/// The end of the last handle, or close(), waits for all work that is queued on the device and its
/// peers, returns all memory, and reports live blocks to the error handler (errc::still_live, with
/// count and bytes). If the wait fails, the memory stays mapped until the process ends. Afterwards
/// calls through copies return errc::closed. Calls through a handle that was moved from return
/// errc::moved_from; those that return no result throw it (weir::failure). Work that is queued
/// after close() must not use the memory.
///
/// **Bad input.** Zero bytes give a null pointer, and freeing null does nothing. size_overflow: the
/// size cannot be rounded; bad_alignment: the alignment is not a power of two or is above 2 MiB;
/// foreign_pointer: the pointer is not the start of a block of this allocator; double_free: the
/// block was already freed; bad_stream: the stream belongs to another device, except for
/// record_stream().
class WEIR_API caching_allocator : public cuda_mr_calls<caching_allocator> {
 public:
  /// not_supported: the device lacks virtual memory and the policy needs it (every policy but
  /// classic does), or `exportable` is on and the device cannot export memory or the policy is a
  /// classic one. invalid_argument: a number in `options` is out of its range.
  [[nodiscard]] static result<caching_allocator> create(weir::device device,
                                                        const allocator_options& options = {});

  /// Whether requests are served: the handle was not moved from and the allocator is not closed.
  explicit operator bool() const noexcept;
  /// The device whose memory it allocates.
  [[nodiscard]] weir::device device() const;
  /// Releases everything now and reports the released memory to observers. Attempts all of it and
  /// returns the first failure. Idempotent. moved_from: the handle was moved from.
  result<void> close() const;

  // --- Memory -----------------------------------------------------------------------------------

  /// Memory of at least `size` bytes, aligned to at least default_alignment. Throws out_of_memory,
  /// with a report, or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const;
  /// The same, but returns the error. Only exceptions of an out_of_memory_callback are thrown.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;

  /// The same, but only from memory that is free for the stream now: no driver call, no move, no
  /// wait and no new memory. not_found: no such memory; nothing is counted.
  [[nodiscard]] result<void*> try_allocate_cached(bytes size, const stream_ref& stream) const;

  // cuda::mr's, which weir/resource/cuda_mr.hpp defines.
  using cuda_mr_calls::allocate;
  using cuda_mr_calls::deallocate;

  /// Frees a block. Errors go to the error handler. Without a stream: the one it was allocated for.
  /// The form with a size also checks that it is the requested size (invalid_argument; the block is
  /// freed anyway).
  void deallocate(void* pointer, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer) const noexcept;
  result<void> try_deallocate(void* pointer, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer) const;

  /// Declares that work queued on `stream` until the free may use the block, too. The block is not
  /// reused before that work is complete. Costs a lock; no driver call until the free.
  ///
  /// The stream may be another device's (not its per-thread stream: bad_stream). Such a stream must
  /// not be destroyed before the block is freed, unless it is a weir::stream or watched.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  /// Ends a freed block's wait for recorded streams. The caller guarantees that their work on it is
  /// ordered before everything that the stream of the free does from now on (for example, they were
  /// joined inside one capture), so that stream can get it at once. False: no such block.
  [[nodiscard]] result<bool> assume_joined(const void* pointer) const;

  /// The size of the block that a request of `size` bytes gets: the next multiple of 512.
  /// size_overflow: it does not fit.
  [[nodiscard]] static result<bytes> rounded_size(bytes size);
  /// The requested size of a live block; foreign_pointer or double_free as for deallocate.
  [[nodiscard]] result<bytes> size_of(const void* pointer) const;

  /// The live block that contains the address, and whether its memory is suspended.
  /// foreign_pointer: no such block. For a block's start it costs a lock, for other addresses a
  /// walk over the blocks of the pool.
  [[nodiscard]] result<block_info> block_at(const void* pointer) const;

  /// A description of an address, for tools and debuggers, with the block's call stacks if they are
  /// recorded (heap_debug_stacks): "0x7f0000000405 is 6 bytes after a live block: 0x7f0000000000,
  /// 1000 B". For suspended memory it says "a live block whose memory is suspended". Under
  /// heap_debug guards, red zones and freed blocks are known as well. foreign_pointer: the address
  /// is not memory of this allocator, or was too long ago. Walks over the blocks.
  [[nodiscard]] result<std::string> describe_address(const void* pointer) const;

  /// The physical handles under a live block, which stay there until the block is freed. Other
  /// blocks may lie in the same handles. not_supported: neither the allocator (heap_exportable) nor
  /// the block's pool (pool_options) is exportable.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer) const;

  // --- Other devices ----------------------------------------------------------------------------

  /// Lets kernels and copies of another device access all memory of this allocator, present and
  /// future. It cannot be undone. Idempotent. Costs a driver call for each mapped handle, and makes
  /// later handles more expensive. invalid_argument: the device is this one, or belongs to another
  /// runtime; not_supported: the two are not connected.
  result<void> enable_peer(weir::device other) const;

  // --- Inspection --------------------------------------------------------------------------------

  /// The counters of the allocator, exact, as a consistent snapshot. Stops all threads' caches for
  /// a few microseconds, as all calls of this section do.
  [[nodiscard]] memory_stats stats() const;
  /// The counters of one tag.
  [[nodiscard]] memory_stats stats(weir::tag tag) const;
  /// The counters of every tag that was used.
  [[nodiscard]] std::vector<tag_stats> stats_by_tag() const;
  /// Sets every peak to the current value, also of pools and tags.
  void reset_peaks() const;
  /// Sets the counters since creation (allocations, frees, hits, misses, failures, handles, waits,
  /// events) to 0, also of pools and tags.
  void reset_counters() const;
  /// Every pool with its blocks and physical memory, as a consistent snapshot. Walks over all
  /// blocks.
  [[nodiscard]] allocator_snapshot snapshot() const;
  /// The report that out_of_memory would carry if this request failed now.
  [[nodiscard]] memory_report explain(bytes size, const stream_ref& stream) const;

  // --- Releasing ------------------------------------------------------------------------------

  /// Releases quiescent physical memory to the driver until at most `keep` bytes are reserved.
  /// Waits for no stream; memory that streams may still use stays. Under the classic policy the
  /// driver waits for the device before it takes memory back; other threads can allocate, free and
  /// close streams in the meantime. Returns how much was released.
  result<bytes> trim(bytes keep = {}) const;
  /// Like trim(), but also waits for the work that may use cached memory, and then evicts evictable
  /// memory, the lowest priority first. While a capture_guard exists (guard_captures()) it only
  /// trims. Other threads can allocate and free in the meantime. Returns the decrease of reserved
  /// memory.
  result<bytes> shrink(bytes keep) const;
  /// Waits for the streams, then releases all memory that is not live. Returns how much.
  result<bytes> empty_cache() const;
  /// memory_pool::empty_cache() by the pool's id, also after the pool's last handle has ended while
  /// blocks or streams keep it. closed: the pool has ended.
  result<bytes> empty_cache(pool_id pool) const;
  /// Declares that `stream` will not be used any more: flushes what threads cache for it, and
  /// queues a mark on it so that its memory becomes quiescent. Call it before a stream is
  /// destroyed, because querying a destroyed stream crashes the driver. A weir::stream does it by
  /// itself.
  result<void> release_stream(const stream_ref& stream) const;

  // --- Suspending -------------------------------------------------------------------------------
  //
  // docs/suspend.md explains the steps, the state after a failure, and the costs.

  /// Gives the tag a private pool, so that its memory can be suspended alone. From now on requests
  /// with this tag, outside captures and without a pool of their own, are served from it. Earlier
  /// allocations stay where they are. Later calls change the options. Such requests take the
  /// allocator's lock and bypass thread caches. invalid_argument: the tag has no name;
  /// not_supported: the device has no virtual memory.
  result<void> declare_suspendable(weir::tag tag, const suspendable_options& options = {}) const;
  /// Returns the physical memory of the tag's pool to the driver, after waiting for all work that
  /// was queued in the device's context before. Blocks stay live and keep their addresses, which
  /// must not be used until resume(). No-op if the tag is already suspended. After an error nothing
  /// has changed, with one exception: if a release failed twice, the tag is suspended, and another
  /// call tries the release again.
  ///
  /// not_found: the tag was not declared; capture_forbidden: a stream is being captured;
  /// no_host_memory: for the contents; not_supported: handles of the memory were exported
  /// (handles_under()).
  result<suspend_outcome> suspend(weir::tag tag, const suspend_options& options = {}) const;
  /// The same for everything: the allocator's default pool and all other pools. Pools in segments
  /// are not suspended; the outcome counts them. not_supported: the policy is a classic one.
  result<suspend_outcome> suspend(const suspend_options& options = {}) const;
  /// Restores the memory at the same addresses, with the contents that were kept. Memory that other
  /// pools of this allocator cache is released for it, and evictable memory may be evicted. All or
  /// nothing: after an error (out_of_memory with a report in `detail`) it is still suspended and
  /// can be resumed later. No-op if nothing is suspended.
  result<resume_outcome> resume(weir::tag tag, const resume_options& options = {}) const;
  /// The same for everything. Nothing is evicted for it, because all of it must be resident
  /// together.
  result<resume_outcome> resume(const resume_options& options = {}) const;
  /// suspend() without waiting: the call returns at once. A background thread of the allocator
  /// suspends the tag when the work queued before on the streams that `options.streams` names is
  /// complete. From now on no further uses may be queued. Until the memory is released, a request
  /// to the tag fails, waits or resumes it, as `requests` says; other requests that find no memory
  /// wait for it. Later failures go to the error handler and leave the memory in place. Errors as
  /// for suspend().
  result<void> suspend_async(weir::tag tag, const suspend_options& options = {}) const;
  result<void> suspend_async(const suspend_options& options = {}) const;
  /// resume() without waiting for the copies: work queued on `stream` from now on waits for them,
  /// and uses on other streams must wait for `stream`. Creates and maps the memory, all or nothing,
  /// as resume() does. A suspension that has not taken effect yet is cancelled at no cost. For
  /// contents in pageable memory the call waits.
  ///
  /// bad_stream: the stream belongs to another device; capture_forbidden: it is being captured.
  result<resume_outcome> resume_async(weir::tag tag, const stream_ref& stream) const;
  result<resume_outcome> resume_async(const stream_ref& stream) const;
  /// Whether the tag is suspended. False if it was not declared, or while a suspension is in
  /// progress.
  [[nodiscard]] bool is_suspended(weir::tag tag) const;
  /// Allocates host memory for `size` bytes of contents in advance. Pinned memory takes about a
  /// second for 2 GiB. no_host_memory: the host has less; nothing is kept.
  result<void> reserve_backup(bytes size, host_memory_kind kind = host_memory_kind::pinned) const;
  /// Returns host memory to the system: all segments (32 MiB and more) without contents. Returns
  /// how much. The driver waits for the device before it takes pinned memory back; other threads
  /// continue in the meantime.
  result<bytes> trim_backup() const;

  // --- Limits -----------------------------------------------------------------------------------

  /// Limits the physical memory; bytes::max() removes the limit. Memory above it stays until it is
  /// freed. If the allocator has a share of its card's budget (weir/share/budget.hpp), the smaller
  /// of this limit and the share's ceiling applies.
  result<void> set_limit(bytes limit) const;
  /// set_limit() as a fraction of the device's memory, greater than 0 and at most 1.
  result<void> set_limit_fraction(double fraction) const;
  /// The current limit: the smaller of set_limit() and of a budget share's ceiling; bytes::max()
  /// without a limit.
  [[nodiscard]] bytes limit() const;
  /// Limits the live memory with this tag, in rounded sizes; bytes::max() removes the limit. A
  /// request above it is out_of_memory.
  result<void> set_limit(weir::tag tag, bytes limit) const;

  // --- Pools, captures, callbacks, observer -----------------------------------------------------

  /// A private pool of this allocator. not_supported: exportable on a device that cannot export
  /// memory, or exportable and in segments.
  [[nodiscard]] result<memory_pool> create_pool(std::string_view name,
                                                pool_options settings = {}) const;
  /// Declares a capture; call it before the capture of `stream` begins. An undeclared capture is
  /// noticed by every request with the option heap_detect_captures, otherwise only by requests that
  /// find no memory at once. It then gets a private pool that is tied to its graph.
  [[nodiscard]] result<graph_memory> begin_capture(const stream_ref& stream) const;
  /// Declares that captures may be in progress until the guard ends; see capture_guard.
  [[nodiscard]] result<capture_guard> guard_captures() const;
  /// Registers a callback that is called to free memory before a request fails. invalid_argument:
  /// it is empty.
  [[nodiscard]] result<callback_registration> on_out_of_memory(
      out_of_memory_callback callback) const;
  /// Registers a callback that is called before a request takes memory from the driver, at most
  /// once for each request, so that memory it frees is used first. Its return value is ignored.
  /// Otherwise the rules of on_out_of_memory() apply.
  [[nodiscard]] result<callback_registration> before_growth(out_of_memory_callback callback) const;
  /// Registers an observer: `sink` receives every event until the registration ends. The current
  /// limits come first; the last events are those of the memory that close(), or the end of the
  /// last handle, releases. Any number of observers is allowed, each with its own registration;
  /// they are called in the order of registration. A sink that is registered twice is called twice.
  [[nodiscard]] result<observer_registration> add_observer(event_sink& sink) const;

  friend bool operator==(const caching_allocator&, const caching_allocator&) noexcept = default;

 private:
  friend class heap::central_heap;
  explicit caching_allocator(std::shared_ptr<heap::central_heap> heap) noexcept
      : heap_{std::move(heap)} {}

  std::shared_ptr<heap::central_heap> heap_;
};

/// "caching_allocator of device 0: requested 1 MiB (peak 2 MiB), reserved 32 MiB, cached 31 MiB",
/// or "caching_allocator, closed or moved from".
[[nodiscard]] WEIR_API std::string to_string(const caching_allocator& allocator);
/// "memory_pool "name" of device 0: requested …".
[[nodiscard]] WEIR_API std::string to_string(const memory_pool& pool);

}}  // namespace weir::v0
