// SPDX-License-Identifier: Apache-2.0
// Everything that the plug-in keeps for one device.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capture_reuse.hpp"
#include "history.hpp"
#include "imported_block.hpp"
#include "padded_blocks.hpp"
#include "pool_reserves.hpp"
#include "pools.hpp"
#include "running_sums.hpp"
#include "streams.hpp"
#include "used_streams.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/trace/recorder.hpp"

namespace weir_torch {

/// Bytes that were ever allocated and freed, as torch counts them.
struct byte_sums {
  running_sums::values allocated;
  running_sums::values active;
  running_sums::values requested;
};

/// The counters' values when torch last reset them.
struct counters_at_reset {
  weir::memory_stats stats;
  byte_sums sums;
  std::uint64_t synchronizations = 0;
  std::uint64_t ooms = 0;
};

/// Notes that memory was taken from the driver.
class growth_flag final : public weir::event_sink {
 public:
  void on_event(const weir::memory_event& event) noexcept override {
    if (event.kind == weir::memory_event_kind::reserve)
      is_set_.store(true, std::memory_order_relaxed);
  }
  /// Whether it was since the last call.
  [[nodiscard]] bool take() noexcept {
    return is_set_.load(std::memory_order_relaxed) &&
           is_set_.exchange(false, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> is_set_{false};
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
        history{device, on_change, [this](weir::pool_id pool) { return pools.torch_id_of(pool); }},
        unmaps{gpu} {}

  const c10::DeviceIndex index;
  weir::caching_allocator memory;
  const weir::device gpu;
  stream_table streams;
  pool_table pools;
  allocation_history history;
  unmap_queue unmaps;
  capture_reuse reuse;
  padded_blocks padded;
  growth_flag grown;                               // while there is a threshold for it
  weir::callback_registration oom_callback;        // torch's own, to free memory
  weir::callback_registration growth_callback;     // the same, before more is taken
  weir::stream_source_registration stream_source;  // torch's streams, through `streams`
  std::atomic<std::uint64_t> synchronizations{0};  // of empty_cache
  std::atomic<std::uint64_t> ooms{0};              // that became OutOfMemoryError

  std::mutex reading_mutex;  // one reading of the counters after the other; guards what follows
  running_sums allocated_sums;
  running_sums active_sums;
  running_sums requested_sums;

  std::mutex mutex;  // guards what follows
  weir::observer_registration history_observer;
  weir::observer_registration growth_observer;
  std::unique_ptr<weir::recorder> recording;
  weir::observer_registration recording_observer;
  counters_at_reset reset;
  pool_reserves private_reserves;  // only where torch has a field for it
  double memory_fraction = 1.0;

  std::vector<weir::device> peers;  // guarded by the allocator's sharing_mutex_

  /// Listens for growth while torch's settings have a threshold for it. Needs the lock.
  void update_growth_observer(bool has_threshold) {
    if (has_threshold == static_cast<bool>(growth_observer)) return;
    if (has_threshold) {
      growth_observer = memory.add_observer(grown).value();
    } else {
      growth_observer.close();
    }
  }
  /// Registers the history with the allocator while its entries have readers. Needs the lock.
  void update_history_observer() {
    if (history.has_readers() == static_cast<bool>(history_observer)) return;
    if (history.has_readers()) {
      history.begin_segments();
      history_observer = memory.add_observer(history).value();
      std::vector<segment_table::segment> mapped;
      for (const weir::pool_snapshot& pool : memory.snapshot().pools)
        for (const weir::physical_info& piece : pool.physical)
          mapped.push_back({piece.address, piece.size.count(), pool.id,
                            piece.number != 0 && !history.segments_expand()});
      history.set_segments(mapped);
    } else {
      history_observer.close();
    }
  }
};

}  // namespace weir_torch
