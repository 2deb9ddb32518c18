// SPDX-License-Identifier: Apache-2.0
// From a recording's events to a replay's steps.
#include "replay/script.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/two_step_frees.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

struct known_block {
  std::uint32_t number = 0;
  std::uint32_t stream = 0;
  std::uint64_t size = 0;
  bool frees_in_two_steps = false;
};

bool concerns_blocks(trace_kind kind) {
  return kind == trace_kind::allocate || kind == trace_kind::deallocate ||
         kind == trace_kind::reusable || kind == trace_kind::record_stream;
}

class script_writer {
 public:
  explicit script_writer(const recording& recording) : frees_{recording} {
    for (const trace_event& each : recording.events)
      script_.events += concerns_blocks(each.kind) ? 1 : 0;
    script_.steps.reserve(script_.events - (frees_.empty() ? 0 : script_.events / 3));
  }

  script write(const recording& recording) {
    const std::uint64_t warm = script_.events / 5;
    std::uint64_t seen = 0;
    std::uint64_t first_steady = 0;
    std::uint64_t last_time = 0;
    for (std::size_t i = 0; i < recording.events.size(); ++i) {
      const trace_event& each = recording.events[i];
      if (each.kind == trace_kind::marker) script_.markers.push_back(script_.steps.size());
      if (each.kind == trace_kind::suspended && each.size != 0) ++script_.suspensions;
      count_reserved(each);
      if (each.kind == trace_kind::allocate) ending_.clear();
      if (each.kind == trace_kind::pool_released) release_pool(each);
      if (!concerns_blocks(each.kind)) continue;
      if (seen++ == warm) {
        script_.warm_up = script_.steps.size();
        first_steady = each.time;
      }
      last_time = each.time;
      add(each, frees_.contains(i));
    }
    script_.steady_time = std::chrono::nanoseconds{last_time - first_steady};
    script_.streams = streams_.size();
    script_.recorded_streams = recorded_streams_.size();
    return std::move(script_);
  }

 private:
  void add(const trace_event& event, bool frees_in_two_steps) {
    const auto entry = live_.find(event.address);
    if (event.kind == trace_kind::allocate) {
      // Its free was not recorded, but the address speaks for it.
      if (entry != live_.end()) free(event, entry->second.stream, entry);
      allocate(event, frees_in_two_steps);
      return;
    }
    if (entry == live_.end()) return;
    if (event.kind != trace_kind::reusable) recorded_streams_.insert(event.stream);
    if (event.kind == trace_kind::reusable) {
      free(event, entry->second.stream, entry);
    } else if (entry->second.frees_in_two_steps) {
      return;
    } else if (event.kind == trace_kind::deallocate) {
      free(event, event.stream, entry);
    } else {
      put(event, action::record_stream, event.stream, entry->second);
    }
  }

  void allocate(const trace_event& event, bool frees_in_two_steps) {
    const known_block allocated{static_cast<std::uint32_t>(script_.blocks++), event.stream,
                                event.size, frees_in_two_steps};
    live_.emplace(event.address, allocated);
    put(event, action::allocate, event.stream, allocated);
    recorded_streams_.insert(event.stream);
    ++script_.allocations;
    requested_ += event.size;
    script_.requested_peak = std::max(script_.requested_peak, requested_);
  }

  using live_iterator = std::unordered_map<std::uint64_t, known_block>::iterator;
  void free(const trace_event& event, std::uint32_t stream, live_iterator block) {
    put(event, action::free, stream, block->second);
    requested_ -= block->second.size;
    live_.erase(block);
  }

  void count_reserved(const trace_event& event) {
    if (event.pool == 0) return;
    if (event.kind == trace_kind::reserve) reserved_[event.pool] += event.size;
    if (event.kind != trace_kind::release) return;
    std::uint64_t& left = reserved_[event.pool];
    left -= event.size;
    const auto released = ending_.find(event.pool);
    if (left != 0 || released == ending_.end()) return;
    for (const std::size_t each : released->second) script_.steps[each].size = 1;
    ending_.erase(released);
  }

  /// A pool that no block came from has nothing to release. Its memory has gone if all that it had
  /// reserved is released before the next request.
  void release_pool(const trace_event& event) {
    if (event.pool == 0 || event.pool >= script_.pools) return;
    const auto reserved = reserved_.find(event.pool);
    const bool is_gone = reserved != reserved_.end() && reserved->second == 0;
    if (reserved != reserved_.end() && !is_gone)
      ending_[event.pool].push_back(script_.steps.size());
    script_.steps.push_back({.time = event.time,
                             .size = is_gone ? 1U : 0U,
                             .thread = event.thread,
                             .pool = event.pool,
                             .action = action::release_pool});
    script_.threads = std::max<std::size_t>(script_.threads, std::size_t{event.thread} + 1);
  }

  void put(const trace_event& event, action kind, std::uint32_t stream, const known_block& block) {
    const auto stream_number =
        streams_.try_emplace(stream, static_cast<std::uint32_t>(streams_.size()));
    script_.steps.push_back({event.time, block.size, block.number, stream_number.first->second,
                             event.thread, event.pool, kind});
    script_.threads = std::max<std::size_t>(script_.threads, std::size_t{event.thread} + 1);
    script_.pools = std::max<std::size_t>(script_.pools, std::size_t{event.pool} + 1);
  }

  script script_;
  formats::two_step_frees frees_;
  std::uint64_t requested_ = 0;
  std::unordered_map<std::uint64_t, known_block> live_;
  std::unordered_map<std::uint16_t, std::uint64_t> reserved_;  // by pool
  // By pool: its release steps since the last request, while it has reserved memory.
  std::unordered_map<std::uint16_t, std::vector<std::size_t>> ending_;
  std::unordered_map<std::uint32_t, std::uint32_t> streams_;  // the recording's number to ours
  std::unordered_set<std::uint32_t> recorded_streams_;
};

}  // namespace

script make_script(const recording& recording) { return script_writer{recording}.write(recording); }

}}}  // namespace weir::v0::replay
