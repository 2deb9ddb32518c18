// SPDX-License-Identifier: Apache-2.0
// The list by address, the indexes and queues of free runs, and the list of holes.
#include "placement/arena_runs.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// A free takes in what is quiescent beside it, up to this much.
constexpr std::uint32_t absorb_up_to = (16 << 20) / unit;

}  // namespace

arena_runs::arena_runs(block_store& blocks, const order::stream_order& order, std::uint64_t base)
    : blocks_{blocks}, order_{order}, base_{base} {
  prepare_owner(no_stream);
}

// --- Owners --------------------------------------------------------------------------------------

arena_runs::owner& arena_runs::add_owner(stream_slot stream) {
  while (owners_.size() <= stream) owners_.push_back(std::make_unique<owner>(blocks_, base_));
  return *owners_[stream];
}

/// Into the queue of the owner's runs, by epoch: nearly always at its end; what is split off an old
/// run goes back behind its equals.
void arena_runs::queue_up(block_index index, owner& to) noexcept {
  block& run = blocks_[index];
  block_index behind = to.newest;
  while (behind != no_block && is_after(blocks_[behind].in.freed, run.in.freed))
    behind = blocks_[behind].in.older;
  const block_index ahead = behind == no_block ? to.oldest : blocks_[behind].in.newer;
  run.in.older = behind;
  run.in.newer = ahead;
  (behind == no_block ? to.oldest : blocks_[behind].in.newer) = index;
  (ahead == no_block ? to.newest : blocks_[ahead].in.older) = index;
}

void arena_runs::leave_queue(block_index index, owner& from) noexcept {
  const block& run = blocks_[index];
  (run.in.older == no_block ? from.oldest : blocks_[run.in.older].in.newer) = run.in.newer;
  (run.in.newer == no_block ? from.newest : blocks_[run.in.newer].in.older) = run.in.older;
}

void arena_runs::add_run(block_index index) noexcept {
  ++changes_;
  const stream_slot stream = blocks_[index].stream;
  owner& to = owner_of(stream);
  last_owner_ = std::max(last_owner_, stream);
  to.runs.insert(index);
  if (stream != no_stream) queue_up(index, to);
}

void arena_runs::remove_run(block_index index) noexcept {
  ++changes_;
  const stream_slot stream = blocks_[index].stream;
  owner& from = *owners_[stream];
  from.runs.remove(index);
  if (stream != no_stream) leave_queue(index, from);
}

bool arena_runs::others_have_runs(stream_slot stream) const noexcept {
  for (stream_slot other = 1; other < owners_.size(); ++other)
    if (other != stream && owners_[other]->runs.total() != 0) return true;
  return false;
}

std::uint64_t arena_runs::bound_to(stream_slot stream) const noexcept {
  return stream == no_stream || stream >= owners_.size() ? 0 : of(stream).total();
}

std::uint64_t arena_runs::longest_fit(stream_slot stream) const noexcept {
  std::uint64_t longest = of(no_stream).longest();
  if (stream < owners_.size()) longest = std::max<std::uint64_t>(longest, of(stream).longest());
  return longest * unit;
}

bool arena_runs::usable(const block& run, stream_slot stream, reach whose) const noexcept {
  if (run.is() != block_kind::run) return false;
  if (run.stream == no_stream || run.stream == stream) return true;
  return whose == reach::behind_wait && order_.can_wait_for(stamp_of(run));
}

// --- The list by address -------------------------------------------------------------------------

block_index arena_runs::over(std::uint64_t address) const noexcept {
  block_index at = first_;
  while (at != no_block && blocks_[at].end() <= address) at = blocks_[at].after;
  return at;
}

void arena_runs::link_after(block_index index, block_index fresh) noexcept {
  block& inserted = blocks_[fresh];
  inserted.before = index;
  inserted.after = index == no_block ? first_ : blocks_[index].after;
  if (inserted.after != no_block) {
    blocks_[inserted.after].before = fresh;
  } else {
    last_ = fresh;
  }
  if (index != no_block) {
    blocks_[index].after = fresh;
  } else {
    first_ = fresh;
  }
}

