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
// docs/allocator.md tells how it works, docs/tuning.md what can be tuned, docs/stats.md what the
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

/// Asked to free something because a request of `needed` bytes cannot be met. Returns whether it
/// freed anything. Called without locks on the thread that allocates; it may use the allocator, but
/// requests made from inside do not call it again. An exception that it throws passes through the
/// request, be that allocate() or try_allocate(); the request counts as failed
/// (memory_stats::failures, an event out_of_memory).
using out_of_memory_callback = std::function<bool(bytes needed)>;

/// Keeps a callback registered; gone with this object. A call that had begun on another thread may
/// still be running then: what the callback refers to must outlive it.
class WEIR_API callback_registration {
 public:
  callback_registration() noexcept = default;
  ~callback_registration();
  callback_registration(callback_registration&& other) noexcept;
  callback_registration& operator=(callback_registration&& other) noexcept;

  explicit operator bool() const noexcept { return key_ != 0; }
  /// Ends it now. Idempotent.
  void close() noexcept;

 private:
  friend class caching_allocator;
  callback_registration(std::weak_ptr<heap::central_heap> owner, std::uint64_t key) noexcept
      : owner_{std::move(owner)}, key_{key} {}

  std::weak_ptr<heap::central_heap> owner_;
  std::uint64_t key_ = 0;
};

/// Keeps an observer registered until it ends, or until the allocator has been destroyed.
class WEIR_API observer_registration {
 public:
  observer_registration() noexcept = default;
  ~observer_registration();
  observer_registration(observer_registration&& other) noexcept;
  observer_registration& operator=(observer_registration&& other) noexcept;

  explicit operator bool() const noexcept { return sink_ != nullptr; }
  /// Ends it now: when it returns the sink is not called any more. Idempotent.
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

/// Hands out memory of one device.
///
/// **Order.** allocate(size, s) returns memory that work queued on s from now on may use.
/// deallocate(p, s) says that work queued on s so far may still use it, which, if it was allocated
/// for another stream, s must have waited for: s may get it back at once, another stream only after
/// all work that was queued on any known stream is done, or behind waits for all of it. Whoever
/// used it on further streams says so with record_stream() before the free, or has made s wait for
/// them, so that s may use it anew. docs/allocator.md says which streams are known.
///
/// **Threads.** Every call may be made from any thread at any time.
///
/// **Cost.** allocate and deallocate of recently used sizes are served by the calling thread alone:
/// no lock, no driver call. That needs a stream whose id is known: a weir::stream, a reference from
/// stream_ref::identified(), or the legacy stream; a bare handle costs two driver calls (50 ns)
/// each time, because handles are recycled. Other requests take the allocator's lock; requests for
/// which no room is found make driver calls (tens of microseconds).
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr; const says which allocator it
/// means, not what may be done with it. close(), or the end of the last handle, waits for all work
/// that is queued on the device and its peers, gives all memory back and reports what is still live
/// to the error handler (errc::still_live, with count and bytes). Memory that may still be in use,
/// because the wait failed, stays mapped as long as the process. Afterwards calls through copies
/// return errc::closed; calls through a handle that was moved from return errc::moved_from, and
/// those that return no result throw it (weir::failure). Work that is queued after close() must not
/// use the memory.
///
/// **Bad input.** Zero bytes give a null pointer, and freeing null does nothing. A size that cannot
/// be rounded is size_overflow; an alignment that is no power of two or above 2 MiB is
/// bad_alignment; a pointer that is not the start of a block of this allocator is foreign_pointer;
/// a block freed twice is double_free; a stream of another device is bad_stream, but for
/// record_stream().
class WEIR_API caching_allocator : public cuda_mr_calls<caching_allocator> {
 public:
  /// not_supported: the device lacks virtual memory and the policy needs it (every policy but
  /// classic does), or `exportable` is on and the device cannot export memory or the policy is a
  /// classic one. invalid_argument: a number in `options` is out of its range.
  [[nodiscard]] static result<caching_allocator> create(weir::device device,
                                                        const allocator_options& options = {});

  /// Whether requests are served: the handle was not moved from, and nobody closed the allocator.
  explicit operator bool() const noexcept;
  [[nodiscard]] weir::device device() const;
  /// Gives everything back now, and tells observers of the memory that is released. The first
  /// failure is returned; all is attempted. Idempotent. moved_from: through such a handle.
  result<void> close() const;

