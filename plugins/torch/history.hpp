// The history of one device, as torch records it: entries, stacks, annotations, trackers.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ring.hpp"
#include "weir/observe/events.hpp"

namespace weir_torch {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::MempoolId_t;
using context = std::shared_ptr<c10::GatheredContext>;
using trace_entry = torch_cuda::TraceEntry;
using annotation = c10::CachingDeviceAllocator::AnnotationEntry;

/// What a block is, when something is written about it.
struct block_note {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< as asked for
  void* stream = nullptr;
  MempoolId_t pool{0, 0};
};

/// Writes entries while recording is on or a tracker listens, and keeps the stacks of what is live.
///
/// An allocation is written after it was made and a free before it is made, so the entries of one
/// address are in the order in which they happened, whatever threads do. A free of memory that
/// other streams were recorded on is completed when the memory is seen to be reused or free.
///
/// wanted() is what the hot path looks at. Any thread. Called with weir's lock held (on_event), so
/// nothing in here calls weir. Never destroyed: entries hold Python objects that must not be
/// released once the interpreter is gone.
class history final : public weir::event_sink {
 public:
  history(c10::DeviceIndex device, std::function<void()> changed)
      : device_{device}, changed_{std::move(changed)} {}
  history(const history&) = delete;
  history& operator=(const history&) = delete;

  struct settings {
    bool enabled = false;
    torch_cuda::CreateContextFn recorder = nullptr;
    std::size_t most = 1;
    torch_cuda::RecordContext when = torch_cuda::RecordContext::NEVER;
    bool clear = false;
    std::vector<std::string> skipped;
  };
  void configure(const settings& how);
  void attach(torch_cuda::AllocatorTraceTracker tracker);

  [[nodiscard]] bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }
  /// Whether anybody reads entries.
  [[nodiscard]] bool writes() const noexcept { return writes_.load(std::memory_order_relaxed); }
  /// Whether allocations and frees must come by: somebody reads, or stacks are kept.
  [[nodiscard]] bool wanted() const noexcept {
    return writes() || stacks_.load(std::memory_order_relaxed) != 0;
  }

  /// The stack of here, if stacks of this level are recorded. Takes the GIL: nobody may hold a lock
  /// of weir's or ours.
  [[nodiscard]] context gather(torch_cuda::RecordContext level) const;

  void allocated(const block_note& block, context where);
  /// The block is about to be freed.
  void freed(const block_note& block, context where);
  void recorded_stream(std::uint64_t address);
  void out_of_memory(std::uint64_t size, std::uint64_t device_free, void* stream, MempoolId_t pool,
                     context where);
  void snapshot_taken(std::uint64_t active, MempoolId_t pool);
  /// Completes the frees whose memory is not among `pending` any more.
  void complete_frees(const std::unordered_set<std::uint64_t>& pending);

  [[nodiscard]] std::vector<trace_entry> entries() const;
  [[nodiscard]] context stack_of(std::uint64_t address) const;

  void set_metadata(const std::string& text);
  [[nodiscard]] std::string metadata() const;
  static void push_compile_context(const std::string& text);
  static void pop_compile_context();

  /// Physical memory comes and goes: segment entries.
  void on_event(const weir::memory_event& what) noexcept override;

 private:
  using action = trace_entry::Action;

  // All of these need the lock.
  void write(action what, const block_note& block, context where);
  void complete_overlapping(std::uint64_t address, std::uint64_t size);
  void update() noexcept;

  const c10::DeviceIndex device_;
  const std::function<void()> changed_;  // what the allocator's attention depends on changed
  std::atomic<bool> enabled_{false};
  std::atomic<bool> writes_{false};
  std::atomic<std::size_t> stacks_{0};
  std::atomic<torch_cuda::CreateContextFn> recorder_{nullptr};
  std::atomic<torch_cuda::RecordContext> when_{torch_cuda::RecordContext::NEVER};

  mutable std::mutex mutex_;
  std::uint32_t skipped_ = 0;  // bits by action
  ring<trace_entry> entries_;
  std::vector<torch_cuda::AllocatorTraceTracker> trackers_;
  std::unordered_map<std::uint64_t, context> live_stacks_;
  std::unordered_set<std::uint64_t> recorded_;
  std::map<std::uint64_t, block_note> awaiting_;  // freed, not completed
  std::string metadata_;
};

/// Annotations of all devices (torch.profiler.record_function with global annotations).
class annotations {
 public:
  void configure(bool enabled, std::size_t most, bool clear);
  void add(annotation entry);
  [[nodiscard]] std::vector<annotation> all() const;
  [[nodiscard]] bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> enabled_{false};
  mutable std::mutex mutex_;
  ring<annotation> entries_;
};

}  // namespace weir_torch