void arena_runs::unlink(block_index index) noexcept {
  const block& absorbed = blocks_[index];
  if (absorbed.before != no_block) {
    blocks_[absorbed.before].after = absorbed.after;
  } else {
    first_ = absorbed.after;
  }
  if (absorbed.after != no_block) {
    blocks_[absorbed.after].before = absorbed.before;
  } else {
    last_ = absorbed.before;
  }
}

block_index arena_runs::split(block_index index, std::uint64_t at) noexcept {
  const bool run = blocks_[index].is() == block_kind::run;
  if (run) remove_run(index);
  const block_index high = blocks_.make();
  block& low = blocks_[index];
  block& fresh = blocks_[high];
  fresh.become(low.is());
  fresh.address = at;
  fresh.units = static_cast<std::uint32_t>((low.end() - at) / unit);
  fresh.stream = low.stream;
  fresh.in.freed = low.in.freed;
  low.units -= fresh.units;
  link_after(index, high);
  if (run) {
    add_run(index);
    add_run(high);
  } else {
    note_hole(high);
  }
  return high;
}

block_index arena_runs::cut(block_index hint, std::uint64_t start, std::uint64_t end) noexcept {
  while (blocks_[hint].end() <= start) hint = blocks_[hint].after;
  if (blocks_[hint].address < start) hint = split(hint, start);
  for (;;) {
    block& taken = blocks_[hint];
    if (taken.end() > end) split(hint, end);
    if (taken.end() == end) break;
    // Take the next one in: it lies wholly or partly inside.
    const block_index next = taken.after;
    if (blocks_[next].end() > end) split(next, end);
    remove_run(next);
    remove_run(hint);
    const unit_count more = blocks_[next].units;
    unlink(next);
    blocks_.recycle(next);
    taken.units += more;
    add_run(hint);
  }
  remove_run(hint);
  return hint;
}

block_index arena_runs::carve(block_index index, std::uint64_t start, unit_count units) noexcept {
  if (start != blocks_[index].address) index = split(index, start);
  const block& run = blocks_[index];
  if (run.units == units) {
    remove_run(index);
    return index;
  }
  // The low end gets a new record; the run keeps its record and its place in the queue of epochs.
  const block_index taken = blocks_.make();
  block& fresh = blocks_[taken];
  fresh.address = run.address;
  fresh.units = units;
  owners_[run.stream]->runs.shrink(index, units);
  ++changes_;
  link_after(run.before, taken);
  return taken;
}

block_index arena_runs::merge_same_owner(block_index index) noexcept {
  const auto joins = [&](block_index other) {
    const block& there = blocks_[other];
    return other != no_block && there.is() == block_kind::run &&
           there.stream == blocks_[index].stream && can_join(there.units, blocks_[index].units);
  };
  const auto absorb = [&](block_index low, block_index high) {
    remove_run(low);
    remove_run(high);
    block& kept = blocks_[low];
    const block& absorbed = blocks_[high];
    kept.units += absorbed.units;
    if (is_after(absorbed.in.freed, kept.in.freed)) kept.in.freed = absorbed.in.freed;
    unlink(high);
    blocks_.recycle(high);
    add_run(low);
    return low;
  };
  while (joins(blocks_[index].after)) absorb(index, blocks_[index].after);
  while (joins(blocks_[index].before)) index = absorb(blocks_[index].before, index);
  return index;
}

// --- Free and retire -----------------------------------------------------------------------------

void arena_runs::free(block_index index, stamp freed) noexcept {
  if (order_.completed(freed)) freed.stream = no_stream;
  block& run = blocks_[index];
  run.become(block_kind::run);
  run.stream = freed.stream;
  run.in = {};
  const auto joins = [&](block_index other) {
    if (other == no_block) return false;
    const block& there = blocks_[other];
    return there.is() == block_kind::run && can_join(there.units, run.units) &&
           (there.stream == freed.stream ||
            (there.stream == no_stream && there.units <= absorb_up_to));
  };
  // A block that waited for recorded streams comes late: its free may be the older of two.
  const auto take_newer = [&](block_index other) {
    const block& there = blocks_[other];
    if (there.stream == freed.stream && is_after(there.in.freed, freed.epoch))
      freed.epoch = there.in.freed;
  };
  // Runs that are joined leave their indexes first; the maxima there are settled when the joined
  // run is in, which mostly saves the search for the next longest.
  const auto take_out = [&](block_index other) {
    take_newer(other);
    owner& from = *owners_[blocks_[other].stream];
    if (blocks_[other].stream != no_stream) leave_queue(other, from);
    return std::pair{&from.runs, from.runs.detach(other)};
  };
  std::pair<fit_index*, fit_index::detached> high{}, low{};
  if (const block_index after = run.after; joins(after)) {
    high = take_out(after);
    run.units += blocks_[after].units;
    unlink(after);
    blocks_.recycle(after);
  }
  if (const block_index before = run.before; joins(before)) {
    low = take_out(before);
    block& kept = blocks_[before];
    kept.units += run.units;
    kept.stream = freed.stream;
    unlink(index);
    blocks_.recycle(index);
    index = before;
  }
  blocks_[index].in.freed = freed.epoch;
  add_run(index);
  if (high.first != nullptr) high.first->settle(high.second);
  if (low.first != nullptr) low.first->settle(low.second);
}

