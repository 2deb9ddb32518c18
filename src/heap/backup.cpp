// SPDX-License-Identifier: Apache-2.0
// Host memory for the contents of suspended memory, and the copies there and back.
#include "heap/backup.hpp"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "device/finished_work.hpp"
#include "observe/own_work.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

using driver::call;
using driver::check;

// A segment is at most so much, so that idle ones can go, and at least so much, so that they are
// few.
constexpr std::uint64_t largest_segment = std::uint64_t{1} << 30;
constexpr std::uint64_t segment_step = std::uint64_t{32} << 20;
/// What one copy of unpinned contents goes through.
constexpr std::uint64_t most_staging = std::uint64_t{8} << 20;

error no_backup_memory(std::uint64_t size, host_memory_kind kind) {
  return {{.code = errc::no_host_memory,
           .requested = bytes{size},
           .detail = "for contents of suspended memory, " + to_string(kind)}};
}

/// What the host has in all, in memory and on disk; more cannot be had from it.
std::uint64_t size_of_host() noexcept {
  struct ::sysinfo host {};
  if (::sysinfo(&host) != 0) return ~std::uint64_t{0};
  return (std::uint64_t{host.totalram} + host.totalswap) * host.mem_unit;
}

}  // namespace

// --- Memory --------------------------------------------------------------------------------------

backup_memory::~backup_memory() {
  if (home_->forked()) return;            // the driver is the parent's
  const detail::mutex_lock lock{mutex_};  // nobody else knows it any more
  for (const segment& each : segments_)
    detail::report_failure(return_segment(each.base, each.size));
  all_held_.remove(held());
}

std::uint64_t backup_memory::available() const noexcept {
  std::uint64_t total = 0;
  for (const segment& each : segments_)
    for (const backup_piece& range : each.free) total += range.size;
  return total;
}

/// From the system, without the lock: pinning takes long.
result<void> backup_memory::add_segment(std::uint64_t size) {
  segment fresh{.base = nullptr, .size = size, .free = {}};
  fresh.free.reserve(8);
  if (kind_ == host_memory_kind::pageable) {
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return no_backup_memory(size, kind_);
    fresh.base = static_cast<std::byte*>(memory);
  } else {
    const context_scope bound{home_->handle()};
    if (!bound) return bound.error();
    void* memory = nullptr;
    auto pinned = check(call::mem_host_alloc,
                        bound.driver().mem_host_alloc(&memory, size, driver::host_alloc_portable),
                        bytes{size});
    if (!pinned && pinned.code() == errc::out_of_memory) return no_backup_memory(size, kind_);
    WEIR_TRY(pinned);
    fresh.base = static_cast<std::byte*>(memory);
  }
  std::byte* const base = fresh.base;
  fresh.free.push_back({base, size});
  try {
    const detail::mutex_lock lock{mutex_};
    segments_.push_back(std::move(fresh));
    held_.fetch_add(size, std::memory_order_relaxed);
    all_held_.add(size);
    return {};
  } catch (const std::bad_alloc&) {  // nothing was moved
  }
  detail::report_failure(return_segment(base, size));
  return no_backup_memory(size, kind_);
}

result<void> backup_memory::reserve(std::uint64_t size) {
  if (size > size_of_host()) return no_backup_memory(size, kind_);
  for (;;) {
    std::uint64_t missing = 0;
    {
      const detail::mutex_lock lock{mutex_};
      const std::uint64_t idle = available();
      if (idle >= size) return {};
      missing = size - idle;
    }
    const std::uint64_t rounded = (missing + segment_step - 1) / segment_step * segment_step;
    if (auto added = add_segment(std::min(rounded, largest_segment)); !added) {
      static_cast<void>(trim());  // a part is of no use, and the host is short of it
      return added;
    }
  }
}

/// Room in all lists of free ranges for what give() may add.
void backup_memory::prepare(std::size_t more) {
  for (segment& each : segments_) each.free.reserve(pieces_ + more + 2);
}

result<void> backup_memory::take(std::uint64_t size, std::vector<backup_piece>& pieces) {
  for (;;) {
    WEIR_TRY(reserve(size));
    const detail::mutex_lock lock{mutex_};
    if (available() < size) continue;  // somebody else was quicker
    std::size_t ranges = 0;
    for (const segment& each : segments_) ranges += each.free.size();
    pieces.reserve(pieces.size() + ranges);
    prepare(ranges);
    for (segment& each : segments_) {
      while (size != 0 && !each.free.empty()) {
        backup_piece& range = each.free.front();
        const std::uint64_t taken = std::min(size, range.size);
        pieces.push_back({range.host, taken});
        ++pieces_;
        range.host += taken;
        range.size -= taken;
        size -= taken;
        if (range.size == 0) each.free.erase(each.free.begin());
      }
    }
    return {};
  }
}

