// weir as torch's CUDA allocator.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "descriptor_desk.hpp"
#include "handed_out.hpp"
#include "imported_block.hpp"
#include "page_owners.hpp"
#include "seat.hpp"
#include "tally.hpp"
#include "weir/base/options.hpp"
#include "weir/device/runtime.hpp"

namespace weir_torch {

/// torch's interface of a CUDA allocator, on one weir::caching_allocator a device.
///
/// A request or free on a cache hit costs what weir's does, a look at the thread's last stream, one
/// load (attention_), and the bytes counted. Whatever makes a request more than that (history,
/// pools, shared blocks) sets a bit of attention_ and is dealt with out of line.
///
/// One in a process, never destroyed. Any thread. weir's errors leave as torch's exceptions; a free
/// never throws.
class weir_allocator final : public torch_cuda::CUDAAllocator {
 public:
  weir_allocator(std::shared_ptr<weir::runtime> machine, weir::options settings,
                 bool exportable_if_possible);

  // --- Memory: allocator.cpp --------------------------------------------------------------------
  c10::DataPtr allocate(std::size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t count) const override;
  void* raw_alloc(std::size_t size) override;
  void* raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override;
  void raw_delete(void* pointer) override;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override;

  // --- The whole: manage.cpp --------------------------------------------------------------------
  void init(int devices) override;
  bool initialized() override;
  std::string name() override { return "weir"; }
  void enable(bool value) override;
  bool isEnabled() const override { return true; }
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void emptyCache(MempoolId_t pool = {0, 0}) override;
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* pointer, std::size_t* size) override;
  void enablePeerAccess(c10::DeviceIndex from, c10::DeviceIndex to) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t count, cudaStream_t stream, bool peers) override;
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override;

  // --- Numbers and pictures: stats.cpp ----------------------------------------------------------
  torch_cuda::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  torch_cuda::SnapshotInfo snapshot(MempoolId_t pool, bool with_traces) override;

  // --- History: manage.cpp ----------------------------------------------------------------------
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, torch_cuda::CreateContextFn recorder, std::size_t most,
                     torch_cuda::RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& what) override;
  void pushCompileContext(std::string& text) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& text) override;
  std::string getUserMetadata() override;
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) override;

  // --- Pools, graphs, checkpoints: graphs.cpp ---------------------------------------------------
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<torch_cuda::CUDAAllocator> provider) override;
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool value) override;
  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                                 MempoolId_t pool) override;
  torch_cuda::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> state) override;

  // --- Between processes: ipc.cpp ---------------------------------------------------------------
  torch_cuda::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

  // --- For Python: manage.cpp -------------------------------------------------------------------
  /// The device's seat, made if need be.
  device_seat& at(c10::DeviceIndex device) {
    device_seat* const there = seat(device);
    return there != nullptr ? *there : make(device);
  }
  /// The same, null if no memory of the device was asked for yet.
  [[nodiscard]] device_seat* seat(c10::DeviceIndex device) const {
    return seats_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  }
  /// Starts and ends a recording of a device's memory.
  void record(c10::DeviceIndex device, const std::string& path, bool stacks);
  void stop_recording(c10::DeviceIndex device);
  void mark(const std::string& text);
  [[nodiscard]] const weir::options& settings() const noexcept { return settings_; }
  /// Somebody got this stream of torch's, by torch's number of it.
  void note_stream(c10::DeviceIndex device, std::int64_t id);

 private:
  enum attention : std::uint32_t {
    pools_wanted = 1,
    history_wanted = 2,
    shares_wanted = 4,
  };

  device_seat& make(c10::DeviceIndex device);
  void update_attention();
  template <class Action>
  void for_each_seat(const Action& action) const {
    for (const auto& each : seats_)
      if (device_seat* const there = each.load(std::memory_order_acquire)) action(*there);
  }

  /// Memory for `on`; throws torch's OutOfMemoryError.
  void* take(device_seat& seat, std::size_t size, const weir::stream_ref& on);
  void* take_with_care(device_seat& seat, std::size_t size, const weir::stream_ref& on);
  void* take_for_unknown_stream(device_seat& seat, const pool_table::route& where,
                                std::size_t size);
  [[nodiscard]] void* after_shortage(device_seat& seat, std::size_t size,
                                     const weir::stream_ref& on, const std::string& report);
  /// What torch's tools hear of a block that was made or goes.
  void tell_tools(device_seat& seat, void* pointer, std::int64_t change);

  /// Where a request without a device goes.
  [[nodiscard]] c10::DeviceIndex current_device() const;

  void give(void* pointer) noexcept;
  [[nodiscard]] bool must_prepare() const;
  /// True: somebody else frees it later.
  bool prepare_free(device_seat& seat, void* pointer);
  [[nodiscard]] device_seat* owner_of(const void* pointer) const noexcept;
  [[nodiscard]] device_seat& checked_owner(const void* pointer) const;
  [[nodiscard]] block_note note_of(device_seat& seat, const void* pointer) const;
  static void deleter(void* pointer);

  void draw_device(device_seat& seat, MempoolId_t only, torch_cuda::SnapshotInfo& into);

  std::atomic<std::uint32_t> attention_{0};
  std::atomic<device_seat*> only_{nullptr};  // the one seat of a machine with one device
  std::array<std::atomic<device_seat*>, tally::most_devices> seats_{};
  std::array<handed_out, tally::most_devices> handed_out_;  // streams; there before a seat is
  tally counted_;
  std::unique_ptr<page_owners> owners_;  // of machines with several devices

  const std::shared_ptr<weir::runtime> machine_;
  const weir::options settings_;
  const bool exportable_if_possible_;
  std::atomic<int> devices_{0};

  std::mutex mutex_;  // guards making seats, and what follows
  std::vector<torch_cuda::OutOfMemoryObserver> shortage_observers_;
  std::vector<torch_cuda::AllocatorTraceTracker> trackers_;
  history::settings history_settings_;
  annotations annotations_;

  mutable std::mutex sharing_;
  std::atomic<descriptor_desk*> desk_{nullptr};
  std::map<std::string, std::weak_ptr<void>> imported_;
};

/// The allocator that is installed, or null.
[[nodiscard]] weir_allocator* installed() noexcept;
void set_installed(weir_allocator* made) noexcept;

/// "20.00 GiB", as torch writes sizes.
[[nodiscard]] std::string format_size(std::uint64_t size);

}  // namespace weir_torch
