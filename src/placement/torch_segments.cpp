// SPDX-License-Identifier: Apache-2.0
// Best fit, split and merge, and what the classic store tells about itself.
#include "placement/torch_segments.hpp"

#include <algorithm>
#include <utility>

#include "device/state.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

constexpr std::uint32_t mebi = (1U << 20) / unit;  // a MiB in units
constexpr std::uint32_t small_most = mebi;         // of a small request
constexpr std::uint32_t large_tail = mebi;         // of a large run, not worth cutting off
/// What a block can have beyond what was asked for: block::outside::waste counts it.
constexpr std::uint64_t most_waste = std::numeric_limits<std::uint32_t>::max();

block_state state_of(const block& of) noexcept {
  switch (of.is()) {
    case block_kind::live:
    case block_kind::questioned:
      return block_state::live;
    case block_kind::thread_cached:
    case block_kind::given_back:
      return block_state::thread_cached;
    case block_kind::pending:
      return block_state::pending;
    case block_kind::hole:
    case block_kind::stuck:
      return block_state::hole;
    default:
      return block_state::stream_bound;
  }
}

}  // namespace

result<std::unique_ptr<backing_store>> make_torch_segments(placement_context& shared, pool_id pool,
                                                           segment_rules rules,
                                                           const context_scope& bound) {
  if (!bound) return bound.error();
  if (rules.expandable && !shared.device.capabilities().virtual_memory) {
    return error{{.code = errc::not_supported,
                  .detail = "expandable segments need a device with virtual memory management"}};
  }
  return std::unique_ptr<backing_store>{
      std::make_unique<torch_segments>(shared, pool, std::move(rules))};
}

torch_segments::torch_segments(placement_context& shared, pool_id pool,
                               segment_rules rules) noexcept
    : backing_store{shared, pool, rules.source == nullptr},
      rules_{std::move(rules)},
      classes_{class_index{shared.blocks}, class_index{shared.blocks}} {}

torch_segments::~torch_segments() {
  if (segments_.empty()) return;
  const context_scope bound{shared_.device};
  ends_ = true;  // nobody else knows it, and the lock may be free
  detail::report_failure(close(bound));
}

std::uint64_t torch_segments::units_to_look_for(const request& wanted) noexcept {
  // Whatever address a run begins at, an aligned one is fewer than `alignment` units away.
  return wanted.units_with_alignment();
}

torch_segments::size_class torch_segments::class_of(std::uint64_t units) noexcept {
  return units <= small_most ? size_class::small : size_class::large;
}

torch_segments::segment& torch_segments::segment_with(std::uint64_t address) noexcept {
  return std::prev(segments_.upper_bound(address))->second;
}

// --- Handing out --------------------------------------------------------------------------------

block_index torch_segments::fit(const request& wanted) {
  const std::uint64_t units = units_to_look_for(wanted);
  if (units > most_units) return no_block;
  const size_class from = class_of(units);
  const block_index match =
      best_fit(index_of(from), wanted.stream, static_cast<std::uint32_t>(units));
  if (match == no_block || !shared_.blocks.prepare(2)) return no_block;
  if (!rules_.splits) {
    const std::uint64_t waste = (shared_.blocks[match].units - units) * unit;
    if (wanted.alignment != 1 || waste > most_waste) return no_block;
  }
  return hand_out(match, wanted, from);
}

result<block_index> torch_segments::fit_at(std::uint64_t address, const request& wanted) {
  if (rules_.expandable) return backing_store::fit_at(address, wanted);
  block_store& blocks = shared_.blocks;
  const block_index run = block_over(address);
  if (run == no_block) return errc::foreign_pointer;
  const std::uint64_t skipped = (address - blocks[run].address) / unit;
  const bool is_free = blocks[run].is() == block_kind::run && blocks[run].stream == wanted.stream &&
                       skipped + wanted.units <= blocks[run].units;
  if (!is_free || (!rules_.splits && skipped != 0)) return errc::not_ready;
  if (!blocks.prepare(2)) return no_host_memory();
  const segment& home = segment_with(address);
  unlist(run, home);
  block_index taken = run;
  if (skipped != 0) {
    taken = cut(run, static_cast<std::uint32_t>(skipped));
    list(run, home);
  }
  // To the measure, whatever is left: another block of the same state may begin there.
  if (rules_.splits && blocks[taken].units != wanted.units) list(cut(taken, wanted.units), home);
  make_live(taken, wanted.stream);
  return taken;
}

