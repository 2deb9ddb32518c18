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

#include "weir/bytes.hpp"
#include "weir/device.hpp"
#include "weir/event.hpp"
#include "weir/export.hpp"
#include "weir/ids.hpp"
#include "weir/memory.hpp"
#include "weir/observe.hpp"
#include "weir/options.hpp"
#include "weir/result.hpp"
#include "weir/stats.hpp"
#include "weir/stream.hpp"
#include "weir/tag.hpp"

namespace weir::inline v0 {

namespace heap {
class allocator_state;
class pool;
struct graph_claim;
}  // namespace heap

// --- What a snapshot shows ----------------------------------------------------------------------

enum class block_state : std::uint8_t {
  live,           ///< allocated and not freed
  thread_cached,  ///< freed, kept by a thread for its next request of this size and stream
  pending,        ///< freed, but a recorded stream may still use it
  stream_bound,   ///< free for the stream that used it last; for others once that has passed it
  free,           ///< free for everybody
  hole,           ///< addresses without memory of their own
};

[[nodiscard]] WEIR_API std::string_view name(block_state state) noexcept;

/// A piece of the address space, as it was when the snapshot was taken.
struct block_info {
  device_address address = 0;
  bytes size{};       ///< rounded
  bytes requested{};  ///< only of live blocks
  block_state state{};
  stream_id stream{};  ///< of the allocation, or the one that a free block is bound to
  weir::tag tag{};     ///< only of live blocks
  pool_id pool{};      ///< 0: the allocator's own
};

/// A handle or segment of physical memory and where it is mapped now.
struct physical_info {
  device_address address = 0;
  bytes size{};
};

struct pool_snapshot {
  pool_id id{};
  std::string name;
  memory_stats stats;
  std::vector<block_info> blocks;       ///< by address, without gaps inside a segment or arena
  std::vector<physical_info> physical;  ///< by address
};

/// Everything an allocator holds, of one moment.
struct allocator_snapshot {
  device_id device{};
  memory_stats stats;
  std::vector<pool_snapshot> pools;  ///< the allocator's own first
};

struct tag_stats {
  weir::tag tag{};
  memory_stats stats;
};

/// Why a request could not be met: where the memory is and what would help.
struct memory_report {
  bytes requested{};
  stream_id stream{};
  bytes limit{};        ///< bytes::max() without one
  bytes device_free{};  ///< what the driver says is free, 0 if it did not answer
  bytes device_total{};
  memory_stats stats;
  std::vector<tag_stats> tags;  ///< what is live, most first
  struct size_group {
    bytes size{};  ///< rounded
    std::uint64_t blocks = 0;
  };
  std::vector<size_group> largest;  ///< live blocks by size, most bytes first, at most 8
  struct stream_share {
    stream_id stream{};
    bytes size{};
  };
  std::vector<stream_share> bound;  ///< free memory bound to streams, most first
  bytes largest_free{};             ///< the longest contiguous piece free for this stream
  bytes fragments{};                ///< free, but in pieces that no whole handle can leave
  bytes other_pools{};  ///< cached by pools of this allocator that keep it to themselves
  bytes elsewhere{};    ///< taken on the device, but not by this allocator
  std::string advice;   ///< what would make the request fit

  /// The same in plain words, a few lines.
  [[nodiscard]] WEIR_API std::string text() const;
};

// --- Pools, captures, callbacks -----------------------------------------------------------------

struct pool_options {
  /// Blocks of the pool can be shared with other processes (weir/sharing.hpp). Its memory comes in
  /// handles of one granularity (2 MiB), so that a block can be given away without its neighbours;
  /// that costs a driver call each. Needs virtual memory and descriptors, whatever the policy.
  bool exportable = false;
  /// For captured graphs of whoever holds the pool, which replay at the addresses they were
  /// captured with. While a handle of the pool lives its physical memory neither moves nor goes
  /// back, and what a stream freed serves that stream alone, at once. Requests make no call that
  /// harms a capture, whoever captures in whatever mode; on a stream that is being captured they
  /// neither record events nor ask for any. docs/allocator.md, "For frameworks".
  bool retains = false;
};

/// The physical memory under a block.
struct block_handles {
  std::vector<vmm::physical> handles;  ///< one behind the other
  bytes offset{};                      ///< of the block in the first
};

/// Memory of an allocator that is kept apart: what is freed to it is reused by it alone.
///
/// A shared handle, as cheap to copy as a shared_ptr; empty if default-made. When the last handle
/// is gone the pool takes no requests; its physical memory goes back when its last block is freed
/// and the streams have passed it. Any thread.
class WEIR_API memory_pool {
 public:
  memory_pool() noexcept = default;
  explicit operator bool() const noexcept { return inside_ != nullptr; }
  [[nodiscard]] pool_id id() const noexcept;
  [[nodiscard]] std::string_view name() const noexcept;
  [[nodiscard]] memory_stats stats() const;

