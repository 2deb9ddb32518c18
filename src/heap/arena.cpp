// Runs of an arena: finding, carving, merging, retiring.
#include "heap/arena.hpp"

#include <algorithm>
#include <utility>

#include "order/mutation.hpp"

namespace weir::inline v0::heap {
namespace {

/// A free takes in what is everybody's beside it, up to this much.
constexpr std::uint32_t absorb_up_to = (16 << 20) / unit;

}  // namespace

arena::arena(core& shared, pool_id pool, growth_rules rules, address_range range,
             std::uint64_t slot_size, physical_properties properties)
    : store{shared, pool},
      rules_{rules},
      range_{std::move(range)},
      slot_size_{slot_size},
      properties_{properties},
      access_{vmm::access_for(shared.device)},
      handles_(1) {
  static_cast<void>(add_owner(nobody));
}

arena::~arena() = default;

result<std::unique_ptr<store>> arena::create(core& shared, pool_id pool, growth_rules rules,
                                             const context_scope& bound,
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
    return std::unique_ptr<store>{
        new arena{shared, pool, rules, *std::move(range), slot_size, properties}};
  }
}

// --- Owners --------------------------------------------------------------------------------------

arena::owner& arena::add_owner(stream_slot stream) {
  while (owners_.size() <= stream)
    owners_.push_back(std::make_unique<owner>(shared_.blocks, range_.base()));
  return *owners_[stream];
}

/// Into the queue of the owner's runs, by epoch: nearly always at its end; what is split off an old
/// run goes back behind its equals.
void arena::queue_up(block_index which, owner& to) noexcept {
  block& run = shared_.blocks[which];
  block_index behind = to.newest;
  while (behind != no_block && is_after(shared_.blocks[behind].in.freed, run.in.freed))
    behind = shared_.blocks[behind].in.older;
  const block_index ahead = behind == no_block ? to.oldest : shared_.blocks[behind].in.newer;
  run.in.older = behind;
  run.in.newer = ahead;
  (behind == no_block ? to.oldest : shared_.blocks[behind].in.newer) = which;
  (ahead == no_block ? to.newest : shared_.blocks[ahead].in.older) = which;
}

void arena::leave_queue(block_index which, owner& from) noexcept {
  const block& run = shared_.blocks[which];
  (run.in.older == no_block ? from.oldest : shared_.blocks[run.in.older].in.newer) = run.in.newer;
  (run.in.newer == no_block ? from.newest : shared_.blocks[run.in.newer].in.older) = run.in.older;
}

void arena::add_run(block_index which) noexcept {
  seen_.holds = false;
  const stream_slot stream = shared_.blocks[which].stream;
  owner& to = owner_of(stream);
  to.runs.insert(which);
  if (stream != nobody) queue_up(which, to);
}

void arena::remove_run(block_index which) noexcept {
  seen_.holds = false;
  const stream_slot stream = shared_.blocks[which].stream;
  owner& from = *owners_[stream];
  from.runs.remove(which);
  if (stream != nobody) leave_queue(which, from);
}

// --- The list by address -------------------------------------------------------------------------

void arena::link_after(block_index which, block_index fresh) noexcept {
  block& made = shared_.blocks[fresh];
  made.before = which;
  made.after = which == no_block ? first_ : shared_.blocks[which].after;
  if (made.after != no_block) {
    shared_.blocks[made.after].before = fresh;
  } else {
    last_ = fresh;
  }
  if (which != no_block) {
    shared_.blocks[which].after = fresh;
  } else {
    first_ = fresh;
  }
}

void arena::unlink(block_index which) noexcept {
  const block& gone = shared_.blocks[which];
  if (gone.before != no_block) {
    shared_.blocks[gone.before].after = gone.after;
  } else {
    first_ = gone.after;
  }
  if (gone.after != no_block) {
    shared_.blocks[gone.after].before = gone.before;
  } else {
    last_ = gone.before;
  }
}

/// Cuts a run or hole in two at `at`, strictly inside; the low part keeps the record. Returns the
/// high part.
block_index arena::split(block_index which, std::uint64_t at) noexcept {
  const bool run = shared_.blocks[which].is() == block_kind::run;
  if (run) remove_run(which);
  const block_index high = shared_.blocks.make();
  block& low = shared_.blocks[which];
  block& made = shared_.blocks[high];
  made.become(low.is());
  made.address = at;
  made.units = static_cast<std::uint32_t>((low.end() - at) / unit);
  made.stream = low.stream;
  made.in.freed = low.in.freed;
  low.units -= made.units;
  link_after(which, high);
  if (run) {
    add_run(which);
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
    const std::uint32_t more = shared_.blocks[next].units;
    unlink(next);
    shared_.blocks.recycle(next);
    taken.units += more;
    add_run(hint);
  }
  remove_run(hint);
  return hint;
}