block_index torch_segments::best_fit(class_index& in, stream_slot stream,
                                     std::uint64_t units) const noexcept {
  const block_store& blocks = shared_.blocks;
  // A run before a hole counts as long as both: the room to expand into is used last.
  const auto length = [&](block_index run) -> std::uint64_t {
    const block_index behind = blocks[run].after;
    const bool grows = behind != no_block && blocks[behind].is() == block_kind::hole;
    return blocks[run].units + (grows ? std::uint64_t{blocks[behind].units} : 0);
  };
  block_index match = in.runs.first(stream, units);
  while (rules_.expandable && match != no_block) {
    const block_index longer = in.runs.next(match);
    if (longer == no_block || length(longer) >= length(match)) break;
    match = longer;
  }
  const block_index guest = in.guests.first(stream, units);
  if (guest == no_block) return match;
  return match == no_block || blocks[guest].units < blocks[match].units ? guest : match;
}

block_index torch_segments::hand_out(block_index run, const request& wanted,
                                     size_class from) noexcept {
  block_store& blocks = shared_.blocks;
  class_index& in = index_of(from);
  const bool guest = in.guests.size() != 0 && in.guests.contains(run);
  block_tree& listed = guest ? in.guests : in.runs;
  listed.remove(run);

  const std::uint64_t step = wanted.alignment * unit;
  const std::uint64_t skipped = (step - blocks[run].address % step) % step / unit;
  block_index taken = run;
  if (skipped != 0) {
    taken = cut(run, static_cast<std::uint32_t>(skipped));
    listed.insert(run);
  }
  const std::uint64_t left = blocks[taken].units - wanted.units;
  const bool useful =
      from == size_class::small || rules_.expandable ? left != 0 : left > large_tail;
  if (useful && rules_.splits) listed.insert(cut(taken, wanted.units));
  make_live(taken, wanted.stream);
  return taken;
}

void torch_segments::make_live(block_index index, stream_slot stream) noexcept {
  block& block = shared_.blocks[index];
  block.stream = stream;
  block.out = {};
  block.become_live();
  handed_out_ += block.size();
}

// --- Taking back --------------------------------------------------------------------------------

void torch_segments::free(block_index index, stamp freed) noexcept {
  block& back = shared_.blocks[index];
  const segment& home = segment_with(back.address);
  handed_out_ -= back.size();
  const bool done = shared_.order.completed(freed);
  const bool at_home = done || freed.stream == home.stream;
  back.become(block_kind::run);
  back.account = 0;
  back.stream = at_home ? home.stream : freed.stream;
  back.in = {};
  back.in.freed = done ? shared_.order.completed_epoch(home.stream) : freed.epoch;
  back.in.older = home.rank;
  settle(index, home);
}

void torch_segments::retire(stream_slot stream) noexcept {
  block_store& blocks = shared_.blocks;
  for (class_index& in : classes_) {
    for (block_index guest = in.guests.first(stream); guest != no_block;) {
      // Going home joins runs of another stream only, so the next guest stays.
      const block_index next = in.guests.next(guest);
      if (at_rest(blocks[guest])) {
        const segment& home = segment_with(blocks[guest].address);
        in.guests.remove(guest);
        blocks[guest].stream = home.stream;
        blocks[guest].in.freed = shared_.order.completed_epoch(home.stream);
        settle(guest, home);
      }
      guest = next;
    }
  }
}

block_index torch_segments::settle(block_index run, const segment& home) noexcept {
  block_store& blocks = shared_.blocks;
  if (const block_index next = blocks[run].after; may_join(run, next)) {
    unlist(next, home);
    absorb_next(run);
  }
  if (const block_index previous = blocks[run].before; may_join(previous, run)) {
    unlist(previous, home);
    absorb_next(previous);
    run = previous;
  }
  list(run, home);
  return run;
}

bool torch_segments::may_join(block_index a, block_index b) const noexcept {
  if (a == no_block || b == no_block) return false;
  const block& low = shared_.blocks[a];
  const block& high = shared_.blocks[b];
  return low.is() == high.is() && low.stream == high.stream &&
         (low.is() == block_kind::run || low.is() == block_kind::hole) &&
         can_join(low.units, high.units);
}

block_index torch_segments::cut(block_index index, unit_count units) noexcept {
  block_store& blocks = shared_.blocks;
  const block_index fresh = blocks.make();
  block& low = blocks[index];
  block& high = blocks[fresh];
  high.address = low.address + units * unit;
  high.units = low.units;
  high.units -= units;
  high.before = index;
  high.after = low.after;
  high.stream = low.stream;
  high.become(low.is());
  high.in = low.in;
  low.units = units;
  low.after = fresh;
  if (high.after != no_block) blocks[high.after].before = fresh;
  return fresh;
}