  // --- Memory -----------------------------------------------------------------------------------

  /// Throws out_of_memory, with a report, or failure. Aligned to default_alignment at least.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const;
  /// The same without throwing, but for what an out_of_memory_callback throws.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;

  /// The same, but only of memory that is free for the stream now: no driver call, no move, no wait
  /// and no new memory. not_found: there is none, and nothing was counted.
  [[nodiscard]] result<void*> try_allocate_cached(bytes size, const stream_ref& stream) const;

  // cuda::mr's, which weir/resource/cuda_mr.hpp defines.
  using cuda_mr_calls::allocate;
  using cuda_mr_calls::deallocate;

  /// What is wrong goes to the error handler. Without a stream: the one it was allocated for. The
  /// form with a size also checks that it is the size that was asked for (invalid_argument; the
  /// block is freed all the same).
  void deallocate(void* pointer, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer) const noexcept;
  result<void> try_deallocate(void* pointer, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer) const;

  /// Work queued on `stream` until the block is freed may use it, too: it will not be reused before
  /// that work is done. Costs a lock; no driver call until the free.
  ///
  /// The stream may be another device's (not its per-thread stream: bad_stream). Such a stream must
  /// not be destroyed before the block is freed, unless it is a weir::stream or watched.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  /// For a block that was freed and waits for recorded streams: the caller has ordered what they do
  /// with it before everything that the stream of the free does from now on (they were joined,
  /// inside one capture for instance), so that stream may have it at once. False: no such block.
  [[nodiscard]] result<bool> assume_joined(const void* pointer) const;

  /// The size of the block that a request of `size` bytes gets: the next multiple of 512.
  /// size_overflow: there is none.
  [[nodiscard]] static result<bytes> rounded_size(bytes size);
  /// The size that was asked for; foreign_pointer or double_free as for deallocate.
  [[nodiscard]] result<bytes> size_of(const void* pointer) const;

  /// The live block that the address lies in, anywhere, and whether its memory is suspended;
  /// foreign_pointer: there is none. Finding the block from its start costs a lock, from elsewhere
  /// a walk over the blocks of its pool.
  [[nodiscard]] result<block_info> block_at(const void* pointer) const;

  /// What an address is to this allocator, in words, with the block's life where that is known
  /// (heap_debug_stacks): "0x7f0000000405 is 6 bytes behind a live block: 0x7f0000000000, 1000 B".
  /// Of suspended memory it says "a live block whose memory is suspended".
  /// For an address that a tool or a debugger names. Under heap_debug guards, red zones and blocks
  /// that were freed are known as well. foreign_pointer: it is no memory of this allocator, or was
  /// too long ago. Walks over the blocks.
  [[nodiscard]] result<std::string> describe_address(const void* pointer) const;

  /// What lies under a live block, if the allocator (heap_exportable) or the block's pool
  /// (pool_options) is exportable; not_supported if not. It stays there until the block is freed.
  /// Other blocks may lie in the same handles.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer) const;

  // --- Other devices ----------------------------------------------------------------------------

  /// Lets kernels and copies of another device reach all memory of this allocator, what it has now
  /// and what it will have; for good. Twice does no harm. Costs a driver call for each handle that
  /// is mapped, and makes later ones dearer. invalid_argument: the device is this one, or of
  /// another runtime; not_supported: the two are not connected.
  result<void> enable_peer(weir::device other) const;

  // --- Inspection --------------------------------------------------------------------------------

  /// Exact, of one moment. Stops all threads' caches for a few microseconds.
  [[nodiscard]] memory_stats stats() const;
  [[nodiscard]] memory_stats stats(weir::tag tag) const;
  [[nodiscard]] std::vector<tag_stats> stats_by_tag() const;
  /// Every peak becomes the current value, of pools and tags as well.
  void reset_peaks() const;
  /// What is counted since creation (allocations, frees, hits, misses, failures, handles, waits,
  /// events) begins anew at 0, of pools and tags as well.
  void reset_counters() const;
  [[nodiscard]] allocator_snapshot snapshot() const;
  /// The report that out_of_memory would carry for such a request now.
  [[nodiscard]] memory_report explain(bytes size, const stream_ref& stream) const;

