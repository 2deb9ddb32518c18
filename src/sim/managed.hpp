// SPDX-License-Identifier: Apache-2.0
// Managed memory: where its pages are, what was advised about them, and how they move.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>

#include "sim/memory.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// A processor: a device, or the host.
class processor {
 public:
  constexpr processor() = default;  ///< nobody
  [[nodiscard]] static constexpr processor host() { return processor{host_number}; }
  [[nodiscard]] static constexpr processor device(int ordinal) { return processor{ordinal}; }

  [[nodiscard]] constexpr bool is_host() const noexcept { return number_ == host_number; }
  [[nodiscard]] constexpr bool is_device() const noexcept { return number_ >= 0; }
  /// As the driver numbers them: -1 is the host, -2 nobody.
  [[nodiscard]] constexpr int number() const noexcept { return number_; }
  friend constexpr bool operator==(processor, processor) = default;

 private:
  static constexpr int host_number = driver::cpu_device;
  static constexpr int nobody_number = -2;
  explicit constexpr processor(int number) : number_{number} {}
  int number_ = nobody_number;
};

/// A set of processors; at most 64 devices.
class processor_set {
 public:
  [[nodiscard]] bool has(processor p) const noexcept {
    return p.is_host() ? host_ : p.is_device() && (devices_ >> p.number() & 1) != 0;
  }
  void add(processor p) noexcept { set(p, true); }
  void remove(processor p) noexcept { set(p, false); }
  [[nodiscard]] bool empty() const noexcept { return !host_ && devices_ == 0; }
  template <class Visit>
  void each_device(Visit&& visit) const {
    for (int device = 0; device < 64; ++device) {
      if ((devices_ >> device & 1) != 0) visit(device);
    }
  }
  friend bool operator==(const processor_set&, const processor_set&) = default;

 private:
  void set(processor p, bool present) noexcept {
    if (p.is_host()) host_ = present;
    if (!p.is_device()) return;
    const std::uint64_t bit = std::uint64_t{1} << p.number();
    devices_ = present ? devices_ | bit : devices_ & ~bit;
  }
  bool host_ = false;
  std::uint64_t devices_ = 0;
};

/// What is known about a run of pages.
struct page_run {
  processor_set residents{};  ///< who has a copy; nobody before the first touch
  bool read_mostly = false;
  processor preferred{};
  processor_set accessed_by{};
  processor last_prefetch{};
  std::uint64_t touched = 0;  ///< when last, by a counter: the oldest leave a full device first
  friend bool operator==(const page_run&, const page_run&) = default;
};

/// Whom managed memory is attached to.
struct attachment {
  unsigned flags = driver::CU_MEM_ATTACH_GLOBAL;
  std::weak_ptr<stream_state> stream{};  ///< of CU_MEM_ATTACH_SINGLE

  [[nodiscard]] bool is_to(const stream_state& other) const noexcept {
    return flags == driver::CU_MEM_ATTACH_SINGLE && stream.lock().get() == &other;
  }
};

/// The pages of one managed allocation, as runs of equal state. Costs what there are of different
/// runs, not what there are of pages. Data does not move: all processors see the same memory, and
/// only the bookkeeping says where it would be.
class managed_pages {
 public:
  /// The page of the host: advice and prefetches are rounded outwards to it, and migrations counted
  /// in it.
  static constexpr std::uint64_t page = 4096;
  /// What a page fault moves at least.
  static constexpr std::uint64_t fault_size = 64 << 10;

  /// Attached as CU_MEM_ATTACH_* says.
  managed_pages(std::uint64_t size, unsigned attach_flags);

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Calls `visit(page_run&, size)` for each run of [offset, offset + size), which is rounded
  /// outwards to pages; runs are cut at its ends and joined again afterwards.
  template <class Visit>
  void change(std::uint64_t offset, std::uint64_t size, Visit&& visit) {
    const std::uint64_t from = offset / page * page;
    const std::uint64_t end = std::min(size_, (offset + size + page - 1) / page * page);
    cut(from);
    cut(end);
    for (auto it = runs_.find(from); it != runs_.end() && it->first < end; ++it) {
      visit(it->second, next_start(it) - it->first);
    }
    join(from, end);
  }
  /// The same for reading only: `visit(const page_run&, from, end)`.
  template <class Visit>
  void inspect(std::uint64_t offset, std::uint64_t size, Visit&& visit) const {
    auto it = std::prev(runs_.upper_bound(offset));
    for (; it != runs_.end() && it->first < offset + size; ++it) {
      visit(it->second, it->first, next_start(it));
    }
  }

  attachment attached;
  /// What work queued from now on will find, once the attachments queued before it have happened.
  attachment queued_attachment;
  /// The stream's last work is complete: what is attached to it goes back to the attachment that it
  /// was allocated with.
  void stream_ended(const stream_state& stream) noexcept;

 private:
  using run_map = std::map<std::uint64_t, page_run>;
  [[nodiscard]] std::uint64_t next_start(run_map::const_iterator it) const {
    const auto next = std::next(it);
    return next == runs_.end() ? size_ : next->first;
  }
  void cut(std::uint64_t offset);
  void join(std::uint64_t from, std::uint64_t end);

  unsigned initial_flags_;  // of the allocation
  std::uint64_t size_;      // in whole pages
  run_map runs_;            // never empty; begins at 0; neighbours differ
};

/// A processor touches managed memory now: -1 is the host. Pages move, are copied, or are accessed
/// from afar, as residency and advice have it. On devices that the host must not disturb, a touch
/// by the host while they work is reported as a hazard.
void managed_touch(state& machine, region& area, std::uint64_t address, std::uint64_t size,
                   int device_or_host, bool write);

/// Moves pages to `target` as a prefetch does.
void managed_prefetch(state& machine, region& area, std::uint64_t offset, std::uint64_t size,
                      processor target);

/// The last work of a stream is complete, and its handle is gone: nothing is attached to it now.
void managed_detach(state& machine, const stream_state& ended);

/// Work of `stream` is queued that touches managed memory. Whether the memory is attached to
/// another stream of a device without concurrent managed access: such work "will produce undefined
/// results" (cuStreamAttachMemAsync).
[[nodiscard]] bool attached_elsewhere(const state& machine, const region& area,
                                      const stream_state& stream);

/// Memory is attached to the host by an operation of `stream` that was queued at `when`: reports
/// work of devices without concurrent managed access that is in no order with it.
void check_attach_to_host(state& machine, const region& area, const stream_state& stream,
                          const moment& when);

/// Takes the advice back: one copy of the pages is left.
void unset_read_mostly(state& machine, page_run& run, std::uint64_t size);

/// Releases the capacity of all pages; the region is about to go.
void managed_forget(state& machine, region& area);

/// Moves least recently touched managed pages off a device until `needed` bytes are free or nothing
/// managed is left on it.
void evict_managed(state& machine, int device, std::uint64_t needed);

}}}  // namespace weir::v0::sim