void torch_segments::absorb_next(block_index index) noexcept {
  block_store& blocks = shared_.blocks;
  block& low = blocks[index];
  const block_index absorbed = low.after;
  const block& high = blocks[absorbed];
  low.units += high.units;
  if (is_after(high.in.freed, low.in.freed)) low.in.freed = high.in.freed;
  low.after = high.after;
  if (low.after != no_block) blocks[low.after].before = index;
  blocks.recycle(absorbed);
}

void torch_segments::list(block_index run, const segment& home) noexcept {
  class_index& in = index_of(home.holds);
  const block& block = shared_.blocks[run];
  if (block.is() == block_kind::hole) return in.holes.insert(run);
  (block.stream == home.stream ? in.runs : in.guests).insert(run);
}

void torch_segments::unlist(block_index run, const segment& home) noexcept {
  class_index& in = index_of(home.holds);
  const block& block = shared_.blocks[run];
  if (block.is() == block_kind::hole) return in.holes.remove(run);
  (block.stream == home.stream ? in.runs : in.guests).remove(run);
}

bool torch_segments::at_rest(const block& run) const noexcept {
  return shared_.order.completed({run.stream, run.in.freed});
}

// --- What the rules forbid ----------------------------------------------------------------------

bool torch_segments::prefers_growth(const request& /*wanted*/) const { return true; }

result<block_index> torch_segments::rearrange(const request& /*wanted*/, reach /*whose*/,
                                              const context_scope& /*bound*/) {
  return no_block;
}

// --- What it tells ------------------------------------------------------------------------------

void torch_segments::emit(memory_event_kind kind, stream_slot stream, std::uint64_t address,
                          std::uint64_t size) const noexcept {
  shared_.emit({.kind = kind,
                .pool = pool_,
                .stream = shared_.order.id(stream),
                .address = address,
                .size = size});
}

std::uint64_t torch_segments::bound_to(stream_slot stream) const noexcept {
  std::uint64_t sum = 0;
  for (const class_index& in : classes_) {
    for (const block_tree* tree : {&in.runs, &in.guests}) {
      for (block_index run = tree->first(stream); run != no_block; run = tree->next(run)) {
        sum += shared_.blocks[run].size();
      }
    }
  }
  return sum;
}

std::uint64_t torch_segments::longest_fit(stream_slot stream) const noexcept {
  const auto longest = [&](size_class of) {
    const class_index& in = index_of(of);
    std::uint64_t units = 0;
    for (const block_tree* tree : {&in.runs, &in.guests}) {
      const block_index last = tree->last(stream);
      if (last != no_block) units = std::max<std::uint64_t>(units, shared_.blocks[last].units);
    }
    return units;
  };
  // A large run is never used for a small request, however little is left of it.
  const std::uint64_t large = longest(size_class::large);
  if (large > small_most) return large * unit;
  return std::min<std::uint64_t>(longest(size_class::small), small_most) * unit;
}

void torch_segments::describe(pool_snapshot& into) const {
  into.in_segments = !rules_.expandable;
  const auto describe_segment = [&](const segment& each) {
    for (block_index at = each.first; at != no_block; at = shared_.blocks[at].after) {
      const block& of = shared_.blocks[at];
      block_info info{};
      info.address = of.address;
      info.size = bytes{of.size()};
      info.state = state_of(of);
      info.stream = shared_.order.id(of.stream);
      info.pool = pool_;
      if (info.state == block_state::live) info.requested = bytes{of.size() - of.out.waste};
      into.blocks.push_back(info);
    }
    describe_memory(each, into);
  };
  for (const auto& [base, each] : segments_) describe_segment(each);
  // Unless the driver has it, and handed it out again.
  for (const auto& [base, each] : leaving_)
    if (block_over(base) == no_block) describe_segment(each);
}

block_index torch_segments::block_over(std::uint64_t address) const noexcept {
  const auto above = segments_.upper_bound(address);
  if (above == segments_.begin()) return no_block;
  const auto& [base, home] = *std::prev(above);
  if (address - base >= home.size) return no_block;
  block_index at = home.first;
  while (shared_.blocks[at].end() <= address) at = shared_.blocks[at].after;
  return at;
}

result<block_handles> torch_segments::handles_under(block_index index) const {
  if (!rules_.properties.posix_descriptor) return errc::not_supported;
  const std::uint64_t address = shared_.blocks[index].address;
  const auto& [base, home] = *std::prev(segments_.upper_bound(address));
  return block_handles{.handles = {home.memory}, .offset = bytes{address - base}};
}

std::size_t torch_segments::footprint() const noexcept {
  // A node of the map has three links and a colour besides what it holds.
  constexpr std::size_t node = sizeof(segment_map::value_type) + 4 * sizeof(void*);
  return sizeof(*this) + (segments_.size() + leaving_.size()) * node;
}

}}}  // namespace weir::v0::placement
