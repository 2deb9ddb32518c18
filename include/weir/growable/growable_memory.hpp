// SPDX-License-Identifier: Apache-2.0
// weir::growable_memory: reserved addresses whose pages are committed and decommitted as needed.
//
//   auto cache = weir::growable_memory::reserve(memory, 64_GiB).value();   // addresses, no memory
//   cache.commit(0_B, 512_MiB, stream).value();          // pages with memory
//   launch(cache.data(), stream);
//   cache.decommit(256_MiB, 256_MiB, stream).value();    // work queued so far may still use them
//
// docs/growable.md tells how it works and what each call costs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"
#include "weir/driver/types.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 {

namespace growable {
class reservation;
struct page_change;
struct hold_record;
}  // namespace growable

/// A range of bytes of growable memory, from its begin.
struct byte_range {
  bytes offset{};
  bytes size{};

  friend bool operator==(const byte_range&, const byte_range&) = default;
};

struct growable_options {
  /// What is committed at a time: a power of two, at least 2 MiB and at most 1 GiB. A commit costs
  /// about the same whatever the size of a page; memory is wasted by half a page for each end of a
  /// committed range.
  bytes page{std::uint64_t{16} << 20};
  /// What the pages count as in statistics and limits. The default tag: that of the thread that
  /// commits.
  weir::tag tag{};
  /// For descriptions and reports.
  std::string name = "growable";
};

/// Exact, of one moment.
struct growable_stats {
  bytes reserved{};   ///< addresses
  bytes size{};       ///< what may be committed: resize()
  bytes page{};       ///< of each page
  bytes committed{};  ///< pages with memory that the caller may use
  bytes ahead{};      ///< pages with memory that commit() has not asked for yet: commit_ahead()
  bytes held{};       ///< decommitted pages that a graph keeps
  bytes suspended{};  ///< committed and held pages whose memory is away: suspend()
  bytes committed_peak{};
  std::uint64_t commits = 0;    ///< pages that were committed
  std::uint64_t decommits = 0;  ///< pages that were decommitted

  friend bool operator==(const growable_stats&, const growable_stats&) = default;
};

/// Pages that are ready to be committed and decommitted together.
///
/// Made by growable_memory::prepare(), which does all that can fail. commit() cannot fail, so that
/// several processes that each prepared can go on together. Without commit() the end of the object
/// gives the pages back: nothing has changed then. Moves, does not copy. One thread at a time.
class WEIR_API growable_plan {
 public:
  growable_plan() noexcept;
  ~growable_plan();
  growable_plan(growable_plan&&) noexcept;
  growable_plan& operator=(growable_plan&& other) noexcept;

  explicit operator bool() const noexcept { return change_ != nullptr; }
  /// The pages that are to be committed are usable by work queued on the stream from now on, those
  /// that are to be decommitted go. Empty afterwards. Idempotent.
  void commit() noexcept;
  /// Gives the pages back. Idempotent.
  void abort() noexcept;

 private:
  friend class growable_memory;
  growable_plan(std::shared_ptr<growable::reservation> of,
                std::unique_ptr<growable::page_change> change) noexcept;

  std::shared_ptr<growable::reservation> of_;
  std::unique_ptr<growable::page_change> change_;
};

/// Keeps the pages that were committed when it was made: a page that is decommitted meanwhile stays
/// mapped, with its memory, until this object ends. For who replays graphs and ties nothing to
/// them. Moves, does not copy. May end on another thread.
class WEIR_API growable_hold {
 public:
  growable_hold() noexcept = default;
  ~growable_hold();
  growable_hold(growable_hold&&) noexcept;
  growable_hold& operator=(growable_hold&& other) noexcept;

  explicit operator bool() const noexcept { return record_ != nullptr; }
  /// The pages may go. Idempotent.
  void close() noexcept;

 private:
  friend class growable_memory;
  growable_hold(std::shared_ptr<growable::reservation> of,
                std::shared_ptr<growable::hold_record> record) noexcept;

  std::shared_ptr<growable::reservation> of_;
  std::shared_ptr<growable::hold_record> record_;
};

/// Reserved addresses with pages that are committed and decommitted as needed.
///
/// **One pool.** Pages are memory of the allocator: they come from its free handles and return to
/// them. Its limits, tags, statistics, budgets, snapshots and reports count them, and a commit that
/// finds no memory goes through the same steps as a request, callbacks of the user's included.
/// If handles of the page's size are free, none is created.
///
/// **Order.** commit(…, s): work queued on s from now on may use the pages; another stream may
/// after it has waited for what was queued on s before the commit. decommit(…, s): work queued so
/// far may still use the pages. Their memory may be used again by s at once, and by others after
/// all work that was queued on any known stream is done, or behind waits for it. Neither waits for
/// the device. A commit waits for the work of before only where other memory was mapped at the page
/// and its own handle serves somebody else now.
///
/// **Contents** of a page that is committed are undefined, also where it was committed before.
///
/// **Whole pages.** commit() commits every page that the range touches; pages that are committed
/// stay as they are. decommit() decommits every page that lies in the range as a whole.
///
/// **Threads.** Every call may be made from any thread at any time. A page that another thread is
/// committing is not_ready.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr. Keeps its allocator alive.
/// close(), or the end of the last handle, decommits all pages and waits for the work that may use
/// them, because their addresses go. Addresses that may still be in use, because that wait failed,
/// stay reserved as long as the process. After the allocator was closed, calls return closed.
///
/// A graph that pages are tied to must be destroyed first: close() is not_ready before, and the end
/// of the last handle leaves addresses and pages as they are, and reports it.
///
/// **Captures.** A captured graph uses addresses, so the pages must stay: tie_to_graph() or hold().
/// commit() on a stream whose capture is declared is capture_forbidden.
class WEIR_API growable_memory {
 public:
  /// Empty: calls return moved_from.
  growable_memory() noexcept = default;

