// SPDX-License-Identifier: Apache-2.0
// The allocation history of one device in torch's terms: trace entries, stacks, annotations,
// trackers.
#pragma once

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

#include "compat.hpp"
#include "ring.hpp"
#include "segment_table.hpp"
#include "tracker_failure.hpp"
#include "weir/observe/events.hpp"

namespace weir_torch {

/// While it lives, what this thread makes weir do to physical memory gets this stack in the
/// history: segments are reserved for a request, and released by a free or an emptied cache.
class [[nodiscard]] event_stack {
 public:
  explicit event_stack(context stack) noexcept;
  ~event_stack();
  event_stack(const event_stack&) = delete;
  event_stack& operator=(const event_stack&) = delete;

  /// Of the innermost that lives on this thread, or null.
  [[nodiscard]] static context current();

 private:
  const context stack_;
  const event_stack* const outer_;
};

/// The block that a trace entry is about.
struct traced_block {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< as requested
  void* stream = nullptr;
  MempoolId_t pool{0, 0};
};

/// Adds entries while recording is on or a tracker is attached, and keeps the stacks of live
/// blocks.
///
/// The entry of an allocation is added after it and that of a free before it, so the entries of one
/// address are in the order in which they happened, whatever threads do. A free of memory that
/// other streams were recorded on is completed when the memory is seen to be reused or free.
///
/// is_active() is what the fast path reads. Any thread. Called with weir's lock held (on_event), so
/// nothing in here calls weir. Never destroyed: entries hold Python objects that must not be
/// released once the interpreter is gone.
class allocation_history final : public weir::event_sink {
 public:
  /// `torch_id` names weir's pools; it is called with weir's lock held.
  allocation_history(c10::DeviceIndex device, std::function<void()> on_change,
                     std::function<MempoolId_t(weir::pool_id)> torch_id)
      : device_{device}, on_change_{std::move(on_change)}, torch_id_{std::move(torch_id)} {}
  allocation_history(const allocation_history&) = delete;
  allocation_history& operator=(const allocation_history&) = delete;

  struct settings {
    bool enabled = false;
    torch_cuda::CreateContextFn stack_recorder = nullptr;
    std::size_t max_entries = 1;
    torch_cuda::RecordContext stack_level = torch_cuda::RecordContext::NEVER;
    bool clear = false;
    std::vector<std::string> skipped_actions;
  };
  void configure(const settings& config);
  void attach(torch_cuda::AllocatorTraceTracker tracker);

  [[nodiscard]] bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }
  /// Whether entries are kept or tracked.
  [[nodiscard]] bool has_readers() const noexcept {
    return has_readers_.load(std::memory_order_relaxed);
  }
  /// Whether allocations and frees must be reported: entries have readers, or stacks are kept.
  [[nodiscard]] bool is_active() const noexcept {
    return has_readers() || stack_count_.load(std::memory_order_relaxed) != 0;
  }

  /// The caller's stack, if stacks of this level are recorded. Takes the GIL: nobody may hold a
  /// lock of weir's or ours.
  [[nodiscard]] context capture_stack(torch_cuda::RecordContext level) const;

  void on_allocated(const traced_block& block, context stack);
  /// The block is about to be freed.
  /// Without a stack of its own, the free has that of the allocation.
  void on_free(const traced_block& block, context stack);
  void on_stream_recorded(std::uint64_t address);
  void on_out_of_memory(std::uint64_t size, std::uint64_t device_free, void* stream,
                        MempoolId_t pool, context stack);
  void on_snapshot(std::uint64_t active, MempoolId_t pool);
  /// Attaches a text to a live block. Only where torch has such entries (from 2.14 on).
  void annotate(const traced_block& block, context stack, const std::string& text);
  /// Completes the frees whose memory is not among `pending` any more.
  void complete_frees(const std::unordered_set<std::uint64_t>& pending);

  [[nodiscard]] std::vector<trace_entry> entries() const;
  [[nodiscard]] context stack_of(std::uint64_t address) const;
  /// Of the request that the physical memory there was taken for.
  [[nodiscard]] context segment_stack_of(std::uint64_t address) const;

  /// The calling thread's, for its entries on every device, as torch keeps it.
  static void set_metadata(const std::string& text);
  [[nodiscard]] static std::string metadata();
  static void push_compile_context(const std::string& text);
  static void pop_compile_context();

  /// Physical memory is reserved, released or moved: segment entries.
  void on_event(const weir::memory_event& event) noexcept override;
  /// Before and after this becomes an observer of the allocator, with what is mapped by then:
  /// events that come in between count on top of that.
  void begin_segments();
  /// With policy classic_expandable: memory is mapped piece by piece there.
  void let_segments_expand() noexcept { segments_expand_ = true; }
  [[nodiscard]] bool segments_expand() const noexcept { return segments_expand_; }
  void set_segments(const std::vector<segment_table::segment>& mapped);

 private:
  using action = trace_entry::Action;

  // All of these need the lock.
  void add_entry(action kind, const traced_block& block, context stack,
                 const std::string* attached_text = nullptr);
  void apply_to_segments(const weir::memory_event& event, segment_table::changes& told);
  /// The stack of the change: `stack`, or without one that of what took the memory.
  [[nodiscard]] context note_segment_stacks(const segment_change& change, const context& stack);
  void complete_overlapping(std::uint64_t address, std::uint64_t size);
  void update() noexcept;

  const c10::DeviceIndex device_;
  const std::function<void()> on_change_;  // is_active() may have changed
  const std::function<MempoolId_t(weir::pool_id)> torch_id_;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> has_readers_{false};
  std::atomic<std::size_t> stack_count_{0};
  std::atomic<torch_cuda::CreateContextFn> stack_recorder_{nullptr};
  std::atomic<torch_cuda::RecordContext> stack_level_{torch_cuda::RecordContext::NEVER};

  mutable std::mutex mutex_;
  std::uint32_t skipped_actions_ = 0;  // a bit each
  ring<trace_entry> entries_;
  std::vector<torch_cuda::AllocatorTraceTracker> trackers_;
  std::unordered_map<std::uint64_t, context> live_stacks_;
  /// A range of physical memory, and what it was taken for.
  struct stacked_range {
    std::uint64_t size = 0;
    context stack;
  };
  std::map<std::uint64_t, stacked_range> segment_stacks_;  // by address
  std::unordered_set<std::uint64_t> stream_recorded_;      // addresses
  /// A block that was freed and not completed, and the stack that both entries have.
  struct pending_free {
    traced_block block;
    context stack;
  };
  std::map<std::uint64_t, pending_free> pending_frees_;  // by address
  segment_table segments_;
  std::atomic<bool> segments_expand_{false};
  std::optional<std::vector<weir::memory_event>> early_events_;  // since begin_segments()
};

/// Annotations of all devices (torch.profiler.record_function with global annotations).
class annotations {
 public:
  void configure(bool enabled, std::size_t max_entries, bool clear);
  void add(annotation entry);
  [[nodiscard]] std::vector<annotation> all() const;
  [[nodiscard]] bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> enabled_{false};
  mutable std::mutex mutex_;
  ring<annotation> entries_;
};

}  // namespace weir_torch
