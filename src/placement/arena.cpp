// Runs of an arena: finding, carving, merging, retiring.
#include "placement/arena.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// A free takes in what is quiescent beside it, up to this much.
constexpr std::uint32_t absorb_up_to = (16 << 20) / unit;

}  // namespace

arena::arena(placement_context& shared, pool_id pool, growth_rules rules, address_range range,
             std::uint64_t slot_size, physical_properties properties)
    : backing_store{shared, pool},
      rules_{rules},
      range_{std::move(range)},
      properties_{properties},
      slots_{range_.base(), range_.size().count(), slot_size},
      rounds_{range_.base()} {
  static_cast<void>(add_owner(no_stream));
}

arena::~arena() = default;

result<std::unique_ptr<backing_store>> arena::create(placement_context& shared, pool_id pool,
                                                     growth_rules rules, const context_scope& bound,
                                                     physical_properties properties) {
  if (!bound) return bound.error();
  const auto& can = shared.device.capabilities();
  if (!can.virtual_memory) return errc::not_supported;
  const std::uint64_t slot_size =
      std::max<std::uint64_t>(can.granularity.count(), std::uint64_t{2} << 20);
  const std::uint64_t memory = (shared.device.total_memory().count() / slot_size + 1) * slot_size;
  // Moving leaves holes behind, so there are more addresses than memory; private pools, of which
  // there may be hundreds, make do with less. Where addresses are short, less will do, too.
  for (std::uint64_t times = pool == pool_id{} ? 8 : 2;; times /= 2) {
    auto range = address_range::reserve(shared.device, bytes{memory * times}, bytes{slot_size});
    if (!range && times > 1) continue;
    if (!range) return std::move(range).error();
    return std::unique_ptr<backing_store>{
        new arena{shared, pool, rules, *std::move(range), slot_size, properties}};
  }
}

// --- Owners --------------------------------------------------------------------------------------

arena::owner& arena::add_owner(stream_slot stream) {
  while (owners_.size() <= stream)
    owners_.push_back(std::make_unique<owner>(shared_.blocks, slots_.base()));
  return *owners_[stream];
}

/// Into the queue of the owner's runs, by epoch: nearly always at its end; what is split off an old
/// run goes back behind its equals.
void arena::queue_up(block_index index, owner& to) noexcept {
  block& run = shared_.blocks[index];
  block_index behind = to.newest;
  while (behind != no_block && is_after(shared_.blocks[behind].in.freed, run.in.freed))
    behind = shared_.blocks[behind].in.older;
  const block_index ahead = behind == no_block ? to.oldest : shared_.blocks[behind].in.newer;
  run.in.older = behind;
  run.in.newer = ahead;
  (behind == no_block ? to.oldest : shared_.blocks[behind].in.newer) = index;
  (ahead == no_block ? to.newest : shared_.blocks[ahead].in.older) = index;
}

void arena::leave_queue(block_index index, owner& from) noexcept {
  const block& run = shared_.blocks[index];
  (run.in.older == no_block ? from.oldest : shared_.blocks[run.in.older].in.newer) = run.in.newer;
  (run.in.newer == no_block ? from.newest : shared_.blocks[run.in.newer].in.older) = run.in.older;
}

void arena::add_run(block_index index) noexcept {
  seen_.holds = false;
  const stream_slot stream = shared_.blocks[index].stream;
  owner& to = owner_of(stream);
  last_owner_ = std::max(last_owner_, stream);
  to.runs.insert(index);
  if (stream != no_stream) queue_up(index, to);
}

void arena::remove_run(block_index index) noexcept {
  seen_.holds = false;
  const stream_slot stream = shared_.blocks[index].stream;
  owner& from = *owners_[stream];
  from.runs.remove(index);
  if (stream != no_stream) leave_queue(index, from);
}

// --- The list by address -------------------------------------------------------------------------

void arena::link_after(block_index index, block_index fresh) noexcept {
  block& inserted = shared_.blocks[fresh];
  inserted.before = index;
  inserted.after = index == no_block ? first_ : shared_.blocks[index].after;
  if (inserted.after != no_block) {
    shared_.blocks[inserted.after].before = fresh;
  } else {
    last_ = fresh;
  }
  if (index != no_block) {
    shared_.blocks[index].after = fresh;
  } else {
    first_ = fresh;
  }
}

