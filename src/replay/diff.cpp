// Finding a recording's peak, and comparing what two of them held there.
#include "replay/diff.hpp"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "weir/base/bytes.hpp"

namespace weir::inline v0::replay {

namespace {

/// A walk through a recording that knows at every event which blocks are alive.
class walk {
 public:
  explicit walk(const recording& what) : what_{what} {}

  /// Plays the first `count` events; live() is then what is alive.
  void to(std::size_t count) {
    for (; at_ < count; ++at_) take(what_.events[at_]);
  }
  [[nodiscard]] const std::unordered_map<std::uint64_t, const trace_event*>& live() const {
    return live_;
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void take(const trace_event& now) {
    const bool begins = now.kind == trace_kind::allocate;
    if (!begins && now.kind != trace_kind::deallocate) return;
    if (const auto old = live_.find(now.address); old != live_.end()) {
      bytes_ -= old->second->size;
      live_.erase(old);
    }
    if (!begins) return;
    live_.emplace(now.address, &now);
    bytes_ += now.size;
  }

  const recording& what_;
  std::size_t at_ = 0;
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

std::string site_of(const recording& what, const trace_event& event) {
  if (event.other == 0 || event.other > what.stacks.size()) return "(no stack)";
  const auto& stack = what.stacks[event.other - 1];
  if (stack.empty() || stack.front() >= what.frames.size()) return "(no stack)";
  return what.frames[stack.front()];
}

void add(holding& into, const trace_event& event) {
  into.bytes += event.size;
  ++into.blocks;
}

/// What physical memory the recording tells of, at most: its own allocator's, if it tells at all.
std::uint64_t reserved_peak(const recording& what) {
  std::uint64_t now = 0;
  std::uint64_t most = 0;
  for (const trace_event& each : what.events) {
    if (each.kind == trace_kind::reserve) now += each.size;
    if (each.kind == trace_kind::release) now -= std::min(now, each.size);
    most = std::max(most, now);
  }
  if (most == 0 && !what.peaks.empty()) most = what.peaks.front().reserved;
  return most;
}

}  // namespace

peak_summary summarize(const recording& what) {
  peak_summary found;
  std::size_t peak_at = 0;
  std::uint64_t most = 0;
  walk first{what};
  for (std::size_t i = 0; i < what.events.size(); ++i) {
    const trace_event& now = what.events[i];
    first.to(i + 1);
    if (now.kind == trace_kind::allocate) {
      ++found.allocations;
      found.allocated_bytes += now.size;
    }
    if (now.kind == trace_kind::out_of_memory) ++found.out_of_memory;
    if (first.bytes() <= most) continue;
    most = first.bytes();
    peak_at = i + 1;
    found.time = now.time;
  }
  walk again{what};
  again.to(peak_at);
  for (const auto& [address, event] : again.live()) {
    add(found.live, *event);
    const bool tagged = event->tag != 0 && event->tag < what.tags.size();
    add(found.by_tag[tagged ? what.tags[event->tag] : "(no tag)"], *event);
    add(found.by_size[size_class(event->size)], *event);
    add(found.by_site[site_of(what, *event)], *event);
  }
  found.reserved_peak = reserved_peak(what);
  return found;
}

std::vector<changed_group> changes(const std::map<std::string, holding>& before,
                                   const std::map<std::string, holding>& after) {
  std::map<std::string, changed_group> all;
  for (const auto& [name, held] : before) all[name].before = held;
  for (const auto& [name, held] : after) all[name].after = held;
  std::vector<changed_group> changed;
  for (auto& [name, group] : all) {
    if (group.before == group.after) continue;
    group.name = name;
    changed.push_back(std::move(group));
  }
  std::stable_sort(changed.begin(), changed.end(),
                   [](const auto& a, const auto& b) { return a.growth() > b.growth(); });
  return changed;
}

}  // namespace weir::inline v0::replay