void arena_runs::retire(stream_slot stream) noexcept {
  if (stream >= owners_.size()) return;
  owner& from = *owners_[stream];
  while (from.oldest != no_block) {
    const block_index index = from.oldest;
    if (!order_.completed(stamp_of(blocks_[index]))) break;
    remove_run(index);
    blocks_[index].stream = no_stream;
    add_run(index);
    merge_same_owner(index);
  }
}

// --- Holes ---------------------------------------------------------------------------------------

bool arena_runs::fillable(const block& hole) const noexcept {
  return hole.is() == block_kind::hole && order_.completed(stamp_of(hole));
}

void arena_runs::note_hole(block_index index) noexcept {
  block& hole = blocks_[index];
  hole.in.older = no_block;
  hole.in.newer = any_hole_;
  if (any_hole_ != no_block) blocks_[any_hole_].in.older = index;
  any_hole_ = index;
  ++holes_;
  ++changes_;
}

void arena_runs::forget_hole(block_index index) noexcept {
  const block& hole = blocks_[index];
  (hole.in.older == no_block ? any_hole_ : blocks_[hole.in.older].in.newer) = hole.in.newer;
  if (hole.in.newer != no_block) blocks_[hole.in.newer].in.older = hole.in.older;
  --holes_;
  ++changes_;
}

void arena_runs::join_holes() noexcept {
  if (holes_ < 2) return;
  const auto can_be_filled = [&](block_index index) {
    return index != no_block && fillable(blocks_[index]);
  };
  for (block_index at = any_hole_; at != no_block; at = blocks_[at].in.newer) {
    // The lowest of a row takes in the others.
    if (!can_be_filled(at) || can_be_filled(blocks_[at].before)) continue;
    block& low = blocks_[at];
    for (block_index after = low.after; can_be_filled(after); after = low.after) {
      if (!can_join(low.units, blocks_[after].units)) break;
      low.stream = no_stream;
      low.units += blocks_[after].units;
      unlink(after);
      forget_hole(after);
      blocks_.recycle(after);
    }
  }
}

void arena_runs::drop_last_hole() noexcept {
  const block_index dropped = last_;
  unlink(dropped);
  forget_hole(dropped);
  blocks_.recycle(dropped);
}

void arena_runs::block_off(block_index hole) noexcept {
  forget_hole(hole);
  blocks_[hole].become(block_kind::stuck);
  ++stuck_;
}

void arena_runs::unblock(block_index index) noexcept {
  blocks_[index].become(block_kind::hole);
  blocks_[index].stream = no_stream;
  note_hole(index);
  --stuck_;
}

// --- All of it -----------------------------------------------------------------------------------

void arena_runs::clear() noexcept {
  for (block_index at = first_; at != no_block;) {
    const block_index next = blocks_[at].after;
    blocks_.recycle(at);
    at = next;
  }
  first_ = last_ = any_hole_ = no_block;
  holes_ = stuck_ = 0;
  owners_.resize(1);  // everybody, who has nothing any more
  std::destroy_at(owners_.front().get());
  std::construct_at(owners_.front().get(), blocks_, base_);
  last_owner_ = no_stream;
}

std::size_t arena_runs::footprint() const noexcept {
  std::size_t total = 0;
  for (const auto& each : owners_) total += sizeof(owner) + each->runs.footprint();
  return total;
}

}}}  // namespace weir::v0::placement