/// Merges a run with neighbours of the same owner. Returns the record that is left.
block_index arena::merge_same_owner(block_index which) noexcept {
  const auto joins = [&](block_index other) {
    const block& there = shared_.blocks[other];
    return other != no_block && there.is() == block_kind::run &&
           there.stream == shared_.blocks[which].stream;
  };
  const auto absorb = [&](block_index low, block_index high) {
    remove_run(low);
    remove_run(high);
    block& kept = shared_.blocks[low];
    const block& gone = shared_.blocks[high];
    kept.units += gone.units;
    if (is_after(gone.in.freed, kept.in.freed)) kept.in.freed = gone.in.freed;
    unlink(high);
    shared_.blocks.recycle(high);
    add_run(low);
    return low;
  };
  while (joins(shared_.blocks[which].after)) absorb(which, shared_.blocks[which].after);
  while (joins(shared_.blocks[which].before)) which = absorb(shared_.blocks[which].before, which);
  return which;
}

// --- Handing out and taking back -----------------------------------------------------------------

block_index arena::hand_out(block_index which, const request& wanted) noexcept {
  block& made = shared_.blocks[which];
  made.become(block_kind::live);
  made.stream = wanted.stream;
  made.out = {};
  handed_out_ += made.size();
  peak_handed_out_ = std::max(peak_handed_out_, handed_out_);
  return which;
}

block_index arena::carve(block_index which, const request& wanted) noexcept {
  if (!shared_.blocks.prepare(2)) return no_block;
  block* run = &shared_.blocks[which];
  const std::uint64_t step = wanted.alignment * unit;
  const std::uint64_t start = (run->address + step - 1) / step * step;
  if (start != run->address) {
    which = split(which, start);
    run = &shared_.blocks[which];
  }
  if (run->units == wanted.units) {
    remove_run(which);
    return hand_out(which, wanted);
  }
  // The block takes the low end; the run keeps its record and its place in the queue of epochs.
  const block_index taken = shared_.blocks.make();
  block& made = shared_.blocks[taken];
  made.address = run->address;
  made.units = wanted.units;
  owners_[run->stream]->runs.shrink(which, wanted.units);
  seen_.holds = false;
  link_after(run->before, taken);
  return hand_out(taken, wanted);
}

block_index arena::fit(const request& wanted) {
  const std::uint32_t needed = wanted.units + wanted.alignment - 1;
  const bool low = goes_low(needed);
  const auto best_of = [&](const owner& from) {
    return low ? from.runs.lowest(needed) : from.runs.shortest(needed);
  };
  block_index found = owners_.size() > wanted.stream ? best_of(*owners_[wanted.stream]) : no_block;
  if (const block_index other = best_of(*owners_[nobody]); other != no_block) {
    const block_store& blocks = shared_.blocks;
    if (found == no_block || (low ? blocks[other].address < blocks[found].address
                                  : blocks[other].units < blocks[found].units))
      found = other;
  }
  return found == no_block ? no_block : carve(found, wanted);
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

void arena::give_back(block_index which, stamp freed) noexcept {
  if (shared_.order.completed(freed) || mutated(mutation::free_run_is_everybodys))
    freed.stream = nobody;
  block& run = shared_.blocks[which];
  handed_out_ -= run.size();
  run.become(block_kind::run);
  run.stream = freed.stream;
  run.in = {};
  const auto joins = [&](block_index other) {
    if (other == no_block) return false;
    const block& there = shared_.blocks[other];
    return there.is() == block_kind::run &&
           (there.stream == freed.stream || mutated(mutation::foreign_run_absorbed) ||
            (there.stream == nobody && there.units <= absorb_up_to));
  };
  // A block that waited for recorded streams comes late: its free may be the older of two.
  const auto take_newer = [&](block_index other) {
    const block& there = shared_.blocks[other];
    if (there.stream == freed.stream && is_after(there.in.freed, freed.epoch) &&
        !mutated(mutation::older_free_counts))
      freed.epoch = there.in.freed;
  };
  if (const block_index after = run.after; joins(after)) {
    take_newer(after);
    remove_run(after);
    run.units += shared_.blocks[after].units;
    unlink(after);
    shared_.blocks.recycle(after);
  }
  if (const block_index before = run.before; joins(before)) {
    take_newer(before);
    remove_run(before);
    block& low = shared_.blocks[before];
    low.units += run.units;
    low.stream = freed.stream;
    unlink(which);
    shared_.blocks.recycle(which);
    which = before;
  }
  shared_.blocks[which].in.freed = freed.epoch;
  add_run(which);
}

void arena::retire(stream_slot stream) noexcept {
  if (stream >= owners_.size()) return;
  owner& from = *owners_[stream];
  while (from.oldest != no_block) {
    const block_index which = from.oldest;
    if (!shared_.order.completed(stamp_of(shared_.blocks[which]))) break;
    remove_run(which);
    shared_.blocks[which].stream = nobody;
    add_run(which);
    merge_same_owner(which);
  }
}

}  // namespace weir::inline v0::heap
