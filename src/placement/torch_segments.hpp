// SPDX-License-Identifier: Apache-2.0
// The classic store: segments and best fit by PyTorch's rules, as the baseline everybody knows.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "placement/backing_store.hpp"
#include "placement/block_tree.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// What segments are made of, and what becomes of them.
struct segment_rules {
  bool expandable = false;
  bool splits = true;
  bool mapped = false;                      // a handle a segment, instead of plain memory
  physical_properties properties{};         // of handles
  std::shared_ptr<memory_source> source{};  // asked instead of the driver
};

/// Memory in segments, each of one stream and of one size class.
///
/// Requests of at most 1 MiB are small, all others large. Each is given the smallest run that its
/// stream has in its class, of equals the one in the newest segment, of those the lowest. The run's
/// tail is cut off if a request can still use it: any tail of a small run, more than 1 MiB of a
/// large one. Neighbours in a segment that are free for the same stream are one run at all times.
/// (PyTorch takes the lowest address of equals. Drivers hand out addresses from the top down, so
/// that is the newest segment nearly always; going by age makes the same program place its memory
/// in the same way on every machine.)
///
/// Fixed segments are 2 MiB for small requests, 20 MiB for large ones, and from 10 MiB on what is
/// asked for, in multiples of 2 MiB. They come from plain allocation, are a handle each in a range
/// of their own, or come from a memory_source, which is asked with the heap's lock held. Where
/// nothing is to be split a segment is one block or one run at all times. Expandable segments are
/// address ranges larger than the device, of which pages of 2 MiB (small) or 20 MiB (large) get
/// memory from the lowest on as they are needed; there any tail is cut off.
///
/// A segment's stream never changes: what is cached for one stream serves no other. A block that
/// was freed on another stream than its segment's is that stream's, a guest, until the work of that
/// stream is known to be done; then it goes home. (PyTorch knows no free on another stream.)
///
/// What is released goes from the newest segment to the oldest. No decision depends on where the
/// driver placed a segment.
///
/// Every byte with memory under it is in one block that was handed out or in one run; every other
/// byte of an expandable segment is in a hole. The record at the lowest address of a run survives
/// splits and merges, so a segment's first record stays the same.
///
/// Owned by a pool of the allocator. All calls need the heap's lock; fit() and free() cost
/// O(log(runs) + log(segments)) and no host memory beyond recycled records. The driver waits for
/// the device before it takes plain memory back. So release() and close() take such a segment out
/// of the store and free it without the lock. Until the driver has it, it counts as reserved and is
/// in `leaving_`; if the driver refuses it, it is a segment again.
class torch_segments final : public backing_store {
 public:
  /// Sizes of large segments are multiples of it.
  static constexpr std::uint64_t segment_step = std::uint64_t{2} << 20;

  torch_segments(placement_context& shared, pool_id pool, segment_rules rules) noexcept;
  ~torch_segments() override;

  [[nodiscard]] block_index fit(const request& wanted) override;
  [[nodiscard]] result<block_index> fit_at(std::uint64_t address, const request& wanted) override;
  [[nodiscard]] bool prefers_growth(const request& wanted) const override;
  [[nodiscard]] result<block_index> rearrange(const request& wanted, reach whose,
                                              const context_scope& bound) override;
  [[nodiscard]] result<block_index> grow(const request& wanted,
                                         const context_scope& bound) override;
  void free(block_index index, stamp freed) noexcept override;
  void retire(stream_slot stream) noexcept override;
  [[nodiscard]] result<bytes> release(bytes most, const context_scope& bound) override;
  /// Segments of the driver's own memory are reached through the context's peers instead.
  [[nodiscard]] result<void> grant(const vmm::access& peer, const context_scope& bound) override;
  result<void> close(const context_scope& bound) override;

  /// All that is free for the stream: cached memory never becomes another's.
  [[nodiscard]] std::uint64_t bound_to(stream_slot stream) const noexcept override;
  [[nodiscard]] std::uint64_t longest_fit(stream_slot stream) const noexcept override;
  [[nodiscard]] std::uint64_t fragments() const noexcept override;
  void describe(pool_snapshot& into) const override;
  [[nodiscard]] block_index block_over(std::uint64_t address) const noexcept override;
  [[nodiscard]] result<block_handles> handles_under(block_index index) const override;
  [[nodiscard]] std::size_t footprint() const noexcept override;
  [[nodiscard]] std::string check() const override;

 private:
  enum class size_class : std::uint8_t { small, large };

  struct segment;
  using segment_entry = std::pair<const std::uint64_t, segment>;

