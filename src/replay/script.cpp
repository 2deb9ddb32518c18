// From what a recording tells to what a replay does.
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

class writer {
 public:
  explicit writer(const recording& from)
      : says_when_reusable_{std::any_of(
            from.events.begin(), from.events.end(),
            [](const trace_event& each) { return each.kind == trace_kind::reusable; })} {
    for (const trace_event& each : from.events) out_.events += concerns_blocks(each.kind) ? 1 : 0;
    out_.steps.reserve(out_.events - (says_when_reusable_ ? out_.events / 3 : 0));
  }

  script write(const recording& from) {
    const std::uint64_t warm = out_.events / 5;
    std::uint64_t seen = 0;
    std::uint64_t first_steady = 0;
    std::uint64_t last = 0;
    for (const trace_event& each : from.events) {
      if (!concerns_blocks(each.kind)) continue;
      if (seen++ == warm) {
        out_.warm_up = out_.steps.size();
        first_steady = each.time;
      }
      last = each.time;
      take(each);
    }
    out_.steady_time = std::chrono::nanoseconds{last - first_steady};
    out_.streams = streams_.size();
    return std::move(out_);
  }

 private:
  void take(const trace_event& now) {
    const auto found = live_.find(now.address);
    if (now.kind == trace_kind::allocate) {
      // Its free was not recorded, but the address speaks for it.
      if (found != live_.end()) free(now, found->second.stream, found);
      allocate(now);
      return;
    }
    if (found == live_.end()) return;
    if (now.kind == trace_kind::reusable) {
      free(now, found->second.stream, found);
    } else if (says_when_reusable_) {
      return;
    } else if (now.kind == trace_kind::deallocate) {
      free(now, now.stream, found);
    } else {
      put(now, action::record_stream, now.stream, found->second);
    }
  }

  void allocate(const trace_event& now) {
    const known_block made{static_cast<std::uint32_t>(out_.blocks++), now.stream, now.size};
    live_.emplace(now.address, made);
    put(now, action::allocate, now.stream, made);
    ++out_.allocations;
    requested_ += now.size;
    out_.requested_peak = std::max(out_.requested_peak, requested_);
  }

  using place = std::unordered_map<std::uint64_t, known_block>::iterator;
  void free(const trace_event& now, std::uint32_t stream, place block) {
    put(now, action::free, stream, block->second);
    requested_ -= block->second.size;
    live_.erase(block);
  }

  void put(const trace_event& now, action what, std::uint32_t stream, const known_block& block) {
    const auto on = streams_.try_emplace(stream, static_cast<std::uint32_t>(streams_.size()));
    out_.steps.push_back(
        {now.time, block.size, block.number, on.first->second, now.thread, now.pool, what});
    out_.threads = std::max<std::size_t>(out_.threads, std::size_t{now.thread} + 1);
    out_.pools = std::max<std::size_t>(out_.pools, std::size_t{now.pool} + 1);
  }

  script out_;
  bool says_when_reusable_;
  std::uint64_t requested_ = 0;
  std::unordered_map<std::uint64_t, known_block> live_;
  std::unordered_map<std::uint32_t, std::uint32_t> streams_;  // the recording's number to ours
};

}  // namespace

script make_script(const recording& from) { return writer{from}.write(from); }

}  // namespace weir::inline v0::replay
