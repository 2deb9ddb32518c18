// SPDX-License-Identifier: Apache-2.0
// weir as torch's CUDA allocator.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "byte_counters.hpp"
#include "compat.hpp"
#include "device_by_page.hpp"
#include "device_state.hpp"
#include "imported_block.hpp"
#include "ipc_server.hpp"
#include "torch_settings.hpp"
#include "uncached_blocks.hpp"
#include "used_streams.hpp"
#include "weir/base/options.hpp"
#include "weir/device/runtime.hpp"

namespace weir_torch {

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Winconsistent-missing-override"  // compat.hpp
#endif

/// torch's interface of a CUDA allocator, on one weir::caching_allocator a device.
///
/// A request or free on a cache hit costs what weir's does, a comparison with the thread's last
/// stream, one load (slow_path_), and the bytes counted. Whatever needs more of a request than that
/// (history, pools, shared blocks) sets a bit of slow_path_ and is dealt with out of line.
///
/// Methods that not every version of torch declares like this are not marked `override`, and where
/// a signature changed the older forms call the newest (compat.hpp).
///
/// One in a process, never destroyed. Any thread. weir's errors leave as torch's exceptions; a free
/// never throws.
class weir_allocator final : public torch_cuda::CUDAAllocator {
 public:
  weir_allocator(std::shared_ptr<weir::runtime> runtime, weir::options settings,
                 bool exportable_if_possible);

  // --- Memory: allocator.cpp --------------------------------------------------------------------
  c10::DataPtr allocate(std::size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t count) const override;
  void* raw_alloc(std::size_t size) override;
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override;
  void raw_delete(void* pointer) override;
  /// At exactly that address, of memory that is free in the pool whose scope is open; throws if it
  /// is not. From 2.13 on.
  c10::DataPtr allocateWithAddress(std::size_t size, void* address);
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override;
  /// From 2.12 on. Of requests that torch's own allocator would refuse before it asks the driver:
  /// there are none here, so the observer is never called.
  void attachOomRejectionObserver(torch_cuda::OutOfMemoryObserver /*observer*/) {}

