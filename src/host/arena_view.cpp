// SPDX-License-Identifier: Apache-2.0
// Counters, snapshots, observers and checks of a host arena.
#include <algorithm>
#include <new>

#include "base/host_memory.hpp"
#include "host/arena.hpp"

namespace weir { inline namespace v0 { namespace host {

using detail::mutex_lock;

namespace {

host_block_state state_of(const block& told) noexcept {
  switch (told.state) {
    case block_state::live:
      return host_block_state::live;
    case block_state::pending:
      return host_block_state::pending;
    default:
      return host_block_state::free;
  }
}

host_block_info describe(const block& told) {
  const bool live = told.state == block_state::live;
  const auto known = tag::numbered(told.tag);
  return {.address = told.address,
          .size = bytes{told.size},
          .requested = bytes{live ? told.requested : 0},
          .state = state_of(told),
          .tag = live && known ? *known : tag{}};
}

}  // namespace

host_arena_stats arena::stats() const {
  if (home_->forked()) return {};
  const mutex_lock lock{mutex_};
  host_arena_stats now = stats_;
  now.pending = bytes{freed_.bytes_pending()};
  now.free = now.pinned.current + now.pageable - now.allocated.current - now.pending;
  now.segments = fit_.segments().size();
  now.events = freed_.events_recorded();
  return now;
}

void arena::reset_peaks() {
  if (home_->forked()) return;
  const mutex_lock lock{mutex_};
  stats_.requested.reset_peak();
  stats_.allocated.reset_peak();
  stats_.pinned.reset_peak();
  stats_.blocks.reset_peak();
}

host_snapshot arena::snapshot() const {
  host_snapshot now;
  if (home_->forked()) return now;
  now.stats = stats();
  const mutex_lock lock{mutex_};
  for (const auto& each : fit_.segments()) {
    host_segment_info& told = now.segments.emplace_back(
        host_segment_info{.address = each->base(),
                          .size = bytes{each->size()},
                          .pinned = each->memory.origin != memory_origin::pageable,
                          .registered = each->memory.origin == memory_origin::registered,
                          .blocks = {}});
    for (const block* run = each->first; run != nullptr; run = run->after)
      told.blocks.push_back(describe(*run));
  }
  std::sort(now.segments.begin(), now.segments.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  return now;
}

result<void> arena::add_observer(event_sink& sink) try {
  if (home_->forked()) return detail::fork_error();
  const mutex_lock lock{mutex_};
  sinks_.add(sink);
  if (!sink.wants_existing()) return {};
  for (const auto& each : fit_.segments()) {
    sink.on_existing({.kind = memory_event_kind::reserve,
                      .device = device_.id(),
                      .address = each->base(),
                      .size = each->size()});
    for (const block* run = each->first; run != nullptr; run = run->after) {
      if (run->state != block_state::live) continue;
      sink.on_existing({.kind = memory_event_kind::allocate,
                        .tag = run->tag,
                        .device = device_.id(),
                        .address = run->address,
                        .size = run->requested,
                        .rounded = run->size});
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void arena::remove_observer(event_sink& sink) noexcept {
  if (home_->forked()) return;
  const mutex_lock lock{mutex_};
  sinks_.remove(sink);
}

std::string arena::check() const {
  const mutex_lock lock{mutex_};
  if (std::string wrong = fit_.check(); !wrong.empty()) return wrong;
  std::uint64_t live = 0;
  std::uint64_t pending = 0;
  std::uint64_t requested = 0;
  std::uint64_t held = 0;
  std::size_t blocks = 0;
  for (const auto& each : fit_.segments()) {
    held += each->size();
    for (const block* run = each->first; run != nullptr; run = run->after) {
      if (run->state == block_state::pending) pending += run->size;
      if (run->state != block_state::live) continue;
      if (live_.find(run->address) != run) return "a live block is not in the table";
      live += run->size;
      requested += run->requested;
      ++blocks;
    }
  }
  if (blocks != live_.size() || blocks != stats_.blocks.current) return "blocks are miscounted";
  if (live != stats_.allocated.current.count()) return "allocated is miscounted";
  if (requested != stats_.requested.current.count()) return "requested is miscounted";
  if (pending != freed_.bytes_pending()) return "pending is miscounted";
  if (held != (stats_.pinned.current + stats_.pageable).count()) return "pinned is miscounted";
  if (stats_.allocations != stats_.hits + stats_.misses) return "allocations != hits + misses";
  return {};
}

}}}  // namespace weir::v0::host
