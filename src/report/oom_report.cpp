// Out of memory, explained.
#include "report/oom_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "weir/base/bytes.hpp"

namespace weir::inline v0::report {

namespace {

std::string text(std::uint64_t size) { return to_string(bytes{size}); }

holes find_holes(const report::history& history, std::uint32_t event) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> mappings;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;
  for (const mapped_range& mapping : history.mappings) {
    if (mapping.at(event)) mappings.emplace_back(mapping.address, mapping.address + mapping.size);
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

std::string verdict_of(const oom_report& report, const recording& recording) {
  const std::uint64_t capacity = recording.device_capacity.count();
  if (report.limit != 0 && report.live + report.requested > report.limit) {
    return fmt::format(
        "The limit of {} is in the way: {} were live and {} more were asked for. Raise the limit "
        "or free something first.",
        text(report.limit), text(report.live), text(report.requested));
  }
  if (capacity != 0 && report.rounded + report.requested > capacity) {
    return fmt::format(
        "The program needs more than the device has: {} were live and {} more were asked for, of "
        "{}. No allocator can help; use less at this moment.",
        text(report.rounded), text(report.requested), text(capacity));
  }
  if (report.free.bytes >= report.requested && report.reserved != 0) {
    return fmt::format(
        "Fragmentation: {} were reserved and in no block, but in {} pieces, the longest {}; {} "
        "were asked for in one. The pages below show which blocks hold the pieces apart.",
        text(report.free.bytes), report.free.pieces, text(report.free.longest),
        text(report.requested));
  }
  if (capacity != 0 && report.reserved != 0) {
    return fmt::format(
        "{} were reserved of {}, {} of it in live blocks. For {} more the rest of the device had "
        "to be free; other allocators or processes held at least {} of it.",
        text(report.reserved), text(capacity), text(report.rounded), text(report.requested),
        text(capacity - std::min(capacity, report.reserved + report.requested)));
  }
  return fmt::format(
      "{} were live and {} more were asked for. The recording does not say how much memory the "
      "device had, so whether it was full or in fragments cannot be told.",
      text(report.live), text(report.requested));
}

oom_report explain(const recording& recording, const report::history& history, std::uint32_t event,
                   std::uint64_t limit) {
  const trace_event& failed = recording.events[event];
  oom_report out;
  out.event = event;
  out.requested = failed.size;
  out.stream = failed.stream;
  out.live = history.live[event];
  // What a placement reserved is another allocator's.
  const bool is_own = recording.real_addresses && !history.reserved.empty();
  if (is_own) out.reserved = history.reserved[event];
  out.limit = limit;
  std::map<std::uint16_t, std::uint64_t> tags;
  for (const block_lifetime& block : history.blocks) {
    if (!block.at(event)) continue;
    out.rounded += block.rounded;
    tags[block.tag] += block.size;
  }
  out.tags.assign(tags.begin(), tags.end());
  std::stable_sort(out.tags.begin(), out.tags.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (out.tags.size() > 5) out.tags.resize(5);
  if (is_own) out.free = find_holes(history, event);
  out.verdict = verdict_of(out, recording);
  return out;
}

}  // namespace

std::vector<oom_report> explain_ooms(const recording& recording, const report::history& history,
                                     std::size_t most) {
  std::vector<oom_report> out;
  std::uint64_t limit = 0;
  for (std::uint32_t i = 0; i < recording.events.size() && out.size() < most; ++i) {
    const trace_event& event = recording.events[i];
    if (event.kind == trace_kind::limit && event.tag == 0) limit = event.size;
    if (event.kind == trace_kind::out_of_memory)
      out.push_back(explain(recording, history, i, limit));
  }
  return out;
}

}  // namespace weir::inline v0::report