  /// As caching_allocator::allocate, from this pool. A pool makes no use of thread caches.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = bytes{512}) const;
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{512}) const;

  /// A block at exactly that address, for restoring a state that a snapshot showed. Made of memory
  /// that the pool has free for the stream; no driver call, no move, legal in a capture.
  /// foreign_pointer: the pool has no memory there; not_ready: something there is in use, by a
  /// block or by work of another stream; bad_alignment: the address is no multiple of 512;
  /// not_supported: a pool made of classic segments.
  [[nodiscard]] result<void*> allocate_at(void* address, bytes size,
                                          const stream_ref& stream) const;

  /// What lies under a live block of an exportable pool. It stays there, and is the pool's, until
  /// the block is freed. foreign_pointer: the block is of another pool; not_supported: the pool is
  /// not exportable.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer) const;

  /// Waits for the streams and gives back what is free in this pool; returns how much went. Of a
  /// pool that retains, to call this is to say that no graph will be replayed any more that uses
  /// the free part; what a capture that is under way freed stays. The pool of a graph_memory, which
  /// knows its graphs, gives nothing back.
  result<bytes> empty_cache() const;
  /// Of one moment, as caching_allocator::snapshot(); empty if the pool is gone.
  [[nodiscard]] pool_snapshot snapshot() const;

 private:
  friend class caching_allocator;
  friend class graph_memory;
  friend class pool_scope;
  explicit memory_pool(std::shared_ptr<heap::pool> inside) noexcept : inside_{std::move(inside)} {}

  std::shared_ptr<heap::pool> inside_;
};

/// Sends this thread's requests to the pool's allocator to the pool, until the end of the scope;
/// scopes nest. Stays on the thread and in the block where it was made.
class WEIR_API pool_scope {
 public:
  [[nodiscard]] explicit pool_scope(memory_pool where) noexcept;
  ~pool_scope();
  pool_scope(const pool_scope&) = delete;
  pool_scope& operator=(const pool_scope&) = delete;

 private:
  memory_pool where_;
  void* before_;
};

/// The memory of one captured graph, private to it.
///
/// Made by caching_allocator::begin_capture() before the capture of a stream begins. Until end(),
/// requests on that stream, and on streams that the capture takes in, are served from a pool of its
/// own. What is freed inside the capture is reused inside it by the same stream. The pool keeps all
/// its memory, freed or not, as long as this object or a graph it was tied to by keep_with() lives,
/// so that the graph can be replayed whatever else allocates. Then it goes back to the driver, once
/// the blocks that left the capture alive are freed too.
///
/// Moves, does not copy. One thread at a time.
class WEIR_API graph_memory {
 public:
  graph_memory() noexcept = default;
  ~graph_memory();
  graph_memory(graph_memory&&) noexcept = default;
  graph_memory& operator=(graph_memory&& other) noexcept;

  explicit operator bool() const noexcept { return inside_ != nullptr; }
  /// The capture is over: requests go their usual way again. Twice does no harm.
  void end() noexcept;
  /// Ties the memory to `graph` and every executable made of it from now on: it lives as long as
  /// they do, whatever becomes of this object. not_supported: the driver is older than CUDA 11.3.
  result<void> keep_with(driver::CUgraph graph) const;
  [[nodiscard]] memory_pool pool() const noexcept;

