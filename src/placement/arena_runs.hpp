// SPDX-License-Identifier: Apache-2.0
// The blocks of an arena in the order of their addresses: free runs by owner, and holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "order/stream_order.hpp"
#include "placement/backing_store.hpp"
#include "placement/block.hpp"
#include "placement/fit_index.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Whose free memory a request may be given.
using reach = backing_store::reach;

/// The list of an arena's blocks by address, and what finds the free ones among them.
///
///   owner 1's queue, by epoch         any hole
///        |                              |
///   | live | run of 1 | live | run of 1 | hole | run of everybody | live |     by address
///
/// A run belongs to the stream that may use it, or to everybody (no_stream). Every owner has an
/// index of its runs, and a stream has a queue of them as well, by the epoch of their free. A hole
/// has no memory. What is stuck has a mapping that the driver did not take back.
///
/// Always true between calls: the blocks follow each other without gaps; every run is in the index
/// of its owner, and in its queue unless that is everybody; every hole is in the list of holes; no
/// two runs of everybody lie side by side unless one record cannot stand for both.
///
/// Takes no memory from the driver and knows nothing of handles. Owned by an arena, under the
/// heap's lock. Functions that make records (split, cut, carve) need that block_store::prepare()
/// was successful before. Finding, freeing and carving a run cost some tens of nanoseconds; over(),
/// join_holes() and others_have_runs() walk.
class arena_runs {
 public:
  /// Of addresses from `base` on.
  arena_runs(block_store& blocks, const order::stream_order& order, std::uint64_t base);
  arena_runs(const arena_runs&) = delete;
  arena_runs& operator=(const arena_runs&) = delete;

  // --- By address -------------------------------------------------------------------------------

  [[nodiscard]] block_index first() const noexcept { return first_; }
  [[nodiscard]] block_index last() const noexcept { return last_; }
  [[nodiscard]] const block& operator[](block_index index) const noexcept { return blocks_[index]; }
  /// The block that an address of the arena lies in. Walks.
  [[nodiscard]] block_index over(std::uint64_t address) const noexcept;

  // --- By owner ---------------------------------------------------------------------------------

  /// From then on freeing a block on the stream takes no memory. May throw std::bad_alloc.
  void prepare_owner(stream_slot stream) { static_cast<void>(owner_of(stream)); }
  /// Owners that are known: stream slots below this.
  [[nodiscard]] std::size_t owners() const noexcept { return owners_.size(); }
  [[nodiscard]] const fit_index& of(stream_slot owner) const noexcept {
    return owners_[owner]->runs;
  }
  [[nodiscard]] fit_index& of(stream_slot owner) noexcept { return owners_[owner]->runs; }
  /// The highest stream slot that ever had a run.
  [[nodiscard]] stream_slot last_owner() const noexcept { return last_owner_; }
  /// The oldest run of the stream's queue, linked by block.in.newer; and the newest.
  [[nodiscard]] block_index oldest(stream_slot owner) const noexcept {
    return owners_[owner]->oldest;
  }
  [[nodiscard]] block_index newest(stream_slot owner) const noexcept {
    return owners_[owner]->newest;
  }
  [[nodiscard]] bool others_have_runs(stream_slot stream) const noexcept;
  /// Bytes in runs that only the stream may use.
  [[nodiscard]] std::uint64_t bound_to(stream_slot stream) const noexcept;
  /// The bytes of the longest run that the stream may use at once.
  [[nodiscard]] std::uint64_t longest_fit(stream_slot stream) const noexcept;
  /// Whether the block is a run that a request of the stream may be given.
  [[nodiscard]] bool usable(const block& run, stream_slot stream, reach whose) const noexcept;
  /// When a run was freed, or the mapping of a hole last used.
  [[nodiscard]] static stamp stamp_of(const block& run) noexcept {
    return {run.stream, run.in.freed};
  }

  // --- Changes ----------------------------------------------------------------------------------

