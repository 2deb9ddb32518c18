// Stats and snapshots: all caches stopped for a moment, everything counted.
#include <algorithm>

#include "heap/allocator_state.hpp"

namespace weir::inline v0::heap {
namespace {

/// reserved is known to the stores; the rest follows from the ledger's figures.
void complete(memory_stats& sums) { sums.cached = sums.reserved.current - sums.active.current; }

}  // namespace

memory_stats allocator_state::totals() const noexcept {
  memory_stats sums;
  accounts_.total().fill(sums);
  sums.reserved = {core_.reserved, core_.reserved_peak};
  complete(sums);
  std::size_t footprint = sizeof *this + blocks_.footprint() + table_.footprint() +
                          caches_.footprint() + order_.footprint() + accounts_.footprint() +
                          pending_.footprint();
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    footprint += each->memory->footprint();
    for (stream_slot slot = 1; slot <= order_.count(); ++slot)
      sums.stream_bound += each->memory->bound_to(slot);
  }
  caches_.for_each([&](const thread_cache& each) { sums.thread_cached += each.held(); });
  sums.handles_created = core_.handles_created;
  sums.handles_moved = core_.handles_moved;
  sums.handles_returned = core_.handles_returned;
  sums.handles_released = core_.handles_released;
  sums.waits = order_.waits_queued();
  sums.events = order_.events_recorded();
  sums.metadata = footprint;
  return sums;
}

memory_stats allocator_state::pool_totals(const pool_state& of) const noexcept {
  memory_stats sums;
  if (const ledger* const book = accounts_.of(of.id); book != nullptr) book->fill(sums);
  if (of.memory == nullptr) return sums;
  sums.reserved = {of.memory->reserved(), of.memory->reserved_peak()};
  complete(sums);
  for (stream_slot slot = 1; slot <= order_.count(); ++slot)
    sums.stream_bound += of.memory->bound_to(slot);
  sums.metadata = of.memory->footprint();
  if (of.id == pool_id{})
    caches_.for_each([&](const thread_cache& each) { sums.thread_cached += each.held(); });
  return sums;
}

memory_stats allocator_state::tag_totals(tag of) const noexcept {
  memory_stats sums;
  if (const ledger* const book = accounts_.of(of); book != nullptr) book->fill(sums);
  sums.reserved = sums.active;
  return sums;
}

memory_stats allocator_state::stats() {
  if (!usable()) return {};
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  return totals();
}

memory_stats allocator_state::stats(tag of) {
  if (!usable()) return {};
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  return tag_totals(of);
}

memory_stats allocator_state::stats(pool_id of) {
  if (!usable()) return {};
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  const pool_state* const found = find_pool(of);
  return found == nullptr ? memory_stats{} : pool_totals(*found);
}

std::vector<tag_stats> allocator_state::tags_in_use() const {
  std::vector<tag_stats> all;
  for (std::size_t i = 0; i < accounts_.tags(); ++i) {
    const auto which = tag::numbered(static_cast<std::uint16_t>(i));
    if (!which) continue;
    const ledger* const book = accounts_.of(*which);
    if (book == nullptr || (book->allocations == 0 && book->failures == 0)) continue;
    all.push_back({*which, tag_totals(*which)});
  }
  std::stable_sort(all.begin(), all.end(), [](const tag_stats& a, const tag_stats& b) {
    return a.stats.allocated.current > b.stats.allocated.current;
  });
  return all;
}

std::vector<tag_stats> allocator_state::stats_by_tag() {
  if (!usable()) return {};
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  return tags_in_use();
}

void allocator_state::reset_peaks() {
  if (!usable()) return;
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  accounts_.reset_peaks();
  core_.reserved_peak = core_.reserved;
  for (const auto& each : pools_)
    if (each->memory != nullptr) each->memory->reset_peak();
}

allocator_snapshot allocator_state::snapshot() {
  allocator_snapshot picture;
  picture.device = core_.device.id();
  if (!usable()) return picture;
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  picture.stats = totals();
  for (const auto& each : pools_) describe(*each, picture.pools.emplace_back());
  return picture;
}

pool_snapshot allocator_state::snapshot(pool_id of) {
  pool_snapshot picture;
  if (!usable()) return picture;
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  if (const pool_state* const found = find_pool(of); found != nullptr) describe(*found, picture);
  return picture;
}

void allocator_state::describe(const pool_state& from, pool_snapshot& into) const {
  into.id = from.id;
  into.name = from.name;
  into.stats = pool_totals(from);
  if (from.memory == nullptr) return;
  from.memory->describe(into);
  for (block_info& piece : into.blocks) {
    if (piece.state != block_state::live) continue;
    const block& what = blocks_[table_.find(piece.address)];
    piece.requested = bytes{what.size() - what.out.waste};
    piece.tag = accounts_.tag_of(what.account);
  }
}

std::string allocator_state::check() {
  if (!usable()) return {};
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  std::string wrong;
  const auto expect = [&](bool holds, std::string_view what) {
    if (!holds) wrong.append(what).append("\n");
  };
  const memory_stats all = totals();
  expect(all.requested.current <= all.allocated.current, "requested > allocated");
  expect(all.allocated.current <= all.active.current, "allocated > active");
  expect(all.active.current <= all.reserved.current, "active > reserved");
  expect(all.requested.peak <= all.allocated.peak, "peak of requested > allocated");
  expect(all.allocated.peak <= all.active.peak, "peak of allocated > active");
  expect(all.active.peak <= all.reserved.peak, "peak of active > reserved");
  expect(all.active_requested.current <= all.active.current, "requested of active > active");
  expect(all.active_requested.peak <= all.active.peak, "peak of requested of active > active");
  expect(all.allocations - all.frees == all.blocks.current, "allocations - frees != blocks");
  std::uint64_t handed_out = 0;
  std::uint64_t reserved = 0;
  std::uint64_t by_pool = 0;
  std::uint64_t blocks = 0;
  for (const auto& each : pools_) {
    by_pool += accounts_.of(each->id)->allocated.current;
    blocks += each->blocks;
    if (each->memory == nullptr) continue;
    handed_out += each->memory->handed_out();
    reserved += each->memory->reserved();
    wrong += each->memory->check();
  }
  expect(handed_out == all.active.current + all.thread_cached,
         "what the stores handed out is not what is active or cached by threads");
  expect(reserved == all.reserved.current, "pools do not add up to reserved");
  expect(by_pool == all.allocated.current, "pools do not add up to allocated");
  expect(blocks == table_.size(), "the address table and the pools differ in blocks");
  std::uint64_t by_tag = 0;
  std::uint64_t requested_by_tag = 0;
  for (std::size_t i = 0; i < accounts_.tags(); ++i) {
    const auto which = tag::numbered(static_cast<std::uint16_t>(i));
    const ledger* const book = which ? accounts_.of(*which) : nullptr;
    if (book == nullptr) continue;
    by_tag += book->allocated.current;
    requested_by_tag += book->requested.current;
  }
  expect(by_tag == all.allocated.current, "tags do not add up to allocated");
  expect(requested_by_tag == all.requested.current, "tags do not add up to requested");
  return wrong;
}

}  // namespace weir::inline v0::heap
