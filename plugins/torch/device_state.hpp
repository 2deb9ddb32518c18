// Everything that the plug-in keeps for one device.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "history.hpp"
#include "imported_block.hpp"
#include "pools.hpp"
#include "streams.hpp"
#include "used_streams.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/trace/recorder.hpp"

namespace weir_torch {

/// The counters' values when torch last reset them.
struct counters_at_reset {
  weir::memory_stats stats;
  std::uint64_t requested = 0;
  std::uint64_t rounded = 0;
  std::uint64_t synchronizations = 0;
  std::uint64_t ooms = 0;
};

/// A device's allocator and all that goes with it. Created at the first request for the device, and
/// never destroyed: torch frees memory until the very end of the process, in no order that could be
/// relied on.
struct device_state {
  device_state(c10::DeviceIndex device, weir::caching_allocator allocator, used_streams& used,
               const std::function<void()>& on_change)
      : index{device},
        memory{std::move(allocator)},
        gpu{memory.device()},
        streams{device, gpu, used},
        pools{memory, on_change},
        history{device, on_change},
        unmaps{gpu} {}

  const c10::DeviceIndex index;
  weir::caching_allocator memory;
  const weir::device gpu;
  stream_table streams;
  pool_table pools;
  allocation_history history;
  unmap_queue unmaps;
  weir::callback_registration oom_callback;        // torch's own, to free memory
  weir::stream_source_registration stream_source;  // torch's streams, through `streams`
  std::atomic<std::uint64_t> synchronizations{0};  // of empty_cache
  std::atomic<std::uint64_t> ooms{0};              // that became OutOfMemoryError

  std::mutex mutex;  // guards what follows
  weir::observer_registration history_observer;
  std::unique_ptr<weir::recorder> recording;
  weir::observer_registration recording_observer;
  counters_at_reset reset;
  double memory_fraction = 1.0;

  std::vector<weir::device> peers;  // guarded by the allocator's sharing_mutex_

  /// Registers the history with the allocator while its entries have readers. Needs the lock.
  void update_history_observer() {
    if (history.has_readers() == static_cast<bool>(history_observer)) return;
    if (history.has_readers()) {
      history_observer = memory.add_observer(history);
    } else {
      history_observer.end();
    }
  }
};

}  // namespace weir_torch
