// From a recording's events to a replay's steps.
#include "replay/script.hpp"

#include <algorithm>
#include <unordered_map>

namespace weir::inline v0::replay {

namespace {

struct known_block {
  std::uint32_t number = 0;
  std::uint32_t stream = 0;
  std::uint64_t size = 0;
};

bool concerns_blocks(trace_kind kind) {
  return kind == trace_kind::allocate || kind == trace_kind::deallocate ||
         kind == trace_kind::reusable || kind == trace_kind::record_stream;
}

class script_writer {
 public:
  explicit script_writer(const recording& recording)
      : has_reusable_{std::any_of(
            recording.events.begin(), recording.events.end(),
            [](const trace_event& each) { return each.kind == trace_kind::reusable; })} {
    for (const trace_event& each : recording.events)
      script_.events += concerns_blocks(each.kind) ? 1 : 0;
    script_.steps.reserve(script_.events - (has_reusable_ ? script_.events / 3 : 0));
  }

  script write(const recording& recording) {
    const std::uint64_t warm = script_.events / 5;
    std::uint64_t seen = 0;
    std::uint64_t first_steady = 0;
    std::uint64_t last_time = 0;
    for (const trace_event& each : recording.events) {
      if (!concerns_blocks(each.kind)) continue;
      if (seen++ == warm) {
        script_.warm_up = script_.steps.size();
        first_steady = each.time;
      }
      last_time = each.time;
      add(each);
    }
    script_.steady_time = std::chrono::nanoseconds{last_time - first_steady};
    script_.streams = streams_.size();
    return std::move(script_);
  }

 private:
  void add(const trace_event& event) {
    const auto entry = live_.find(event.address);
    if (event.kind == trace_kind::allocate) {
      // Its free was not recorded, but the address speaks for it.
      if (entry != live_.end()) free(event, entry->second.stream, entry);
      allocate(event);
      return;
    }
    if (entry == live_.end()) return;
    if (event.kind == trace_kind::reusable) {
      free(event, entry->second.stream, entry);
    } else if (has_reusable_) {
      return;
    } else if (event.kind == trace_kind::deallocate) {
      free(event, event.stream, entry);
    } else {
      put(event, action::record_stream, event.stream, entry->second);
    }
  }

  void allocate(const trace_event& event) {
    const known_block allocated{static_cast<std::uint32_t>(script_.blocks++), event.stream,
                                event.size};
    live_.emplace(event.address, allocated);
    put(event, action::allocate, event.stream, allocated);
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

  void put(const trace_event& event, action kind, std::uint32_t stream, const known_block& block) {
    const auto stream_number =
        streams_.try_emplace(stream, static_cast<std::uint32_t>(streams_.size()));
    script_.steps.push_back({event.time, block.size, block.number, stream_number.first->second,
                             event.thread, event.pool, kind});
    script_.threads = std::max<std::size_t>(script_.threads, std::size_t{event.thread} + 1);
    script_.pools = std::max<std::size_t>(script_.pools, std::size_t{event.pool} + 1);
  }

  script script_;
  bool has_reusable_;
  std::uint64_t requested_ = 0;
  std::unordered_map<std::uint64_t, known_block> live_;
  std::unordered_map<std::uint32_t, std::uint32_t> streams_;  // the recording's number to ours
};

}  // namespace

script make_script(const recording& recording) { return script_writer{recording}.write(recording); }

}  // namespace weir::inline v0::replay
