// One device's place at torch's table: its allocator and everything that goes with it.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "history.hpp"
#include "imported_block.hpp"
#include "pools.hpp"
#include "streams.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/trace/recorder.hpp"

namespace weir_torch {

/// Passes an allocator's events on to a history and to a recorder. Whoever changes what it passes
/// on to takes it off the allocator meanwhile.
class event_tee final : public weir::event_sink {
 public:
  void on_event(const weir::memory_event& what) noexcept override {
    if (first != nullptr) first->on_event(what);
    if (second != nullptr) second->on_event(what);
  }
  weir::event_sink* first = nullptr;
  weir::event_sink* second = nullptr;
};

/// What counters were when torch last reset them.
struct counters_at_reset {
  weir::memory_stats stats;
  std::uint64_t asked = 0;
  std::uint64_t rounded = 0;
  std::uint64_t synchronizations = 0;
  std::uint64_t shortages = 0;
};

/// Made at the first request for the device, and never destroyed: torch frees memory until the very
/// end of the process, in no order that could be relied on.
struct device_seat {
  device_seat(c10::DeviceIndex number, weir::caching_allocator made, handed_out& handed,
              bool recorded, const std::function<void()>& changed)
      : index{number},
        memory{std::move(made)},
        gpu{memory.device()},
        streams{number, gpu, handed},
        pools{memory, changed},
        past{number, changed},
        leaving{gpu},
        recorded_elsewhere{recorded} {}

  const c10::DeviceIndex index;
  weir::caching_allocator memory;
  const weir::device gpu;
  stream_table streams;
  pool_table pools;
  history past;
  leaving_blocks leaving;
  weir::callback_registration callbacks;     // torch's own, to free memory
  weir::stream_source_registration watched;  // torch's streams, through `streams`

  std::mutex watching;            // guards what follows
  const bool recorded_elsewhere;  // by WEIR_RECORD: the allocator's observer is not ours
  event_tee tee;
  std::unique_ptr<weir::recorder> tape;
  counters_at_reset reset;
  double fraction = 1.0;
  std::atomic<std::uint64_t> synchronizations{0};  // of empty_cache
  std::atomic<std::uint64_t> shortages{0};         // that became OutOfMemoryError

  /// Brings the allocator's observer in line with who wants events. Needs `watching`.
  void watch() {
    if (recorded_elsewhere) return;
    memory.set_observer(nullptr);
    tee.first = past.writes() ? &past : nullptr;
    tee.second = tape.get();
    if (tee.first != nullptr || tee.second != nullptr) memory.set_observer(&tee);
  }
};

}  // namespace weir_torch