std::optional<backup_piece> backup_memory::find_whole(std::uint64_t size) {
  const detail::mutex_lock lock{mutex_};
  prepare(1);
  for (segment& each : segments_) {
    const auto range = std::find_if(each.free.begin(), each.free.end(),
                                    [&](const backup_piece& one) { return one.size >= size; });
    if (range == each.free.end()) continue;
    const backup_piece taken{range->host, size};
    range->host += size;
    range->size -= size;
    if (range->size == 0) each.free.erase(range);
    ++pieces_;
    return taken;
  }
  return {};
}

result<backup_piece> backup_memory::take_whole(std::uint64_t size) {
  for (;;) {
    if (const auto found = find_whole(size)) return *found;
    WEIR_TRY(add_segment((size + segment_step - 1) / segment_step * segment_step));
  }
}

void backup_memory::give(backup_piece piece) noexcept {
  if (piece.size == 0) return;
  const detail::mutex_lock lock{mutex_};
  pieces_ -= pieces_ == 0 ? 0 : 1;
  const auto home = std::find_if(segments_.begin(), segments_.end(), [&](const segment& each) {
    return !each.leaves && piece.host >= each.base && piece.host < each.base + each.size;
  });
  auto& free = home->free;
  const auto after = std::find_if(free.begin(), free.end(),
                                  [&](const backup_piece& each) { return each.host > piece.host; });
  const bool joins_after = after != free.end() && piece.host + piece.size == after->host;
  const bool joins_before =
      after != free.begin() && std::prev(after)->host + std::prev(after)->size == piece.host;
  if (joins_before) {
    std::prev(after)->size += piece.size + (joins_after ? after->size : 0);
    if (joins_after) free.erase(after);
  } else if (joins_after) {
    after->host = piece.host;
    after->size += piece.size;
  } else {
    // A piece that is given back in parts can make more ranges than there was room prepared for.
    try {
      free.insert(after, piece);
    } catch (const std::bad_alloc&) {
      return;  // lost until the segment goes with the allocator
    }
  }
}

backup_piece backup_memory::unlink_idle() noexcept {
  for (segment& each : segments_) {
    if (each.free.size() != 1 || each.free.front().size != each.size) continue;
    each.free.clear();
    each.leaves = true;
    return {each.base, each.size};
  }
  return {};
}

/// The driver has it, or refused it.
void backup_memory::end_return(backup_piece idle, bool returned) noexcept {
  const detail::mutex_lock lock{mutex_};
  // If the driver handed the addresses out again meanwhile, the new segment stands behind.
  const auto home = std::find_if(segments_.begin(), segments_.end(), [&](const segment& each) {
    return each.base == idle.host && each.free.empty() && each.leaves;
  });
  if (!returned) {
    home->leaves = false;
    home->free.push_back(idle);  // there is room
    return;
  }
  held_.fetch_sub(idle.size, std::memory_order_relaxed);
  all_held_.remove(idle.size);
  segments_.erase(home);
}

result<bytes> backup_memory::trim() {
  std::uint64_t returned = 0;
  for (;;) {
    backup_piece idle;
    {
      const detail::mutex_lock lock{mutex_};
      idle = unlink_idle();
    }
    if (idle.size == 0) return bytes{returned};
    auto gone = return_segment(idle.host, idle.size);
    end_return(idle, gone.has_value());
    WEIR_TRY(gone);
    returned += idle.size;
  }
}

result<void> backup_memory::return_segment(std::byte* base, std::uint64_t size) const noexcept {
  if (kind_ == host_memory_kind::pageable) {
    ::munmap(base, size);
    return {};
  }
  const context_scope bound{home_->handle()};
  if (!bound) return bound.error();
  return check(call::mem_free_host, bound.driver().mem_free_host(base));
}

// --- Copies --------------------------------------------------------------------------------------

backup_copies::~backup_copies() {
  if (home_->forked()) return;
  const context_scope bound{home_->handle()};
  if (!bound) return;  // streams go with the driver
  for (const lane& each : all_)
    if (each.stream != nullptr)
      detail::report_failure(
          check(call::stream_destroy, bound.driver().stream_destroy(each.stream)));
}

result<void> backup_copies::begin(host_memory_kind kind, bytes chunk, copy_meter& meter,
                                  const context_scope& bound) {
  WEIR_TRY_VALUE(priorities, home_->handle().stream_priorities());
  staged_ = kind == host_memory_kind::pageable;
  meter_ = meter.has_reader() ? &meter : nullptr;
  chunk_ = staged_ ? std::min(chunk.count(), most_staging) : chunk.count();
  for (lane& each : all_) {
    if (each.stream == nullptr) {
      const detail::mutex_lock lock{queueing_};
      WEIR_TRY(check(call::stream_create_with_priority,
                     bound.driver().stream_create_with_priority(
                         &each.stream, driver::CU_STREAM_NON_BLOCKING, priorities.least)));
    }
    if (!staged_) continue;
    WEIR_TRY_VALUE(staging, pinned_.take_whole(chunk_));
    each.staging = staging;
  }
  return {};
}

