// SPDX-License-Identifier: Apache-2.0
// Finding a recording's peak, and comparing what two of them held there.
#include "replay/diff.hpp"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_map>

#include "formats/frames.hpp"
#include "formats/labels.hpp"
#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

/// A walk through a recording that knows at every event which blocks are alive.
class live_walk {
 public:
  explicit live_walk(const recording& recording) : recording_{recording} {}

  /// Plays the first `count` events; live() is then what is alive.
  void advance_to(std::size_t count) {
    for (; position_ < count; ++position_) apply(recording_.events[position_]);
  }
  [[nodiscard]] const std::unordered_map<std::uint64_t, const trace_event*>& live() const {
    return live_;
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void apply(const trace_event& event) {
    const bool begins = event.kind == trace_kind::allocate;
    if (!begins && event.kind != trace_kind::deallocate) return;
    if (const auto old = live_.find(event.address); old != live_.end()) {
      bytes_ -= old->second->size;
      live_.erase(old);
    }
    if (!begins) return;
    live_.emplace(event.address, &event);
    bytes_ += event.size;
  }

  const recording& recording_;
  std::size_t position_ = 0;
  std::uint64_t bytes_ = 0;
  std::unordered_map<std::uint64_t, const trace_event*> live_;
};

std::string size_class(std::uint64_t size) {
  if (size == 0) return "0 B";
  const std::uint64_t low = std::bit_floor(size);
  const std::string from = to_string(bytes{low});
  if (low > (std::uint64_t{1} << 62)) return "from " + from;
  return from + " to " + to_string(bytes{2 * low});
}

std::string site_of(const recording& recording, const trace_event& event) {
  const std::string_view frame = formats::site_frame(recording, event.other);
  return frame.empty() ? "(no stack)" : std::string{frame};
}

void add(holding& group, const trace_event& event) {
  group.bytes += event.size;
  ++group.blocks;
}

/// As the recording's events say, or else its counters.
std::uint64_t reserved_peak(const recording& recording) {
  const std::uint64_t peak = recorded_reserved_peak(recording);
  return peak == 0 && !recording.peaks.empty() ? recording.peaks.front().reserved.count() : peak;
}

}  // namespace

std::uint64_t recorded_reserved_peak(const recording& recording) {
  std::uint64_t reserved = 0;
  std::uint64_t peak = 0;
  for (const trace_event& each : recording.events) {
    if (each.kind == trace_kind::reserve) reserved += each.size;
    if (each.kind == trace_kind::release) reserved -= std::min(reserved, each.size);
    peak = std::max(peak, reserved);
  }
  return peak;
}

peak_summary summarize(const recording& recording) {
  peak_summary summary;
  std::size_t peak_at = 0;
  std::uint64_t peak = 0;
  live_walk first{recording};
  for (std::size_t i = 0; i < recording.events.size(); ++i) {
    const trace_event& event = recording.events[i];
    first.advance_to(i + 1);
    if (event.kind == trace_kind::allocate) {
      ++summary.allocations;
      summary.allocated_bytes += event.size;
    }
    if (event.kind == trace_kind::out_of_memory) ++summary.out_of_memory;
    if (first.bytes() <= peak) continue;
    peak = first.bytes();
    peak_at = i + 1;
    summary.time = event.time;
  }
  const std::string no_tag = formats::label_beside("(no tag)", recording.tags);
  live_walk second{recording};
  second.advance_to(peak_at);
  for (const auto& [address, event] : second.live()) {
    add(summary.live, *event);
    const bool tagged = event->tag != 0 && event->tag < recording.tags.size();
    add(summary.by_tag[tagged ? recording.tags[event->tag] : no_tag], *event);
    add(summary.by_size[size_class(event->size)], *event);
    add(summary.by_site[site_of(recording, *event)], *event);
  }
  summary.reserved_peak = reserved_peak(recording);
  return summary;
}

std::vector<compared_figure> compare(const peak_summary& before, const peak_summary& after) {
  return {
      {"bytes at the peak", "requested_peak", before.live.bytes, after.live.bytes, true},
      {"blocks at the peak", "blocks_at_peak", before.live.blocks, after.live.blocks},
      {"reserved at most", "reserved_peak", before.reserved_peak, after.reserved_peak, true},
      {"allocations", "allocs", before.allocations, after.allocations},
      {"bytes allocated", "allocated_bytes", before.allocated_bytes, after.allocated_bytes, true},
      {"out of memory", "ooms", before.out_of_memory, after.out_of_memory}};
}

std::vector<changed_group> changes(const std::map<std::string, holding>& before,
                                   const std::map<std::string, holding>& after) {
  std::map<std::string, changed_group> groups;
  for (const auto& [name, held] : before) groups[name].before = held;
  for (const auto& [name, held] : after) groups[name].after = held;
  std::vector<changed_group> changed;
  for (auto& [name, group] : groups) {
    if (group.before == group.after) continue;
    group.name = name;
    changed.push_back(std::move(group));
  }
  std::stable_sort(changed.begin(), changed.end(),
                   [](const auto& a, const auto& b) { return a.growth() > b.growth(); });
  return changed;
}

}}}  // namespace weir::v0::replay
