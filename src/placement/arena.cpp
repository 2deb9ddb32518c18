// An arena: room in what is free as it lies, and frees.
#include "placement/arena.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace placement {

arena::arena(placement_context& shared, pool_id pool, growth_rules rules, address_range range,
             std::uint64_t slot_size, physical_properties properties)
    : backing_store{shared, pool},
      range_{std::move(range)},
      core_{.shared = shared,
            .pool = pool,
            .rules = rules,
            .properties = properties,
            .slots = {range_.base(), range_.size().count(), slot_size},
            .runs = {shared.blocks, shared.order, range_.base()}},
      usual_{core_.runs, rules.lowest_up_to},
      careful_{shared, core_.runs, core_.slots, usual_},
      planned_{core_.runs, core_.slots, careful_},
      planner_{core_, planned_, *this} {}

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

// --- Handing out and taking back -----------------------------------------------------------------

block_index arena::hand_out(block_index index, const request& wanted) noexcept {
  block& fresh = shared_.blocks[index];
  fresh.become(block_kind::live);
  fresh.stream = wanted.stream;
  fresh.out = {};
  handed_out_ += fresh.size();
  peak_handed_out_ = std::max(peak_handed_out_, handed_out_);
  planned_.handed_out(fresh);
  return index;
}

block_index arena::take(const free_place& place, const request& wanted) noexcept {
  if (place.first == no_block || !shared_.blocks.prepare(2)) return no_block;
  if (!place.over_runs)
    return hand_out(core_.runs.carve(place.first, place.start, wanted.units), wanted);
  const std::uint64_t end = place.start + wanted.units * unit;
  return hand_out(core_.runs.cut(place.first, place.start, end), wanted);
}

result<block_index> arena::fit_at(std::uint64_t address, const request& wanted) {
  const std::uint64_t end = address + wanted.units * unit;
  const block_index first = block_over(address);
  for (block_index at = first;; at = shared_.blocks[at].after) {
    if (at == no_block || shared_.blocks[at].is() == block_kind::hole)
      return error{.code = errc::foreign_pointer, .detail = "no memory of the pool lies there"};
    if (!core_.runs.usable(shared_.blocks[at], wanted.stream, reach::usable))
      return error{.code = errc::not_ready, .detail = "not all of it is free for the stream"};
    if (shared_.blocks[at].end() >= end) break;
  }
  if (!shared_.blocks.prepare(2)) return no_host_memory();
  return hand_out(core_.runs.cut(first, address, end), wanted);
}

void arena::free(block_index index, stamp freed) noexcept {
  const block& gone = shared_.blocks[index];
  planned_.freed(gone);
  handed_out_ -= gone.size();
  core_.runs.free(index, freed);
}

}}}  // namespace weir::v0::placement
