// SPDX-License-Identifier: Apache-2.0
// Out of memory, explained.
#include "report/oom_report.hpp"

#include <algorithm>
#include <map>

#include "observe/shortage.hpp"

namespace weir { inline namespace v0 { namespace report {

namespace {

/// In the pool that the request was for. What other pools have left could not serve it: what can
/// be taken from them is released before a request fails.
holes find_holes(const report::history& history, std::uint32_t event, std::uint16_t pool) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> mappings;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;
  for (const mapped_range& mapping : history.mappings) {
    if (mapping.at(event) && mapping.pool == pool)
      mappings.emplace_back(mapping.address, mapping.address + mapping.size);
  }
  for (const block_lifetime& lifetime : history.blocks) {
    if (lifetime.placed && lifetime.at(event))
      blocks.emplace_back(lifetime.address, lifetime.address + lifetime.rounded);
  }
  std::sort(mappings.begin(), mappings.end());
  std::sort(blocks.begin(), blocks.end());
  holes out;
  std::uint64_t open_end = 0;  // where the hole that is being measured ends so far
  std::uint64_t open = 0;
  const auto add_hole = [&](std::uint64_t from, std::uint64_t to) {
    if (from >= to) return;
    const bool goes_on = out.pieces != 0 && from == open_end;  // reservations that touch
    open = goes_on ? open + (to - from) : to - from;
    out.pieces += goes_on ? 0 : 1;
    out.bytes += to - from;
    out.longest = std::max(out.longest, open);
    open_end = to;
  };
  auto block = blocks.begin();
  for (const auto& [from, to] : mappings) {
    std::uint64_t position = from;
    while (block != blocks.end() && block->second <= from) ++block;
    for (auto overlap = block; overlap != blocks.end() && overlap->first < to; ++overlap) {
      add_hole(position, std::min(overlap->first, to));
      position = std::max(position, overlap->second);
    }
    add_hole(position, to);
  }
  return out;
}

/// The limits in force: of each tag, and under 0 of all memory.
using limit_table = std::map<std::uint16_t, std::uint64_t>;

std::uint64_t limit_of(const limit_table& all, std::uint16_t tag) {
  const auto entry = all.find(tag);
  return entry == all.end() ? observe::shortage::no_limit : entry->second;
}

std::string verdict_of(const oom_report& report, const recording& recording,
                       const trace_event& failed, std::uint64_t tag_live,
                       const limit_table& limits) {
  observe::shortage about{.requested = report.requested,
                          .live = report.rounded,
                          .reserved = report.reserved,
                          .free = report.free.bytes,
                          .longest = report.free.longest,
                          .limit = limit_of(limits, 0),
                          .device_total = recording.device_capacity.count(),
                          .failed = true};
  if (failed.tag != 0 && failed.tag < recording.tags.size()) {
    about.tag = recording.tags[failed.tag];
    about.tag_live = tag_live;
    about.tag_limit = limit_of(limits, failed.tag);
  }
  std::string verdict = observe::verdict_of(about);
  if (observe::obstacle_of(about) == observe::obstacle::fragments &&
      about.longest < about.requested)
    verdict += " The pages below show which blocks separate the pieces.";
  return verdict;
}

oom_report explain(const recording& recording, const report::history& history, std::uint32_t event,
                   const limit_table& limits) {
  const trace_event& failed = recording.events[event];
  oom_report out;
  out.event = event;
  out.requested = failed.size;
  out.stream = failed.stream;
  out.live = history.live[event];
  // What a placement reserved is another allocator's.
  const bool is_own = recording.real_addresses && !history.reserved.empty();
  if (is_own) out.reserved = history.reserved[event];
  const std::uint64_t limit = limit_of(limits, 0);
  out.limit = limit == observe::shortage::no_limit ? 0 : limit;
  std::map<std::uint16_t, std::uint64_t> tags;
  std::uint64_t tag_live = 0;
  for (const block_lifetime& block : history.blocks) {
    if (!block.at(event)) continue;
    out.rounded += block.rounded;
    tags[block.tag] += block.size;
    if (block.tag == failed.tag) tag_live += block.rounded;
  }
  out.tags.assign(tags.begin(), tags.end());
  std::stable_sort(out.tags.begin(), out.tags.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (out.tags.size() > 5) out.tags.resize(5);
  if (is_own) out.free = find_holes(history, event, failed.pool);
  out.verdict = verdict_of(out, recording, failed, tag_live, limits);
  return out;
}

}  // namespace

std::vector<oom_report> explain_ooms(const recording& recording, const report::history& history,
                                     std::size_t most) {
  std::vector<oom_report> out;
  limit_table limits;
  for (std::uint32_t i = 0; i < recording.events.size() && out.size() < most; ++i) {
    const trace_event& event = recording.events[i];
    if (event.kind == trace_kind::limit) limits[event.tag] = event.size;
    if (event.kind == trace_kind::out_of_memory)
      out.push_back(explain(recording, history, i, limits));
  }
  return out;
}

}}}  // namespace weir::v0::report