  // --- Releasing ------------------------------------------------------------------------------

  /// Releases physical memory that is quiescent to the driver until at most `keep` bytes are
  /// reserved. Waits for no stream; memory that streams may still use stays. Under the classic
  /// policy the driver waits for the device before it takes memory back; other threads allocate,
  /// free and close streams meanwhile. Returns how much was released.
  result<bytes> trim(bytes keep = {}) const;
  /// The same by harder means, until at most `keep` bytes are reserved: waits for the work that may
  /// use cached memory, and then evicts what is evictable, the lowest priority first. While
  /// captures are noticed (guard_captures()) it does what trim() does. Other threads allocate and
  /// free meanwhile. Returns by how much less is reserved than before the call.
  result<bytes> shrink(bytes keep) const;
  /// The same as trim() for all that is not live, after waiting for the streams.
  result<bytes> empty_cache() const;
  /// memory_pool::empty_cache() by the pool's id, also where its last handle is gone and blocks or
  /// streams kept it. closed: the pool has ended.
  result<bytes> empty_cache(pool_id pool) const;
  /// `stream` will not be used any more: what threads cache for it is flushed, and a mark is
  /// queued on it so that its memory becomes quiescent. Must be called before a stream is
  /// destroyed that is not a weir::stream (which does it by itself): the driver does not survive
  /// being asked about a stream that is gone.
  result<void> release_stream(const stream_ref& stream) const;

  // --- Suspending -------------------------------------------------------------------------------
  //
  // docs/suspend.md tells what happens in which order, what a failure leaves, and what it costs.

  /// Requests with this tag, outside captures and without a pool of their own, get memory of a
  /// private pool from now on, so that the tag can be suspended and drags nothing along. What was
  /// allocated with it before stays where it is. Once declared, later calls change the options.
  /// Such requests take the allocator's lock; threads cache none of it. invalid_argument: the tag
  /// has no name; not_supported: the device has no virtual memory.
  result<void> declare_suspendable(weir::tag tag, const suspendable_options& options = {}) const;
  /// Gives the physical memory of the tag's pool back to the driver, after waiting for all work
  /// that was queued in the device's context before. Blocks stay live and keep their addresses,
  /// which nothing may use until resume(). Of a tag that is suspended already it does nothing.
  /// After an error everything is as it was, but where a release failed twice: then the tag is
  /// suspended, and calling again tries the release once more.
  ///
  /// not_found: the tag was not declared; capture_forbidden: a stream is being captured;
  /// no_host_memory: for the contents; not_supported: somebody was given handles of the memory
  /// (handles_under()).
  result<suspend_outcome> suspend(weir::tag tag, const suspend_options& options = {}) const;
  /// The same of everything: the allocator's own memory and all pools. Pools made of segments stay,
  /// and are counted in the outcome. not_supported: the policy is a classic one.
  result<suspend_outcome> suspend(const suspend_options& options = {}) const;
  /// Brings it back, to the same addresses, with the contents that were kept. What others of this
  /// allocator cache is released for it, and what is evictable may be evicted, but not for
  /// everything, which is to be resident together. All or nothing:
  /// after an error (out_of_memory with a report in `detail`) it is suspended, and can be resumed
  /// later. Of what is not suspended it does nothing.
  result<resume_outcome> resume(weir::tag tag, const resume_options& options = {}) const;
  result<resume_outcome> resume(const resume_options& options = {}) const;
  /// The same without waiting: the call returns at once, and a thread of the allocator's suspends
  /// the tag when the work that was queued before is done, of those streams that `options.streams`
  /// names. Uses that are queued later are illegal from now on. Until it is gone, a request to the
  /// tag fails, waits or takes it back, as `requests` says; requests elsewhere that find no memory
  /// wait for it. What fails later goes to the error handler, and leaves the memory where it is.
  /// Errors as with suspend().
  result<void> suspend_async(weir::tag tag, const suspend_options& options = {}) const;
  result<void> suspend_async(const suspend_options& options = {}) const;
  /// Brings it back ahead of its use, without waiting for the copies: what is queued on `stream`
  /// from now on waits for them; so must uses on other streams. Creates and maps the memory, all or
  /// nothing, as resume() does. A suspension that has not begun to take effect is called off, and
  /// costs nothing; contents in pageable memory are waited for.
  ///
  /// bad_stream: of another device; capture_forbidden: the stream is being captured.
  result<resume_outcome> resume_async(weir::tag tag, const stream_ref& stream) const;
  result<resume_outcome> resume_async(const stream_ref& stream) const;
  /// Whether the tag is suspended; false also if it was not declared, or is on its way.
  [[nodiscard]] bool is_suspended(weir::tag tag) const;
  /// Gets host memory for so much contents ahead, which takes a second for 2 GiB where it is
  /// pinned. no_host_memory: the host has less; what was not enough goes back.
  result<void> reserve_backup(bytes size, host_memory_kind kind = host_memory_kind::pinned) const;
  /// Returns host memory to the system, by whole segments of 32 MiB and more: those that hold no
  /// contents at all. Returns how much. A segment with contents stays, however little they are. The
  /// driver waits for the device before it takes pinned memory back; other threads go on meanwhile.
  result<bytes> trim_backup() const;

