// SPDX-License-Identifier: Apache-2.0
// The check of everything that must be true of an arena's records.
#include <string>
#include <vector>

#include "placement/arena_inspector.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// One walk over the records: what contradicts itself, with the offset from the arena's base.
class record_check {
 public:
  record_check(const arena_core& core, const arena_figures& figures, bool suspended)
      : slots_{core.slots},
        runs_{core.runs},
        figures_{figures},
        suspended_{suspended},
        by_owner_(core.runs.owners()) {}

  std::string run() {
    check_blocks();
    check_holes();
    check_sums();
    for (stream_slot owner = 0; owner < runs_.owners(); ++owner) check_owner(owner);
    check_handles();
    return std::move(wrong_);
  }

 private:
  void complain(const char* text, std::uint64_t address) {
    if (wrong_.size() < 2000)
      wrong_.append(text)
          .append(" at +")
          .append(std::to_string(address - slots_.base()))
          .append("\n");
  }

  /// The list by address: no gaps, the right slots, and what all of it sums up to.
  void check_blocks() {
    end_ = slots_.base();
    block_index before = no_block;
    for (block_index at = runs_.first(); at != no_block; before = at, at = runs_[at].after) {
      const block& there = runs_[at];
      if (there.address != end_) complain("a gap or overlap of blocks", there.address);
      if (there.before != before) complain("a broken link", there.address);
      if (there.units == 0) complain("an empty block", there.address);
      end_ = there.end();
      check_slots_under(there);
      count(there);
    }
    if (before != runs_.last()) complain("a wrong last block", end_);
    if (end_ != slots_.end_address()) complain("an end that is not the slots' end", end_);
  }

  [[nodiscard]] static bool is_hole(const block& there) noexcept {
    return there.is() == block_kind::hole || there.is() == block_kind::stuck;
  }

  void check_slots_under(const block& there) {
    const bool hole = is_hole(there);
    for (std::uint64_t i = slots_.slot_of(there.address); i <= slots_.slot_of(there.end() - 1);
         ++i) {
      if (i >= slots_.count()) {
        complain("a block beyond the end", there.address);
      } else if (hole && slots_[i].current != 0) {
        complain("a hole over memory", there.address);
      } else if (!hole && slots_[i].current == 0) {
        complain("a block over no memory", there.address);
      } else if (!hole && slots_[i].retained != 0) {
        complain("a block over a mapping left behind", there.address);
      }
    }
  }

  void count(const block& there) {
    switch (there.is()) {
      case block_kind::hole:
      case block_kind::stuck:
        ++(there.is() == block_kind::hole ? holes_ : stuck_);
        if (there.address % slots_.slot_size() != 0 || there.size() % slots_.slot_size() != 0)
          complain("a hole that is not of whole slots", there.address);
        break;
      case block_kind::run:
        count_run(there);
        break;
      case block_kind::unused:
        complain("a recycled record", there.address);
        break;
      case block_kind::live:
      case block_kind::questioned:
      case block_kind::thread_cached:
      case block_kind::given_back:
      case block_kind::pending:
        handed_out_ += there.size();
        break;
    }
  }

  void count_run(const block& there) {
    free_ += there.size();
    if (there.stream >= runs_.owners()) {
      complain("a run of an unknown owner", there.address);
    } else {
      by_owner_[there.stream] += there.size();
    }
    if (there.after == no_block || there.stream != no_stream) return;
    const block& next = runs_[there.after];
    if (next.is() == block_kind::run && next.stream == no_stream)
      complain("two runs that should be one", there.address);
  }

  void check_holes() {
    if (holes_ != runs_.holes() || stuck_ != runs_.stuck())
      complain("a wrong count of holes", end_);
    for (block_index at = runs_.any_hole(); at != no_block; at = runs_[at].in.newer) {
      if (runs_[at].is() != block_kind::hole)
        complain("no hole among the holes", runs_[at].address);
      --holes_;
    }
    if (holes_ != 0) complain("a list that misses holes", end_);
  }

  void check_sums() {
    if (handed_out_ != figures_.handed_out) complain("a wrong sum of what is handed out", end_);
    for (handle_number number = 1; number < slots_.handle_count(); ++number) {
      const handle_record& each = slots_.handle(number);
      if (each.memory.handle == 0) away_ += slots_.bytes_of(each.slots);
    }
    if (handed_out_ + free_ != figures_.reserved + away_)
      complain("handed out + free is not reserved", end_);
  }

  /// The owner's index and queue have its runs.
  void check_owner(stream_slot owner) {
    if (runs_.of(owner).total() != by_owner_[owner])
      complain("a wrong sum of an owner's runs", end_);
    block_index last = no_block;
    std::uint64_t queued = 0;
    for (block_index at = runs_.oldest(owner); at != no_block; at = runs_[at].in.newer) {
      queued += runs_[at].size();
      if (runs_[at].in.older != last) complain("a broken queue", runs_[at].address);
      if (last != no_block && is_after(runs_[last].in.freed, runs_[at].in.freed))
        complain("a queue out of order", runs_[at].address);
      last = at;
    }
    if (runs_.newest(owner) != last) complain("a wrong end of a queue", end_);
    if (owner != no_stream && queued != by_owner_[owner])
      complain("a queue that misses runs", end_);
  }

  void check_handles() {
    std::uint64_t physical = 0;
    std::vector<std::uint64_t> retained(slots_.handle_count());
    slots_.each_retained([&](std::uint64_t, handle_number number) { ++retained[number]; });
    for (handle_number number = 1; number < slots_.handle_count(); ++number) {
      const handle_record& each = slots_.handle(number);
      physical += slots_.bytes_of(each.slots);
      if (each.away && !suspended_) complain("a handle is away from a store that is not", end_);
      if (each.memory.handle == 0 && each.slots != 0 && !each.away)
        complain("a handle without memory", slots_.address_of(each.slot));
      if (each.retained != retained[number])
        complain("a wrong count of mappings", slots_.address_of(each.slot));
      for (std::uint32_t i = each.slot; i < each.slot + each.slots; ++i)
        if (slots_[i].current != number)
          complain("a handle that is not where it is", slots_.address_of(i));
    }
    if (physical != figures_.reserved + away_) complain("a wrong sum of handles", end_);
  }

  const arena_slots& slots_;
  const arena_runs& runs_;
  const arena_figures figures_;
  const bool suspended_;
  std::string wrong_;
  std::uint64_t end_ = 0;  // of the blocks
  std::uint64_t handed_out_ = 0;
  std::uint64_t free_ = 0;
  std::uint64_t away_ = 0;  // bytes of handles without memory
  std::size_t holes_ = 0;
  std::size_t stuck_ = 0;
  std::vector<std::uint64_t> by_owner_;  // free bytes
};

}  // namespace

std::string arena_inspector::check(bool suspended) const {
  return record_check{core_, host_.figures(), suspended}.run();
}

}}}  // namespace weir::v0::placement