  /// Counts changes of runs and holes: what was found out about them holds while it stays the same.
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }
  /// Something else changed that windows depend on.
  void note_change() noexcept { ++changes_; }

  /// Enters a run into the index and queue of its owner, and takes it out.
  void add_run(block_index index) noexcept;
  void remove_run(block_index index) noexcept;
  /// Enters a block into the list by address, behind another or, behind no_block, at its begin.
  void link_after(block_index index, block_index fresh) noexcept;
  /// Cuts a run or hole in two at `at`, strictly inside; the low part keeps the record. Returns the
  /// high part. Makes a record.
  block_index split(block_index index, std::uint64_t at) noexcept;
  /// Makes one record, in no index, of the free bytes [start, end). `hint` is the run that start
  /// lies in or one below it. Records of lower addresses stay what they are. Makes two records.
  [[nodiscard]] block_index cut(block_index hint, std::uint64_t start, std::uint64_t end) noexcept;
  /// The same for so many units of one run from `start` on. What is left of the run behind them
  /// keeps its record and its place in the queue of epochs. Makes two records.
  [[nodiscard]] block_index carve(block_index run, std::uint64_t start, unit_count units) noexcept;
  /// Merges a run with neighbours of the same owner. Returns the record that is left.
  block_index merge_same_owner(block_index index) noexcept;
  /// A block that was handed out becomes a run and joins its neighbours. Its stream is prepared.
  void free(block_index index, stamp freed) noexcept;
  /// Runs of the stream whose epoch is completed become everybody's.
  void retire(stream_slot stream) noexcept;

  // --- Holes ------------------------------------------------------------------------------------

  [[nodiscard]] std::size_t holes() const noexcept { return holes_; }
  /// A hole, linked with the others by block.in.newer.
  [[nodiscard]] block_index any_hole() const noexcept { return any_hole_; }
  /// Whether the block is a hole in which nothing can still use an old mapping.
  [[nodiscard]] bool fillable(const block& hole) const noexcept;
  /// The block just became a hole; it is about to be none.
  void note_hole(block_index index) noexcept;
  void forget_hole(block_index index) noexcept;
  /// Adjoining holes that can be filled become one: it takes fewer handles to fill.
  void join_holes() noexcept;
  /// The hole at the end goes.
  void drop_last_hole() noexcept;
  [[nodiscard]] std::size_t stuck() const noexcept { return stuck_; }
  /// A hole gets stuck, and what is stuck becomes a hole that can be filled.
  void block_off(block_index hole) noexcept;
  void unblock(block_index index) noexcept;

  /// Nothing is left. All records are recycled.
  void clear() noexcept;
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  /// Free runs that one stream may use.
  struct owner {
    owner(block_store& blocks, std::uint64_t base) : runs{blocks, base} {}
    fit_index runs;
    block_index oldest = no_block;  // queue by epoch
    block_index newest = no_block;
  };

  [[nodiscard]] owner& owner_of(stream_slot stream) {
    return stream < owners_.size() ? *owners_[stream] : add_owner(stream);
  }
  [[nodiscard]] owner& add_owner(stream_slot stream);
  void queue_up(block_index index, owner& to) noexcept;
  void leave_queue(block_index index, owner& from) noexcept;
  void unlink(block_index index) noexcept;

  block_store& blocks_;
  const order::stream_order& order_;
  std::uint64_t base_;
  std::vector<std::unique_ptr<owner>> owners_;  // by stream slot; 0 is everybody
  stream_slot last_owner_ = no_stream;
  block_index first_ = no_block;
  block_index last_ = no_block;
  std::size_t holes_ = 0;            // records of kind hole
  block_index any_hole_ = no_block;  // they are linked by in.older and in.newer, in no order
  std::size_t stuck_ = 0;            // records of kind stuck
  std::uint64_t changes_ = 0;
};

}}}  // namespace weir::v0::placement
