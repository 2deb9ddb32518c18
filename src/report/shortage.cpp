// Out of memory, explained.
#include "report/shortage.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "weir/base/bytes.hpp"

namespace weir::inline v0::report {

namespace {

std::string text(std::uint64_t size) { return to_string(bytes{size}); }

holes find_holes(const story& what, std::uint32_t event) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;
  for (const span& s : what.spans) {
    if (s.at(event)) spans.emplace_back(s.address, s.address + s.size);
  }
  for (const life& b : what.blocks) {
    if (b.placed && b.at(event)) blocks.emplace_back(b.address, b.address + b.rounded);
  }
  std::sort(spans.begin(), spans.end());
  std::sort(blocks.begin(), blocks.end());
  holes out;
  std::uint64_t open_end = 0;  // where the hole that is being measured ends so far
  std::uint64_t open = 0;
  const auto hole = [&](std::uint64_t from, std::uint64_t to) {
    if (from >= to) return;
    const bool goes_on = out.pieces != 0 && from == open_end;  // reservations that touch
    open = goes_on ? open + (to - from) : to - from;
    out.pieces += goes_on ? 0 : 1;
    out.bytes += to - from;
    out.longest = std::max(out.longest, open);
    open_end = to;
  };
  auto block = blocks.begin();
  for (const auto& [from, to] : spans) {
    std::uint64_t at = from;
    while (block != blocks.end() && block->second <= from) ++block;
    for (auto inside = block; inside != blocks.end() && inside->first < to; ++inside) {
      hole(at, std::min(inside->first, to));
      at = std::max(at, inside->second);
    }
    hole(at, to);
  }
  return out;
}

std::string judge(const shortage& of, const recording& from) {
  const std::uint64_t capacity = from.device_capacity;
  if (of.limit != 0 && of.live + of.asked > of.limit) {
    return fmt::format(
        "The limit of {} is in the way: {} were live and {} more were asked for. Raise the limit "
        "or free something first.",
        text(of.limit), text(of.live), text(of.asked));
  }
  if (capacity != 0 && of.rounded + of.asked > capacity) {
    return fmt::format(
        "The program needs more than the device has: {} were live and {} more were asked for, of "
        "{}. No allocator can help; use less at this moment.",
        text(of.rounded), text(of.asked), text(capacity));
  }
  if (of.free.bytes >= of.asked && of.reserved != 0) {
    return fmt::format(
        "Fragmentation: {} were reserved and in no block, but in {} pieces, the longest {}; {} "
        "were asked for in one. The pages below show which blocks hold the pieces apart.",
        text(of.free.bytes), of.free.pieces, text(of.free.longest), text(of.asked));
  }
  if (capacity != 0 && of.reserved != 0) {
    return fmt::format(
        "{} were reserved of {}, {} of it in live blocks. For {} more the rest of the device had "
        "to be free; other allocators or processes held at least {} of it.",
        text(of.reserved), text(capacity), text(of.rounded), text(of.asked),
        text(capacity - std::min(capacity, of.reserved + of.asked)));
  }
  return fmt::format(
      "{} were live and {} more were asked for. The recording does not say how much memory the "
      "device had, so whether it was full or in fragments cannot be told.",
      text(of.live), text(of.asked));
}

shortage explain(const recording& from, const story& what, std::uint32_t event,
                 std::uint64_t limit) {
  const trace_event& failed = from.events[event];
  shortage out;
  out.event = event;
  out.asked = failed.size;
  out.stream = failed.stream;
  out.live = what.live[event];
  // What a placement reserved is another allocator's story.
  const bool own = from.real_addresses && !what.reserved.empty();
  if (own) out.reserved = what.reserved[event];
  out.limit = limit;
  std::map<std::uint16_t, std::uint64_t> tags;
  for (const life& block : what.blocks) {
    if (!block.at(event)) continue;
    out.rounded += block.rounded;
    tags[block.tag] += block.size;
  }
  out.tags.assign(tags.begin(), tags.end());
  std::stable_sort(out.tags.begin(), out.tags.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (out.tags.size() > 5) out.tags.resize(5);
  if (own) out.free = find_holes(what, event);
  out.verdict = judge(out, from);
  return out;
}

}  // namespace

std::vector<shortage> explain_shortages(const recording& from, const story& what,
                                        std::size_t most) {
  std::vector<shortage> out;
  std::uint64_t limit = 0;
  for (std::uint32_t i = 0; i < from.events.size() && out.size() < most; ++i) {
    const trace_event& event = from.events[i];
    if (event.kind == trace_kind::limit && event.tag == 0) limit = event.size;
    if (event.kind == trace_kind::out_of_memory) out.push_back(explain(from, what, i, limit));
  }
  return out;
}

}  // namespace weir::inline v0::report