/// The lane's stream has done its copy, and what that staged is where it belongs.
result<void> backup_copies::settle(lane& each, const context_scope& bound) {
  WEIR_TRY(check(call::stream_synchronize, bound.driver().stream_synchronize(each.stream)));
  const backup_piece done = std::exchange(each.waiting, {});
  if (done.host != nullptr) std::memcpy(done.host, each.staging.host, done.size);
  if (const std::uint64_t arrived = std::exchange(each.metered, 0); arrived != 0)
    meter_->add(arrived);
  return {};
}

result<void> backup_copies::save(std::uint64_t address, backup_piece to,
                                 const context_scope& bound) {
  const observe::own_work_scope own;  // with what lies between the blocks
  for (std::uint64_t at = 0; at < to.size; at += chunk_) {
    const std::uint64_t size = std::min(chunk_, to.size - at);
    lane& by = all_[next_++ % lanes];
    if (staged_ || meter_ != nullptr) WEIR_TRY(settle(by, bound));
    std::byte* const host = staged_ ? by.staging.host : to.host + at;
    {
      const detail::mutex_lock lock{queueing_};
      if (stopped_) return {};
      WEIR_TRY(check(call::memcpy_dtoh_async,
                     bound.driver().memcpy_dtoh_async(host, address + at, size, by.stream),
                     bytes{size}));
    }
    if (staged_) by.waiting = {to.host + at, size};
    if (meter_ != nullptr) by.metered = size;
  }
  return {};
}

result<void> backup_copies::restore(std::uint64_t address, backup_piece from,
                                    const context_scope& bound) {
  const observe::own_work_scope own;  // with what lies between the blocks
  for (std::uint64_t at = 0; at < from.size; at += chunk_) {
    const std::uint64_t size = std::min(chunk_, from.size - at);
    lane& by = all_[next_++ % lanes];
    const std::byte* host = from.host + at;
    if (staged_ || meter_ != nullptr) WEIR_TRY(settle(by, bound));
    if (staged_) {
      std::memcpy(by.staging.host, host, size);
      host = by.staging.host;
    }
    WEIR_TRY(check(call::memcpy_htod_async,
                   bound.driver().memcpy_htod_async(address + at, host, size, by.stream),
                   bytes{size}));
    if (meter_ != nullptr) by.metered = size;
  }
  return {};
}

result<void> backup_copies::precede(const stream_ref& stream, const context_scope& bound) {
  const detail::mutex_lock lock{queueing_};
  for (const lane& each : all_) {
    if (each.stream == nullptr) continue;
    WEIR_TRY_VALUE(copied, event::create(home_->handle()));
    WEIR_TRY(check(call::event_record, bound.driver().event_record(copied.handle(), each.stream)));
    WEIR_TRY(stream.wait(copied));
  }
  return {};
}

result<void> backup_copies::finish(const context_scope& bound) {
  for (std::size_t i = 0; i < lanes; ++i) {
    lane& oldest = all_[(next_ + i) % lanes];
    if (oldest.stream == nullptr) continue;  // nothing was ever copied
    if (!staged_) {                          // asleep: it may be long
      WEIR_TRY_VALUE(copied, event::create(home_->handle(), {.blocking_sync = true}));
      WEIR_TRY(
          check(call::event_record, bound.driver().event_record(copied.handle(), oldest.stream)));
      WEIR_TRY(copied.synchronize());
    }
    WEIR_TRY(settle(oldest, bound));
  }
  return {};
}

bool backup_copies::drain(const context_scope& bound) noexcept {
  bool idle = true;
  for (const lane& each : all_) {
    if (each.stream == nullptr) continue;  // nothing was ever copied
    idle = idle && bound && bound.driver().stream_synchronize(each.stream) == driver::CUDA_SUCCESS;
  }
  if (!idle) {
    const auto waited = detail::wait_for_all_work(bound);
    idle = waited || detail::does_no_work(waited.error());
  }
  for (lane& each : all_) {
    each.waiting = {};
    each.metered = 0;
    // What a copy may still use is nobody's, until the segment goes with the allocator.
    const backup_piece staging = std::exchange(each.staging, {});
    if (idle) pinned_.give(staging);
  }
  meter_ = nullptr;
  return idle;
}

}}}  // namespace weir::v0::heap