  // --- Limits -----------------------------------------------------------------------------------

  /// No more than this much physical memory; bytes::max() is none. What is over it stays until it
  /// is freed. Where the allocator has a share of its card's budget (weir/share/budget.hpp), the
  /// smaller of this and the share's ceiling counts.
  result<void> set_limit(bytes limit) const;
  /// As a fraction of the device's memory, above 0 and at most 1.
  result<void> set_limit_fraction(double fraction) const;
  /// The limit that counts now: the smaller of set_limit() and of a budget share's ceiling;
  /// bytes::max(): none.
  [[nodiscard]] bytes limit() const;
  /// No more live memory (rounded) with this tag; bytes::max() is none. A request beyond it is
  /// out_of_memory.
  result<void> set_limit(weir::tag tag, bytes limit) const;

  // --- Pools, captures, callbacks, observer -----------------------------------------------------

  /// not_supported: exportable, on a device that cannot; or exportable and in segments.
  [[nodiscard]] result<memory_pool> create_pool(std::string_view name,
                                                pool_options settings = {}) const;
  /// Call before the capture of `stream` begins. A capture that is not declared is noticed on every
  /// request with option heap_detect_captures, otherwise only by requests that find no room at
  /// once; it then gets a private pool tied to its graph by itself.
  [[nodiscard]] result<graph_memory> begin_capture(const stream_ref& stream) const;
  /// Captures may be in progress until the guard ends; graph_memory.hpp says what that means.
  [[nodiscard]] result<capture_guard> guard_captures() const;
  /// `callback` is asked to free memory before a request fails. invalid_argument: it is empty.
  [[nodiscard]] result<callback_registration> on_out_of_memory(
      out_of_memory_callback callback) const;
  /// `callback` is asked before a request takes memory from the driver, at most once for each, so
  /// that memory which it can free at once is used first. What it returns does not matter. Called
  /// as those of on_out_of_memory() are.
  [[nodiscard]] result<callback_registration> before_growth(out_of_memory_callback callback) const;
  /// `sink` receives every event from now on, until the registration ends; when that has ended the
  /// sink is not called any more. The limits that are in force come first. The last events are
  /// those of the memory that close(), or the end of the last handle, releases. Any number of
  /// observers, each with a registration of its own; they are called in the order in which they
  /// came. A sink that is registered twice is called twice for each event.
  [[nodiscard]] result<observer_registration> add_observer(event_sink& sink) const;

  friend bool operator==(const caching_allocator&, const caching_allocator&) noexcept = default;

 private:
  friend class heap::central_heap;
  explicit caching_allocator(std::shared_ptr<heap::central_heap> heap) noexcept
      : heap_{std::move(heap)} {}

  std::shared_ptr<heap::central_heap> heap_;
};

/// "caching_allocator of device 0: requested 1 MiB (peak 2 MiB), reserved 32 MiB, cached 31 MiB";
/// what it cannot say without a heap: "caching_allocator, moved from".
[[nodiscard]] WEIR_API std::string to_string(const caching_allocator& allocator);
/// "memory_pool "name" of device 0: requested …".
[[nodiscard]] WEIR_API std::string to_string(const memory_pool& pool);

}}  // namespace weir::v0