 private:
  friend class caching_allocator;
  explicit graph_memory(std::shared_ptr<heap::graph_claim> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<heap::graph_claim> inside_;
};

/// Says that captures may be under way, of whatever streams, as long as it lives.
///
/// Meanwhile the allocator asks no stream how far it has come, records no event and waits for
/// nobody: what streams free stays their own, blocks with recorded streams stay pending, and
/// requests that find no room take new memory. So no question of one thread can meet the beginning
/// of a capture on another. For who captures without begin_capture(), in pools that retain.
///
/// Made by caching_allocator::notice_captures() before the first capture begins. Moves, does not
/// copy; may end on another thread.
class WEIR_API capture_notice {
 public:
  capture_notice() noexcept = default;
  ~capture_notice();
  capture_notice(capture_notice&& other) noexcept = default;
  capture_notice& operator=(capture_notice&& other) noexcept;

 private:
  friend class caching_allocator;
  explicit capture_notice(std::weak_ptr<heap::allocator_state> owner) noexcept
      : owner_{std::move(owner)} {}

  std::weak_ptr<heap::allocator_state> owner_;
};

/// Asked to free something because a request of `needed` bytes cannot be met. Returns whether it
/// freed anything. Called without locks on the thread that allocates; it may use the allocator, but
/// requests made from inside do not call it again.
using out_of_memory_callback = std::function<bool(bytes needed)>;

/// Keeps a callback registered; gone with this object.
class WEIR_API callback_registration {
 public:
  callback_registration() noexcept = default;
  ~callback_registration();
  callback_registration(callback_registration&& other) noexcept;
  callback_registration& operator=(callback_registration&& other) noexcept;

 private:
  friend class caching_allocator;
  callback_registration(std::weak_ptr<heap::allocator_state> owner, std::uint64_t key) noexcept
      : owner_{std::move(owner)}, key_{key} {}

  std::weak_ptr<heap::allocator_state> owner_;
  std::uint64_t key_ = 0;
};

// --- The allocator ------------------------------------------------------------------------------

/// Hands out memory of one device.
///
/// **Order.** allocate(size, s) returns memory that work queued on s from now on may use.
/// deallocate(p, s) says that work queued on s so far may still use it: s may get it back at once,
/// another stream only after all work that was queued on any known stream is done, or behind waits
/// for all of it. Whoever used it on further streams says so with record_stream() before the free,
/// or has made s wait for them, so that s may use it anew. docs/allocator.md says which streams are
/// known.
///
/// **Threads.** Every call may be made from any thread at any time.
///
/// **Cost.** allocate and deallocate of recently used sizes are served by the calling thread alone:
/// no lock, no driver call. That needs a stream whose id is known: a weir::stream, a reference from
/// stream_ref::identified(), or the legacy stream; a bare handle costs two driver calls (50 ns)
/// each time, because handles are recycled. Other requests take the allocator's lock; requests for
/// which no room is found make driver calls (tens of microseconds).
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr. close(), or the end of the
/// last handle, gives all memory back and reports what is still live to the error handler
/// (errc::already_freed, with count and bytes). Afterwards calls through
/// copies return errc::already_freed. Memory must not be in use then: close() waits for the streams
/// that freed memory, but does not know who uses blocks that were never freed.
///
/// **Bad input.** Zero bytes give a null pointer, and freeing null does nothing. A size that cannot
/// be rounded is size_overflow; an alignment that is no power of two or above 2 MiB is
/// bad_alignment; a pointer that is not the start of a block of this allocator is foreign_pointer;
/// a block freed twice is double_free; a stream of another device is bad_stream.
class WEIR_API caching_allocator {
 public:
  /// The options used are those that begin with heap_. not_supported: the device lacks virtual
  /// memory and the policy needs it (every policy but classic does), or heap_exportable is on and
  /// the device cannot export memory or the policy is a classic one.
  [[nodiscard]] static result<caching_allocator> create(weir::device where,
                                                        const options& settings = {});

  [[nodiscard]] weir::device device() const noexcept;
  /// Gives everything back now. The first failure is returned; all is attempted.
  result<void> close();

  // --- Memory -----------------------------------------------------------------------------------

  /// Throws out_of_memory, with a report, or failure. At least 512-byte aligned.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream, bytes alignment = bytes{512});
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{512});

