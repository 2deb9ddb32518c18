// An arena whose memory is away: what goes, what comes back, and where everything is meanwhile.
#include <algorithm>
#include <utility>

#include "placement/arena.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Live bytes with less than this between them are saved together: the copy of the gap costs less
/// than another copy.
constexpr std::uint64_t least_gap = std::uint64_t{256} << 10;

}  // namespace

/// By handle: the block that its place begins in, or no_block if something of it is handed out.
std::vector<block_index> arena::free_places() const {
  std::vector<block_index> begins(handles_.size(), no_block);
  std::vector<bool> pinned(handles_.size());
  for (block_index at = first_; at != no_block; at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    if (there.is() == block_kind::hole || there.is() == block_kind::stuck) continue;
    for (std::uint64_t i = slot_of(there.address); i <= slot_of(there.end() - 1);) {
      const handle_number number = slots_[i].current;
      const handle& under = handles_[number];
      if (begins[number] == no_block) begins[number] = at;
      if (there.is() != block_kind::run) pinned[number] = true;
      i = under.slot + under.slots;
    }
  }
  for (std::size_t i = 0; i < begins.size(); ++i)
    if (pinned[i]) begins[i] = no_block;
  return begins;
}

result<suspension> arena::plan_suspend() const {
  suspension plan{.places = {}, .left = {}, .contents = {}, .properties = properties_};
  for (std::uint64_t i = 0; i < slots_.size(); ++i) {
    const slot& there = slots_[i];
    if (there.retained != 0 && there.retained_offset == 0)
      plan.left.push_back(
          {address_of(i), bytes{handles_[there.retained].slots * slot_size_}, true});
    const handle& placed = handles_[there.current];
    if (there.current == 0 || placed.slot != i) continue;
    plan.places.push_back(
        {address_of(i), bytes{placed.slots * slot_size_}, placed.memory, !placed.away});
  }
  for (block_index at = first_; at != no_block; at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    if (there.is() != block_kind::live) continue;
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

result<suspension> arena::plan_resume() {
  const std::vector<block_index> begins = free_places();
  spare_handles_.reserve(handles_.size());
  const auto is_dropped = [&](std::size_t number) {
    const handle& each = handles_[number];
    return !rules_.resumes_free && begins[number] != no_block && each.away &&
           each.memory.handle == 0;
  };
  std::vector<handle_number> dropped;
  for (std::size_t number = 1; number < handles_.size(); ++number)
    if (is_dropped(number)) dropped.push_back(static_cast<handle_number>(number));
  suspension plan{.places = {}, .left = {}, .contents = {}, .properties = properties_};
  plan.places.reserve(handles_.size());
  if (!shared_.blocks.prepare(2 * dropped.size())) return no_host_memory();
  // From high addresses to low: cutting leaves lower records as they are.
  std::sort(dropped.begin(), dropped.end(),
            [&](handle_number a, handle_number b) { return handles_[a].slot > handles_[b].slot; });
  for (const handle_number number : dropped) {
    const handle gone = handles_[number];
    leave_hole(number, begins[number], {});  // nothing was mapped there since its last use ended
    for (std::uint32_t i = gone.slot; i < gone.slot + gone.slots; ++i) slots_[i] = {};
    handles_[number] = {};
    spare_handles_.push_back(number);
  }
  drop_trailing_holes();
  for (std::uint64_t i = 0; i < slots_.size(); ++i) {
    const handle& placed = handles_[slots_[i].current];
    if (slots_[i].current == 0 || placed.slot != i) continue;
    plan.places.push_back(
        {address_of(i), bytes{placed.slots * slot_size_}, placed.memory, !placed.away});
  }
  return plan;
}

void arena::apply(const suspension& plan, bool suspended) noexcept {
  for (const left_mapping& each : plan.left) {
    const std::uint64_t first = slot_of(each.address);
    const handle_number number = slots_[first].retained;
    if (each.mapped || number == 0) continue;
    for (std::uint64_t i = first; i < first + handles_[number].slots; ++i) {
      slots_[i].retained = 0;
      slots_[i].retained_offset = 0;
    }
    --handles_[number].retained;
  }
  for (const suspended_place& each : plan.places) {
    handle& placed = handles_[slots_[slot_of(each.address)].current];
    const bool had_memory = placed.memory.handle != 0;
    placed.memory = each.memory;
    placed.away = !each.mapped;
    if (had_memory == each.has_memory()) continue;
    if (had_memory) {
      remove_reserved(each.size.count());
      ++shared_.handles_released;
    } else {
      add_reserved(each.size.count());
      ++shared_.handles_created;
    }
    shared_.emit({.kind = had_memory ? memory_event_kind::release : memory_event_kind::reserve,
                  .pool = pool_,
                  .address = each.address,
                  .size = each.size.count()});
  }
  suspended_ = suspended;
  seen_.holds = false;
}

std::uint64_t arena::suspended_bytes() const noexcept {
  if (!suspended_) return 0;
  std::uint64_t total = 0;
  std::uint64_t counted = 0;  // slots up to here
  for (block_index at = first_; at != no_block; at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    const bool stays_away = (there.is() == block_kind::run && !rules_.resumes_free) ||
                            there.is() == block_kind::hole || there.is() == block_kind::stuck;
    if (stays_away) continue;
    for (std::uint64_t i = std::max(counted, slot_of(there.address)); i <= slot_of(there.end() - 1);
         i = counted) {
      const handle& under = handles_[slots_[i].current];
      counted = under.slot + under.slots;
      if (under.memory.handle == 0) total += under.slots * slot_size_;
    }
  }
  return total;
}

}}}  // namespace weir::v0::placement