  // --- Devices, limits and caches: devices.cpp --------------------------------------------------
  void init(int devices) override;
  bool initialized() override;
  std::string name() override { return "weir"; }
  void enable(bool value) override;
  bool isEnabled() const override { return enabled_.load(std::memory_order_relaxed); }
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void emptyCache(MempoolId_t pool);
  void emptyCache() { emptyCache(find_active_pool().id); }  // 2.6, 2.7
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* pointer, std::size_t* size) override;
  void enablePeerAccess(c10::DeviceIndex from, c10::DeviceIndex to) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t count, cudaStream_t stream, bool peers) override;
  segment_sizes getExpandableSegmentSizes(c10::DeviceIndex device);  // from 2.10 on

  // --- Stats and snapshots: stats.cpp -----------------------------------------------------------
  torch_cuda::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  torch_cuda::SnapshotInfo snapshot(MempoolId_t pool, bool with_traces);
  torch_cuda::SnapshotInfo snapshot(MempoolId_t pool) { return snapshot(pool, true); }  // to 2.10
  torch_cuda::SnapshotInfo snapshot() { return snapshot(find_active_pool().id); }       // 2.6, 2.7

  // --- Histories: recording.cpp -----------------------------------------------------------------
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, torch_cuda::CreateContextFn stack_recorder,
                     std::size_t max_entries, torch_cuda::RecordContext stack_level, bool clear,
                     const std::vector<std::string>& skipped_actions);
  void recordHistory(bool enabled, torch_cuda::CreateContextFn stack_recorder,
                     std::size_t max_entries, torch_cuda::RecordContext stack_level,
                     bool clear) {  // 2.8 to 2.10
    recordHistory(enabled, stack_recorder, max_entries, stack_level, clear, {});
  }
  void recordHistory(bool enabled, torch_cuda::CreateContextFn stack_recorder,
                     std::size_t max_entries,
                     torch_cuda::RecordContext stack_level) {  // 2.6, 2.7
    recordHistory(enabled, stack_recorder, max_entries, stack_level, false);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& fields) override;
  void pushCompileContext(std::string& text);                         // from 2.8 on
  void popCompileContext();                                           // from 2.8 on
  void setUserMetadata(const std::string& text);                      // from 2.10 on
  std::string getUserMetadata();                                      // from 2.10 on
  bool supportsUserMetadata() { return true; }                        // from 2.14 on
  void annotateMemory(const void* pointer, const std::string& text);  // from 2.14 on
  /// The stack that a live block was allocated with, if it was recorded. From 2.12 on.
  context getContextForPointer(const void* pointer);
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) override;

  // --- Pools, graphs, checkpoints: graphs.cpp ---------------------------------------------------
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override;
  void markCaptureBegin(c10::DeviceIndex device);  // from 2.13 on
  void markCaptureEnd(c10::DeviceIndex device);    // from 2.13 on
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<torch_cuda::CUDAAllocator> provider);
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool,
                          torch_cuda::CUDAAllocator* provider) {  // 2.8 to 2.10: not owned
    const std::shared_ptr<torch_cuda::CUDAAllocator> no_owner;
    createOrIncrefPool(device, pool, {no_owner, provider});
  }
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t pool) {  // 2.6, 2.7
    createOrIncrefPool(device, pool, std::shared_ptr<torch_cuda::CUDAAllocator>{});
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool value);
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool) {  // 2.8, 2.9
    setUseOnOOM(device, pool, true);
  }
  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool);  // from 2.10 on
  bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                                 MempoolId_t pool) override;
  torch_cuda::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> saved) override;

  // --- Between processes: ipc.cpp ---------------------------------------------------------------
  torch_cuda::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  /// Memory of other processes that is or will be mapped for the owner is reached by the peer.
  void enable_peer_of_imported(device_state& owner, const weir::device& peer);

  // --- For Python: devices.cpp, recording.cpp ---------------------------------------------------
  /// The device's state, created if need be.
  device_state& state_of(c10::DeviceIndex device) {
    device_state* const state = find_state(device);
    return state != nullptr ? *state : create_state(device);
  }
  /// The same, null if no memory of the device was requested yet or there is no such device.
  [[nodiscard]] device_state* find_state(c10::DeviceIndex device) const {
    const auto index = static_cast<std::size_t>(device);  // a negative one becomes too large
    return index < states_.size() ? states_[index].load(std::memory_order_acquire) : nullptr;
  }
  /// Starts and ends a recording of a device's memory.
  void record(c10::DeviceIndex device, const std::string& path, bool stacks);
  void stop_recording(c10::DeviceIndex device);
  /// Adds a marker to the recordings that record() started.
  void mark(const std::string& text);
  [[nodiscard]] const weir::options& settings() const noexcept { return settings_; }
  /// Follows torch's settings as they are now.
  void apply_settings();
  /// In a child of a fork, by the thread that forked: others may have held any lock.
  void on_forked_child() noexcept;
  /// Somebody has this stream of torch's, by torch's id of it.
  void mark_stream_used(c10::DeviceIndex device, std::int64_t id);

 private:
  /// Bits of slow_path_.
  enum slow_path_reason : std::uint32_t {
    pools_active = 1,
    history_active = 2,
    sharing_active = 4,
    cache_off = 8,       // requests go to cudaMalloc
    uncached_live = 16,  // and some of those blocks are live
    rounding_up = 32,    // sizes are rounded to more than 512 bytes, or some blocks' were
    collecting = 64,     // the cache has a threshold
    forked = 128,        // all memory is the parent process's; the only bit then
  };

  device_state& create_state(c10::DeviceIndex device);
  /// Throws what torch's own allocator throws where CUDA has no such device.
  void check_device(c10::DeviceIndex device) const;
  void update_slow_path();
  template <class Action>
  void for_each_device(const Action& action) const {
    for (const auto& each : states_)
      if (device_state* const state = each.load(std::memory_order_acquire)) action(*state);
  }

  /// Memory for `stream`; throws torch's OutOfMemoryError.
  void* allocate_on(device_state& state, std::size_t size, const weir::stream_ref& stream);
  /// The same where settings, a history or a tool want more than that.
  void* allocate_on_slow_path(device_state& state, std::size_t size,
                              const weir::stream_ref& stream);
  /// A block, and how much it takes, which is more than was requested where the rest of a segment
  /// is too small for another block.
  struct placed_block {
    void* address = nullptr;
    std::size_t taken = 0;
  };
  placed_block slow_allocate(device_state& state, std::size_t size, std::size_t rounded,
                             const weir::stream_ref& stream);
  void* allocate_for_unidentified(device_state& state, const pool_table::route& route,
                                  std::size_t size);
  /// Throws what torch would, for the exception that is being handled.
  [[noreturn]] void throw_as_torch(device_state& state, std::size_t size,
                                   const weir::stream_ref& stream);
  /// Reports the failure to whom it concerns, and throws torch's OutOfMemoryError.
  [[noreturn]] void throw_out_of_memory(device_state& state, std::size_t size,
                                        const weir::stream_ref& stream, const std::string& report);
  /// Releases cached memory above the threshold of torch's settings.
  static void collect(device_state& state, double threshold);
  /// Reports an allocation, or a free (a negative size), to torch's profiler and sanitizer.
  void notify_tools(device_state& state, void* pointer, std::int64_t size);

  /// The device of a request that names none.
  [[nodiscard]] c10::DeviceIndex current_device() const;

  /// A block of cudaMalloc's on the current device.
  void* allocate_uncached(device_state& state, std::size_t size);
  /// Whether the block is of cudaMalloc's.
  [[nodiscard]] bool is_uncached(const void* pointer) const {
    return C10_UNLIKELY((slow_path_.load(std::memory_order_relaxed) & uncached_live) != 0) &&
           uncached_.contains(pointer);
  }
  /// Frees it, if it is.
  [[nodiscard]] cudaError_t free_uncached(void* pointer);

  void free_block(void* pointer) noexcept;
  void slow_free(device_state& state, void* pointer) noexcept;
  weir::result<void> slow_delete(device_state& state, void* pointer);
  [[nodiscard]] bool is_free_slow() const;
  [[nodiscard]] bool is_forked() const {
    return slow_path_.load(std::memory_order_relaxed) == forked;
  }
  /// Whether the block was freed and waits for the end of a capture.
  [[nodiscard]] static bool is_free_deferred(const device_state& state, void* pointer);
  /// True: the free is deferred, and not the caller's to make any more. `stack` is what the free's
  /// own events get.
  bool prepare_free(device_state& state, void* pointer, context& stack);
  [[nodiscard]] device_state* find_owner(const void* pointer) const noexcept {
    if (device_by_page_ == nullptr) return only_state_.load(std::memory_order_acquire);
    const int device = device_by_page_->find(pointer);
    if (C10_UNLIKELY(device == device_by_page::unknown)) return ask_each_for(pointer);
    return device == device_by_page::none ? nullptr
                                          : find_state(static_cast<c10::DeviceIndex>(device));
  }
  /// The device whose live block has the pointer in it. Costs a lock of each.
  [[nodiscard]] device_state* ask_each_for(const void* pointer) const noexcept;
  [[nodiscard]] device_state& owner_of(const void* pointer) const;
  /// The live block that begins at the address; its size is 0 if no live block begins there.
  [[nodiscard]] traced_block trace_of(device_state& state, const void* pointer) const;
  static void deleter(void* pointer);

  /// Notes what torch's pools reserve now. Costs a lock of weir's for each, and a snapshot while
  /// pools that are not in use any more have live blocks.
  static void note_pool_reserves(device_state& state);
  void add_to_snapshot(device_state& state, MempoolId_t only, torch_cuda::SnapshotInfo& snapshot);

  std::atomic<std::uint32_t> slow_path_{0};  // slow_path_reason
  std::atomic<bool> enabled_{true};          // the cache
  torch_settings torch_settings_;
  uncached_blocks uncached_;
  std::atomic<device_state*> only_state_{nullptr};  // of a machine with one device
  std::array<std::atomic<device_state*>, byte_counters::max_devices> states_{};
  std::array<used_streams, byte_counters::max_devices> used_streams_;  // exist before the states
  byte_counters byte_counters_;
  std::unique_ptr<device_by_page> device_by_page_;  // of machines with several devices

  const std::shared_ptr<weir::runtime> runtime_;
  const weir::options settings_;
  const bool exportable_if_possible_;
  std::atomic<int> devices_{0};

  std::mutex mutex_;  // guards the creation of states, and what follows
  std::vector<torch_cuda::OutOfMemoryObserver> oom_observers_;
  std::vector<torch_cuda::AllocatorTraceTracker> trackers_;
  allocation_history::settings history_settings_;
  annotations annotations_;

  mutable std::mutex sharing_mutex_;
  std::atomic<ipc_server*> ipc_server_{nullptr};
  struct imported_memory {
    std::weak_ptr<void> memory;
    const imported_block* block = nullptr;  // as long as `memory` lives
    c10::DeviceIndex device = 0;
  };
  std::map<std::string, imported_memory> imported_;
};

#ifdef __clang__
#pragma clang diagnostic pop
#endif

/// The allocator that is installed, or null.
[[nodiscard]] weir_allocator* installed() noexcept;
/// Whether torch asks it for memory: not if another allocator was set later.
[[nodiscard]] bool is_in_use() noexcept;
void set_installed(weir_allocator* allocator) noexcept;
/// The same, or a RuntimeError in Python.
[[nodiscard]] weir_allocator& installed_or_throw();

/// "20.00 GiB", as torch writes sizes.
[[nodiscard]] std::string format_size(std::uint64_t size);

}  // namespace weir_torch