  /// Reserves addresses, without memory. `size` is rounded up to whole pages. invalid_argument: the
  /// size is zero or a page is out of its range; not_supported: the allocator has no arena (classic
  /// policies, heap_debug); out_of_memory: the driver has not so many addresses.
  [[nodiscard]] static result<growable_memory> reserve(const caching_allocator& allocator,
                                                       bytes size,
                                                       const growable_options& options = {});

  explicit operator bool() const noexcept { return state_ != nullptr; }
  /// The first byte; null: the handle is empty.
  [[nodiscard]] void* data() const noexcept;
  [[nodiscard]] bytes size() const noexcept;
  [[nodiscard]] bytes page_size() const noexcept;
  [[nodiscard]] std::string_view name() const noexcept;
  [[nodiscard]] growable_stats stats() const;
  /// Whether all pages of the range are committed.
  [[nodiscard]] bool is_committed(bytes offset, bytes size) const;

  // --- Pages ------------------------------------------------------------------------------------

  /// Commits what is not committed yet of the range. All or nothing. invalid_argument: the range
  /// goes beyond size(); out_of_memory: with a report; capture_forbidden, not_ready as above.
  result<void> commit(bytes offset, bytes size, const stream_ref& stream) const;
  /// The same of several ranges: all or nothing, also where a limit is met or a driver call fails
  /// midway.
  result<void> commit(std::span<const byte_range> ranges, const stream_ref& stream) const;
  /// Decommits what is committed of the range. Makes no driver call.
  result<void> decommit(bytes offset, bytes size, const stream_ref& stream) const;
  result<void> decommit(std::span<const byte_range> ranges, const stream_ref& stream) const;

  /// Both in two steps: this one does all that can fail, and growable_plan::commit() the rest. A
  /// page must not be named for both.
  [[nodiscard]] result<growable_plan> prepare(std::span<const byte_range> commits,
                                              std::span<const byte_range> decommits,
                                              const stream_ref& stream) const;

  /// Gets memory for pages behind the last committed one, until `watermark` bytes there are ready,
  /// or size() is reached. A later commit() of them makes no driver call if it names the same
  /// stream; on another stream it makes that one wait for this one, which must still exist. For a
  /// thread that has time. All or nothing.
  result<void> commit_ahead(bytes watermark, const stream_ref& stream) const;
  /// From now on `size` bytes may be committed, rounded up to whole pages, and at most what was
  /// reserved. Pages behind are decommitted.
  result<void> resize(bytes size, const stream_ref& stream) const;
  /// Gives back pages that are ready ahead, and unmaps decommitted pages that no work can use any
  /// more. Waits for nothing. Returns the bytes of memory that went back to the allocator.
  result<bytes> trim() const;

  // --- Graphs -----------------------------------------------------------------------------------

  /// From now on the committed pages stay mapped, with their memory, as long as the graph and every
  /// executable made of it, also if they are decommitted meanwhile. not_supported: the driver is
  /// older than CUDA 11.3.
  result<void> tie_to_graph(driver::CUgraph graph) const;
  /// The same as long as the returned object lives.
  [[nodiscard]] result<growable_hold> hold() const;

  // --- Suspending -------------------------------------------------------------------------------

  /// Gives the memory of all pages back to the allocator, after waiting for all work that was
  /// queued before. Addresses stay, and nothing may use them until resume(); calls that change
  /// pages return suspended. Contents are kept in pinned host memory, or discarded. Returns how
  /// much memory went back; 0: it was suspended already. After an error nothing has changed.
  ///
  /// capture_forbidden: a stream is being captured; no_host_memory: for the contents; not_ready: a
  /// plan is open.
  result<bytes> suspend(suspended_contents contents = suspended_contents::keep) const;
  /// Brings all pages back to their addresses, with the contents that were kept, and waits for the
  /// copies. Graphs that pages are tied to can be replayed again. All or nothing: after an error
  /// (out_of_memory) it is suspended still. Does nothing if it is not suspended.
  result<void> resume(const stream_ref& stream) const;

  // --- The memory below -------------------------------------------------------------------------

  /// The physical handles of the committed page that the offset lies in, if the allocator is
  /// exportable (heap_exportable). They stay until the page is decommitted. not_mapped: the page is
  /// not committed.
  [[nodiscard]] result<block_handles> handles_under(bytes offset) const;

  /// Decommits everything and gives the addresses back. Waits for the work that may use the pages.
  /// Copies of the handle return closed afterwards. Idempotent.
  result<void> close() const;

  friend bool operator==(const growable_memory&, const growable_memory&) noexcept = default;

 private:
  explicit growable_memory(std::shared_ptr<growable::reservation> state) noexcept
      : state_{std::move(state)} {}

  std::shared_ptr<growable::reservation> state_;
};

/// "growable "kv": 128 MiB committed of 64 GiB in pages of 16 MiB".
[[nodiscard]] WEIR_API std::string to_string(const growable_memory& memory);

}}  // namespace weir::v0