  struct segment {
    std::uint64_t size = 0;  // bytes of addresses
    std::uint32_t rank = 0;  // counts down from segment to segment; in block.in.older of its runs
    stream_slot stream = no_stream;
    size_class holds{};
    block_index first = no_block;
    vmm::physical memory{};  // only of mapped ones
    segment_entry* older = nullptr;
    segment_entry* newer = nullptr;
  };
  using segment_map = std::map<std::uint64_t, segment>;  // by first address
  /// Two may have the same address: the driver can hand out memory again that it has just taken.
  using leaving_map = std::multimap<std::uint64_t, segment>;

  struct class_index {
    explicit class_index(block_store& blocks) noexcept
        : runs{blocks, block_tree::order::size},
          guests{blocks, block_tree::order::size},
          holes{blocks, block_tree::order::address} {}
    block_tree runs;    // of the segment's own stream
    block_tree guests;  // of other streams
    block_tree holes;
  };

  struct totals {
    std::uint64_t with_memory = 0;
    std::uint64_t handed_out = 0;
    std::array<std::size_t, 2> runs{}, guests{}, holes{};  // by class
  };

  [[nodiscard]] static std::uint64_t units_to_look_for(const request& wanted) noexcept;
  [[nodiscard]] static size_class class_of(std::uint64_t units) noexcept;
  [[nodiscard]] class_index& index_of(size_class class_number) noexcept {
    return classes_[static_cast<std::size_t>(class_number)];
  }
  [[nodiscard]] const class_index& index_of(size_class class_number) const noexcept {
    return classes_[static_cast<std::size_t>(class_number)];
  }
  [[nodiscard]] segment& segment_with(std::uint64_t address) noexcept;
  [[nodiscard]] std::uint64_t page_size(size_class of) const noexcept;

  // --- Runs (torch_segments.cpp) -----------------------------------------------------------------

  [[nodiscard]] block_index best_fit(class_index& in, stream_slot stream,
                                     std::uint64_t units) const noexcept;
  /// Cuts what is asked for out of a run. Two records must be prepared.
  [[nodiscard]] block_index hand_out(block_index run, const request& wanted,
                                     size_class from) noexcept;
  void make_live(block_index index, stream_slot stream) noexcept;
  /// A new record for what lies `units` behind the start of `which`. One must be prepared.
  block_index cut(block_index index, unit_count units) noexcept;
  /// Joins the block behind `which`, which is in no tree, to it.
  void absorb_next(block_index index) noexcept;
  void list(block_index run, const segment& home) noexcept;
  void unlist(block_index run, const segment& home) noexcept;
  /// A run that is in no tree is joined with its neighbours and put where it belongs. The run that
  /// it is part of then.
  block_index settle(block_index run, const segment& home) noexcept;
  [[nodiscard]] bool may_join(block_index a, block_index b) const noexcept;
  /// Whether nobody may still use a run.
  [[nodiscard]] bool at_rest(const block& run) const noexcept;
  void emit(memory_event_kind kind, stream_slot stream, std::uint64_t address,
            std::uint64_t size) const noexcept;

  // --- Segments (torch_segments_memory.cpp) ------------------------------------------------------

  [[nodiscard]] static result<segment_map> make_entry(const segment& blueprint);
  /// Enters a new segment, one block of this kind long; one record must be prepared.
  segment_map::iterator enter(std::uint64_t base, segment_map entry, block_kind kind) noexcept;
  /// The records of a segment and its entry go.
  segment_map::iterator forget(segment_map::iterator position) noexcept;
  void recycle(const segment& gone) noexcept;
  /// Takes the runs and holes of a segment out of the trees, or puts them there.
  void unlist_all(const segment& home) noexcept;
  void list_all(const segment& home) noexcept;
  /// Enters it into, and takes it out of, the list of segments by age.
  void link(segment_entry& entry) noexcept;
  void unlink(const segment& home) noexcept;
  /// The newest segment that is older than that rank; null if there is none.
  [[nodiscard]] const segment_entry* newest_before(std::uint32_t rank) const noexcept;
  [[nodiscard]] result<block_index> grow_fixed(const request& wanted, std::uint64_t units,
                                               const context_scope& bound);
  /// Memory for a fixed segment: its address goes to `base`, a handle into the segment.
  [[nodiscard]] result<void> take(segment& fresh, std::uint64_t& base, const context_scope& bound);
  [[nodiscard]] result<void> map_segment(segment& fresh, std::uint64_t& base,
                                         const context_scope& bound) const;
  [[nodiscard]] result<void> take_from_source(const segment& fresh, std::uint64_t& base) const;
  /// Gives a segment to the driver or the source, and forgets it. On failure nothing changed. Lets
  /// go of the lock for plain memory: iterators of segments_ are invalid then.
  [[nodiscard]] result<void> release_segment(segment_map::iterator position,
                                             const context_scope& bound);
  /// The same of plain memory.
  [[nodiscard]] result<void> release_plain(segment_map::iterator position,
                                           const context_scope& bound);
  [[nodiscard]] result<void> free_without_lock(std::uint64_t base, const context_scope& bound);
  /// Gives the memory of a fixed segment back; on failure it has it still.
  [[nodiscard]] result<void> give_back(std::uint64_t base, const segment& home,
                                       const context_scope& bound);
  [[nodiscard]] result<void> give_to_source(std::uint64_t base, std::uint64_t size) const;
  /// Whether a segment is free as a whole and at rest.
  [[nodiscard]] bool releasable(const segment& segment) const noexcept;
  [[nodiscard]] bool wholly_free(const segment& segment) const noexcept;
  [[nodiscard]] result<bytes> release_fixed(bytes most, const context_scope& bound);
  void describe_memory(const segment& of, pool_snapshot& into) const;