void arena::unlink(block_index index) noexcept {
  const block& absorbed = shared_.blocks[index];
  if (absorbed.before != no_block) {
    shared_.blocks[absorbed.before].after = absorbed.after;
  } else {
    first_ = absorbed.after;
  }
  if (absorbed.after != no_block) {
    shared_.blocks[absorbed.after].before = absorbed.before;
  } else {
    last_ = absorbed.before;
  }
}

/// Cuts a run or hole in two at `at`, strictly inside; the low part keeps the record. Returns the
/// high part.
block_index arena::split(block_index index, std::uint64_t at) noexcept {
  const bool run = shared_.blocks[index].is() == block_kind::run;
  if (run) remove_run(index);
  const block_index high = shared_.blocks.make();
  block& low = shared_.blocks[index];
  block& fresh = shared_.blocks[high];
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

/// Makes one record, in no index, of the free bytes [start, end). `hint` is the run that start lies
/// in or one below it. Records of lower addresses stay what they are.
block_index arena::cut(block_index hint, std::uint64_t start, std::uint64_t end) noexcept {
  while (shared_.blocks[hint].end() <= start) hint = shared_.blocks[hint].after;
  if (shared_.blocks[hint].address < start) hint = split(hint, start);
  for (;;) {
    block& taken = shared_.blocks[hint];
    if (taken.end() > end) split(hint, end);
    if (taken.end() == end) break;
    // Take the next one in: it lies wholly or partly inside.
    const block_index next = taken.after;
    if (shared_.blocks[next].end() > end) split(next, end);
    remove_run(next);
    remove_run(hint);
    const unit_count more = shared_.blocks[next].units;
    unlink(next);
    shared_.blocks.recycle(next);
    taken.units += more;
    add_run(hint);
  }
  remove_run(hint);
  return hint;
}

/// Merges a run with neighbours of the same owner. Returns the record that is left.
block_index arena::merge_same_owner(block_index index) noexcept {
  const auto joins = [&](block_index other) {
    const block& there = shared_.blocks[other];
    return other != no_block && there.is() == block_kind::run &&
           there.stream == shared_.blocks[index].stream &&
           can_join(there.units, shared_.blocks[index].units);
  };
  const auto absorb = [&](block_index low, block_index high) {
    remove_run(low);
    remove_run(high);
    block& kept = shared_.blocks[low];
    const block& absorbed = shared_.blocks[high];
    kept.units += absorbed.units;
    if (is_after(absorbed.in.freed, kept.in.freed)) kept.in.freed = absorbed.in.freed;
    unlink(high);
    shared_.blocks.recycle(high);
    add_run(low);
    return low;
  };
  while (joins(shared_.blocks[index].after)) absorb(index, shared_.blocks[index].after);
  while (joins(shared_.blocks[index].before)) index = absorb(shared_.blocks[index].before, index);
  return index;
}

// --- Handing out and taking back -----------------------------------------------------------------

block_index arena::hand_out(block_index index, const request& wanted) noexcept {
  block& fresh = shared_.blocks[index];
  fresh.become(block_kind::live);
  fresh.stream = wanted.stream;
  fresh.out = {};
  handed_out_ += fresh.size();
  peak_handed_out_ = std::max(peak_handed_out_, handed_out_);
  if (rounds_.notes() && rounds::is_large(fresh.units)) rounds_.requested(fresh);
  return index;
}

block_index arena::carve(block_index index, const request& wanted) noexcept {
  if (!shared_.blocks.prepare(2)) return no_block;
  block* run = &shared_.blocks[index];
  const std::uint64_t step = wanted.alignment * unit;
  const std::uint64_t start = (run->address + step - 1) & ~(step - 1);  // a power of two
  if (start != run->address) {
    index = split(index, start);
    run = &shared_.blocks[index];
  }
  if (run->units == wanted.units) {
    remove_run(index);
    return hand_out(index, wanted);
  }
  // The block takes the low end; the run keeps its record and its place in the queue of epochs.
  const block_index taken = shared_.blocks.make();
  block& fresh = shared_.blocks[taken];
  fresh.address = run->address;
  fresh.units = wanted.units;
  owners_[run->stream]->runs.shrink(index, wanted.units);
  seen_.holds = false;
  link_after(run->before, taken);
  return hand_out(taken, wanted);
}

block_index arena::fit(const request& wanted) {
  return rounds_.has_plan() ? fit_as_planned(wanted) : fit_anywhere(wanted);
}

block_index arena::fit_anywhere(const request& wanted) {
  const std::uint64_t needed = wanted.units_with_alignment();
  const bool low = goes_low(needed);
  if (is_careful()) return fit_carefully(wanted);
  const auto best_of = [&](const owner& from) {
    return low ? from.runs.lowest(needed) : from.runs.shortest(needed);
  };
  block_index match = best_of(owner_of(wanted.stream));
  if (const block_index other = best_of(*owners_[no_stream]); other != no_block) {
    const block_store& blocks = shared_.blocks;
    if (match == no_block || (low ? blocks[other].address < blocks[match].address
                                  : blocks[other].units < blocks[match].units))
      match = other;
  }
  return match == no_block ? no_block : carve(match, wanted);
}

result<block_index> arena::fit_at(std::uint64_t address, const request& wanted) {
  const std::uint64_t end = address + wanted.units * unit;
  const block_index first = block_over(address);
  for (block_index at = first;; at = shared_.blocks[at].after) {
    if (at == no_block || shared_.blocks[at].is() == block_kind::hole)
      return error{.code = errc::foreign_pointer, .detail = "no memory of the pool lies there"};
    if (!usable(shared_.blocks[at], wanted, reach::usable))
      return error{.code = errc::not_ready, .detail = "not all of it is free for the stream"};
    if (shared_.blocks[at].end() >= end) break;
  }
  if (!shared_.blocks.prepare(2)) return no_host_memory();
  return hand_out(cut(first, address, end), wanted);
}

void arena::free(block_index index, stamp freed) noexcept {
  if (shared_.order.completed(freed)) freed.stream = no_stream;
  block& run = shared_.blocks[index];
  if (rounds_.notes() && rounds::is_large(run.units)) rounds_.freed(run);
  handed_out_ -= run.size();
  run.become(block_kind::run);
  run.stream = freed.stream;
  run.in = {};
  const auto joins = [&](block_index other) {
    if (other == no_block) return false;
    const block& there = shared_.blocks[other];
    return there.is() == block_kind::run && can_join(there.units, run.units) &&
           (there.stream == freed.stream ||
            (there.stream == no_stream && there.units <= absorb_up_to));
  };
  // A block that waited for recorded streams comes late: its free may be the older of two.
  const auto take_newer = [&](block_index other) {
    const block& there = shared_.blocks[other];
    if (there.stream == freed.stream && is_after(there.in.freed, freed.epoch))
      freed.epoch = there.in.freed;
  };
  // Runs that are joined leave their indexes first; the maxima there are settled when the joined
  // run is in, which mostly saves the search for the next longest.
  const auto take_out = [&](block_index other) {
    take_newer(other);
    owner& from = *owners_[shared_.blocks[other].stream];
    if (shared_.blocks[other].stream != no_stream) leave_queue(other, from);
    return std::pair{&from.runs, from.runs.detach(other)};
  };
  std::pair<fit_index*, fit_index::detached> high{}, low{};
  if (const block_index after = run.after; joins(after)) {
    high = take_out(after);
    run.units += shared_.blocks[after].units;
    unlink(after);
    shared_.blocks.recycle(after);
  }
  if (const block_index before = run.before; joins(before)) {
    low = take_out(before);
    block& kept = shared_.blocks[before];
    kept.units += run.units;
    kept.stream = freed.stream;
    unlink(index);
    shared_.blocks.recycle(index);
    index = before;
  }
  shared_.blocks[index].in.freed = freed.epoch;
  add_run(index);
  if (high.first != nullptr) high.first->settle(high.second);
  if (low.first != nullptr) low.first->settle(low.second);
}

void arena::retire(stream_slot stream) noexcept {
  if (stream >= owners_.size()) return;
  owner& from = *owners_[stream];
  while (from.oldest != no_block) {
    const block_index index = from.oldest;
    if (!shared_.order.completed(stamp_of(shared_.blocks[index]))) break;
    remove_run(index);
    shared_.blocks[index].stream = no_stream;
    add_run(index);
    merge_same_owner(index);
  }
}

}}}  // namespace weir::v0::placement
