// SPDX-License-Identifier: Apache-2.0
// The counters of an allocator as text.
#include "weir/observe/stats.hpp"

#include "base/member_list.hpp"

namespace weir { inline namespace v0 {

std::string to_string(const gauge& count) {
  return std::to_string(count.current) + " (peak " + std::to_string(count.peak) + ')';
}

std::string to_string(const byte_gauge& size) {
  return to_string(size.current) + " (peak " + to_string(size.peak) + ')';
}

std::string to_string(const memory_stats& stats) {
  detail::member_list members;
  members.add("requested", stats.requested)
      .add("allocated", stats.allocated)
      .add("active", stats.active)
      .add("reserved", stats.reserved)
      .add("blocks", stats.blocks)
      .next_line()
      .add("active_requested", stats.active_requested)
      .add("active_blocks", stats.active_blocks)
      .next_line()
      .add("cached", stats.cached)
      .add("thread_cached", stats.thread_cached)
      .add("pending", stats.pending)
      .add("stream_bound", stats.stream_bound)
      .next_line()
      .add("allocations", stats.allocations)
      .add("frees", stats.frees)
      .add("hits", stats.hits)
      .add("heap_hits", stats.heap_hits)
      .add("misses", stats.misses)
      .add("failures", stats.failures)
      .next_line()
      .add("handles_created", stats.handles_created)
      .add("handles_moved", stats.handles_moved)
      .add("handles_returned", stats.handles_returned)
      .add("handles_released", stats.handles_released)
      .add("waits", stats.waits)
      .add("events", stats.events)
      .add("metadata", stats.metadata)
      .next_line()
      .add("suspended", stats.suspended)
      .add("backup", stats.backup)
      .add("reserved_and_suspended", stats.reserved_and_suspended);
  return std::move(members).text();
}

}}  // namespace weir::v0