  // --- Expandable segments (torch_segments_expandable.cpp) ---------------------------------------

  [[nodiscard]] result<block_index> grow_expandable(const request& wanted, std::uint64_t units,
                                                    const context_scope& bound);
  /// The lowest place where runs and holes of the stream lie side by side for `units`.
  [[nodiscard]] block_index room_to_expand(const class_index& in, stream_slot stream,
                                           std::uint64_t units) const noexcept;
  /// How many bytes of pages `units` from `start` on still need.
  [[nodiscard]] std::uint64_t pages_missing(block_index start, std::uint64_t units,
                                            std::uint64_t page) const noexcept;
  /// A new range, as one hole.
  [[nodiscard]] result<block_index> reserve_range(stream_slot stream, size_class holds,
                                                  std::uint64_t units, const context_scope& bound);
  /// Puts memory under the first `units` of a hole, in whole pages. The run they are part of then;
  /// no_block if the driver has no room.
  [[nodiscard]] result<block_index> fill(block_index hole, std::uint64_t units,
                                         const context_scope& bound);
  [[nodiscard]] result<void> map_pages(std::uint64_t address, std::uint64_t size,
                                       std::uint64_t page, const context_scope& bound) const;
  [[nodiscard]] result<bytes> release_pages(bytes most, const context_scope& bound);
  /// Takes the memory away from under [address, address + size) of a run. The hole it becomes.
  [[nodiscard]] result<block_index> empty(block_index run, const segment& home,
                                          std::uint64_t address, std::uint64_t size,
                                          const context_scope& bound);
  struct stretch {
    std::uint64_t address;
    std::uint64_t size;
  };
  /// The whole pages inside a run.
  [[nodiscard]] stretch whole_pages(const block& run, std::uint64_t base,
                                    std::uint64_t page) const noexcept;
  /// Calls `see` with each stretch of a segment that has memory, by address.
  template <class Function>
  void for_each_stretch(const segment& of, Function see) const {
    stretch current{};
    for (block_index at = of.first; at != no_block; at = shared_.blocks[at].after) {
      const block& block = shared_.blocks[at];
      if (block.is() != block_kind::hole) {
        if (current.size == 0) current.address = block.address;
        current.size += block.size();
      }
      if (current.size != 0 && (block.is() == block_kind::hole || block.after == no_block)) {
        see(current);
        current = {};
      }
    }
  }

  // --- check() (torch_segments_check.cpp) --------------------------------------------------------

  [[nodiscard]] std::string check_segment(std::uint64_t base, const segment& of,
                                          totals& sums) const;
  [[nodiscard]] std::string check_block(block_index index, std::uint64_t base, const segment& home,
                                        totals& sums) const;
  [[nodiscard]] std::string check_leaving(totals& sums) const;

  const segment_rules rules_;
  std::array<class_index, 2> classes_;
  segment_map segments_;
  leaving_map leaving_;  // on their way to the driver
  bool ends_ = false;    // it is being destroyed, with or without the lock
  segment_entry* oldest_ = nullptr;
  segment_entry* newest_ = nullptr;
  std::uint32_t last_rank_ = std::numeric_limits<std::uint32_t>::max();
};

/// not_supported: expandable segments on a device without virtual memory.
[[nodiscard]] result<std::unique_ptr<backing_store>> make_torch_segments(
    placement_context& shared, pool_id pool, segment_rules rules, const context_scope& bound);

}}}  // namespace weir::v0::placement
