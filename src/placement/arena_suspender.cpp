// SPDX-License-Identifier: Apache-2.0
// An arena whose memory is away: what goes, what comes back, and where everything is meanwhile.
#include <algorithm>
#include <utility>

#include "placement/arena_suspender.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Live bytes with less than this between them are saved together: the copy of the gap costs less
/// than another copy.
constexpr std::uint64_t least_gap = std::uint64_t{256} << 10;

}  // namespace

/// By handle: the block that its place begins in, or no_block if something of it is handed out.
std::vector<block_index> arena_suspender::free_places() const {
  std::vector<block_index> begins(core_.slots.handle_count(), no_block);
  std::vector<bool> pinned(core_.slots.handle_count());
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    if (there.is() == block_kind::hole || there.is() == block_kind::stuck) continue;
    for (std::uint64_t i = core_.slots.slot_of(there.address);
         i <= core_.slots.slot_of(there.end() - 1);) {
      const handle_number number = core_.slots[i].current;
      const handle_record& under = core_.slots.handle(number);
      if (begins[number] == no_block) begins[number] = at;
      if (there.is() != block_kind::run) pinned[number] = true;
      i = under.slot + under.slots;
    }
  }
  for (std::size_t i = 0; i < begins.size(); ++i)
    if (pinned[i]) begins[i] = no_block;
  return begins;
}

/// Every handle at its place.
void arena_suspender::add_places(suspension& plan) const {
  core_.slots.each_place([&](std::uint64_t at, const handle_record& placed) {
    plan.places.push_back({core_.slots.address_of(at), bytes{core_.slots.bytes_of(placed.slots)},
                           placed.memory, !placed.away});
  });
}

suspension arena_suspender::plan_suspend() const {
  suspension plan{.places = {}, .left = {}, .contents = {}, .properties = core_.properties};
  core_.slots.each_retained([&](std::uint64_t at, handle_number number) {
    const bytes size{core_.slots.bytes_of(core_.slots.handle(number).slots)};
    plan.left.push_back({core_.slots.address_of(at), size, true});
  });
  add_places(plan);
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    if (!there.is_live()) continue;
    auto* const last = plan.contents.empty() ? nullptr : &plan.contents.back();
    const std::uint64_t end = last == nullptr ? 0 : last->address + last->size;
    // A hole, which cannot be copied, is at least a slot: no gap is as long.
    if (last != nullptr && there.address - end < least_gap) {
      last->size = there.end() - last->address;
    } else {
      plan.contents.push_back({there.address, there.size()});
    }
  }
  return plan;
}

result<suspension> arena_suspender::plan_resume() {
  const std::vector<block_index> begins = free_places();
  core_.slots.prepare_erase();
  const auto is_dropped = [&](handle_number number) {
    const handle_record& each = core_.slots.handle(number);
    return !core_.rules.resumes_free && begins[number] != no_block && each.away &&
           each.memory.handle == 0;
  };
  std::vector<handle_number> dropped;
  for (handle_number number = 1; number < core_.slots.handle_count(); ++number)
    if (is_dropped(number)) dropped.push_back(number);
  suspension plan{.places = {}, .left = {}, .contents = {}, .properties = core_.properties};
  plan.places.reserve(core_.slots.handle_count());
  if (!core_.shared.blocks.prepare(2 * dropped.size())) return no_host_memory();
  // From high addresses to low: cutting leaves lower records as they are.
  std::sort(dropped.begin(), dropped.end(), [&](handle_number a, handle_number b) {
    return core_.slots.handle(a).slot > core_.slots.handle(b).slot;
  });
  // Nothing was mapped to their places since the last use of them ended.
  for (const handle_number number : dropped) core_.drop_handle(number, begins[number]);
  core_.drop_trailing_holes();
  add_places(plan);
  return plan;
}

void arena_suspender::apply(const suspension& plan) noexcept {
  for (const left_mapping& each : plan.left) {
    const std::uint64_t first = core_.slots.slot_of(each.address);
    const handle_number number = core_.slots[first].retained;
    if (each.mapped || number == 0) continue;
    core_.slots.drop_retained(first);
  }
  for (const suspended_place& each : plan.places) {
    const handle_number number = core_.slots[core_.slots.slot_of(each.address)].current;
    const bool had_memory = core_.slots.handle(number).memory.handle != 0;
    core_.slots.set_memory(number, each.memory, !each.mapped);
    if (had_memory == each.has_memory()) continue;
    if (had_memory) {
      host_.count_released(each.size.count());
      ++core_.shared.handles_released;
    } else {
      host_.count_created(each.size.count());
      ++core_.shared.handles_created;
    }
    core_.shared.emit({.kind = had_memory ? memory_event_kind::release : memory_event_kind::reserve,
                       .pool = core_.pool,
                       .address = each.address,
                       .size = each.size.count()});
  }
  core_.runs.note_change();
}

std::uint64_t arena_suspender::missing_bytes() const noexcept {
  std::uint64_t total = 0;
  std::uint64_t counted = 0;  // slots up to here
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    const bool stays_away = (there.is() == block_kind::run && !core_.rules.resumes_free) ||
                            there.is() == block_kind::hole || there.is() == block_kind::stuck;
    if (stays_away) continue;
    for (std::uint64_t i = std::max(counted, core_.slots.slot_of(there.address));
         i <= core_.slots.slot_of(there.end() - 1); i = counted) {
      const handle_record& under = core_.slots.handle_at(i);
      counted = under.slot + under.slots;
      if (under.memory.handle == 0) total += core_.slots.bytes_of(under.slots);
    }
  }
  return total;
}

}}}  // namespace weir::v0::placement