  /// What is wrong goes to the error handler. Without a stream: the one it was allocated for. The
  /// form with a size also checks that it is the size that was asked for (invalid_argument; the
  /// block is freed all the same).
  void deallocate(void* pointer, const stream_ref& stream) noexcept;
  void deallocate(void* pointer, bytes size, const stream_ref& stream) noexcept;
  void deallocate(void* pointer) noexcept;
  result<void> try_deallocate(void* pointer, const stream_ref& stream);
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream);
  result<void> try_deallocate(void* pointer);

  /// Work queued on `stream` until the block is freed may use it, too: it will not be reused before
  /// that work is done. Costs a lock; no driver call until the free.
  result<void> record_stream(void* pointer, const stream_ref& stream);

  /// The size that was asked for; foreign_pointer or double_free as for deallocate.
  [[nodiscard]] result<bytes> size_of(const void* pointer) const;

  /// The live block that the address lies in, anywhere; foreign_pointer: there is none. Finding the
  /// block from its start costs a lock, from elsewhere a walk over the blocks of its pool.
  [[nodiscard]] result<block_info> block_at(const void* pointer) const;

  /// What lies under a live block, if the allocator (heap_exportable) or the block's pool
  /// (pool_options) is exportable; not_supported if not. It stays there until the block is freed.
  /// Other blocks may lie in the same handles.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer) const;

  // --- Looking ----------------------------------------------------------------------------------

  /// Exact, of one moment. Stops all threads' caches for a few microseconds.
  [[nodiscard]] memory_stats stats() const;
  [[nodiscard]] memory_stats stats(weir::tag of) const;
  [[nodiscard]] std::vector<tag_stats> stats_by_tag() const;
  void reset_peaks();
  [[nodiscard]] allocator_snapshot snapshot() const;
  /// The report that out_of_memory would carry for such a request now.
  [[nodiscard]] memory_report explain(bytes size, const stream_ref& stream) const;

  // --- Giving back ------------------------------------------------------------------------------

  /// Gives physical memory that is free for everybody back to the driver until at most `keep` bytes
  /// are reserved. Waits for nothing; memory that streams may still use stays. Returns how much
  /// went.
  result<bytes> trim(bytes keep = {});
  /// The same for all that is not live, after waiting for the streams.
  result<bytes> empty_cache();
  /// `stream` will not be used any more: what threads cache for it is handed back, and a mark is
  /// queued on it so that its memory becomes everybody's. Must be called before a stream is
  /// destroyed that is not a weir::stream (which does it by itself): the driver does not survive
  /// being asked about a stream that is gone.
  result<void> release_stream(const stream_ref& stream);

  // --- Limits -----------------------------------------------------------------------------------

  /// No more than this much physical memory; bytes::max() is none. What is over it stays until it
  /// is freed.
  result<void> set_limit(bytes most);
  /// As a fraction of the device's memory, above 0 and at most 1.
  result<void> set_limit_fraction(double of_device);
  [[nodiscard]] bytes limit() const noexcept;
  /// No more live memory (rounded) with this tag; bytes::max() is none. limit_exceeded beyond.
  result<void> set_limit(weir::tag of, bytes most);

  // --- Pools, captures, callbacks, observer -----------------------------------------------------

  /// not_supported: exportable, on a device that cannot.
  [[nodiscard]] result<memory_pool> create_pool(std::string_view name, pool_options settings = {});
  /// Call before the capture of `stream` begins. A capture that is not declared is noticed on every
  /// request with option heap_detect_captures, otherwise only by requests that find no room at
  /// once; it then gets a private pool tied to its graph by itself.
  [[nodiscard]] result<graph_memory> begin_capture(const stream_ref& stream);
  [[nodiscard]] capture_notice notice_captures();
  [[nodiscard]] callback_registration on_out_of_memory(out_of_memory_callback callback);
  /// Replaces the observer; null removes it. When this returns the old one is not called any more.
  void set_observer(event_sink* sink);

  friend bool operator==(const caching_allocator&, const caching_allocator&) noexcept = default;

 private:
  friend class heap::allocator_state;
  explicit caching_allocator(std::shared_ptr<heap::allocator_state> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<heap::allocator_state> inside_;
};

}  // namespace weir::inline v0
