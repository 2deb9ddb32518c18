// SPDX-License-Identifier: Apache-2.0
// weir's memory of one device, as the driver's functions hand it out.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "captures.hpp"
#include "real_driver.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

namespace weir_preload {

/// A caching allocator with what cuMemAlloc's promises need besides.
///
/// **Plain memory** may be used on any stream at once, and freeing it waits for all work of the
/// context. It is allocated for a stream of the heap's own on which nothing is ever queued, and
/// goes back to that stream when all work is done: so whatever that stream gets is free for
/// everybody. No memory reaches it behind a queued wait, as the allocator queues none.
///
/// **Ordered memory** is allocated and freed in the order of the program's streams.
///
/// Shared by the set of heaps and the blocks. Any thread may call anything at any time; after
/// close() requests fail.
class device_heap {
 public:
  /// `context` is to be the device's primary one: not_found, if it is not.
  [[nodiscard]] static weir::result<std::shared_ptr<device_heap>> create(
      const real_driver& driver, int device, CUcontext context,
      std::shared_ptr<context_captures> captures);
  device_heap(const device_heap&) = delete;
  device_heap& operator=(const device_heap&) = delete;

  [[nodiscard]] weir::result<void*> allocate_plain(std::size_t bytes);
  [[nodiscard]] weir::result<void*> allocate_ordered(std::size_t bytes, CUstream stream);
  /// Waits for the context, or frees behind its work (WEIR_RUN_FREE=async). The driver's answer,
  /// if it does not let us wait: the block is live then.
  [[nodiscard]] CUresult free_plain(void* pointer);
  /// In the order of the stream; null: of the one that it was allocated for.
  [[nodiscard]] CUresult free_ordered(void* pointer, CUstream stream);

  /// Frees what the context is done with of what was freed behind its work. Does not wait.
  void collect_done() { collect(false); }
  /// The process ends: what the program freed is freed in its recording as well, whether or not the
  /// context is done with it. From now on requests are the driver's, so nobody gets that memory.
  void end_frees();
  /// Releases what is cached to the driver. How much that was.
  std::size_t release_cached();
  /// The stream is about to be destroyed.
  void forget_stream(CUstream stream) noexcept;
  void enable_peer(int device) noexcept;
  /// Captures may be under way until this is called with false.
  void notice_captures(bool any);
  /// `sink` receives what happens to the memory, until close().
  void observe(weir::event_sink& sink) { observer_ = memory_.add_observer(sink).value(); }
  /// Gives everything back; the program's blocks must be freed before.
  void close() noexcept;

  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] CUcontext context() const noexcept { return context_; }
  /// Whether a block of the heap begins there, live or freed.
  [[nodiscard]] bool has_block_at(CUdeviceptr address) const;
  /// Null where the device has no pools.
  [[nodiscard]] CUmemoryPool default_pool() const noexcept { return default_pool_; }
  [[nodiscard]] const weir::caching_allocator& memory() const noexcept { return memory_; }
  /// Bytes of ordered memory that are live, and the most there were since reset_peak().
  [[nodiscard]] std::uint64_t ordered_bytes() const noexcept { return ordered_.load(); }
  [[nodiscard]] std::uint64_t ordered_peak() const noexcept { return ordered_peak_.load(); }
  void reset_peak() noexcept { ordered_peak_.store(ordered_.load()); }
  void count_ordered(std::int64_t bytes) noexcept;

 private:
  struct pending_free {
    void* pointer;
    weir::event mark;  // behind the work that may use it
  };

  device_heap(std::shared_ptr<weir::runtime> machine, weir::device gpu,
              weir::caching_allocator memory, weir::stream plain,
              std::shared_ptr<context_captures> captures);

  /// Waits for all work of the context, as cuMemFree does, and leaves captures valid.
  [[nodiscard]] CUresult wait_for_work();
  /// False: a capture is under way, or the driver is older than CUDA 12.5.
  [[nodiscard]] bool defer_behind_event(void* pointer);
  /// Frees what the context is done with; with `wait`, waits for it.
  void collect(bool wait);
  void free_pending(std::deque<pending_free>& done) noexcept;

  std::shared_ptr<weir::runtime> machine_;
  weir::device gpu_;
  weir::caching_allocator memory_;
  weir::stream plain_;
  std::shared_ptr<context_captures> captures_;
  int device_ = 0;
  CUcontext context_ = nullptr;
  CUmemoryPool default_pool_ = nullptr;
  /// The context answers nothing but an error any more, or the process ends: requests are the
  /// driver's.
  std::atomic<bool> lost_{false};
  std::atomic<std::uint64_t> ordered_{0};
  std::atomic<std::uint64_t> ordered_peak_{0};

  std::mutex mutex_;  // of what follows; never held around a call that waits
  std::deque<pending_free> pending_;
  std::unordered_set<CUstream> streams_;  // that requests or frees named
  weir::capture_guard notice_;
  weir::observer_registration observer_;
  weir::event_pool marks_;
};

}  // namespace weir_preload
