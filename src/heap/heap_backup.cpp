// SPDX-License-Identifier: Apache-2.0
// Taking, dropping and returning host memory for contents.
#include "heap/heap_backup.hpp"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

result<void> heap_backup::reserve(bytes size, host_memory_kind kind) try {
  WEIR_TRY(core_.usable());
  const thread_capture_mode_guard relaxed{core_.device_};
  return of(kind).reserve(size.count());
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> heap_backup::trim() {
  WEIR_TRY(core_.usable());
  const thread_capture_mode_guard relaxed{core_.device_};
  WEIR_TRY_VALUE(pinned, pinned_.trim());
  WEIR_TRY_VALUE(pageable, pageable_.trim());
  return pinned + pageable;
}

std::unique_ptr<backup_copies> heap_backup::take_copies() {
  core_.mutex_.assert_held();
  if (idle_copies_.empty()) return std::make_unique<backup_copies>(core_.device_, pinned_);
  auto idle = std::move(idle_copies_.back());
  idle_copies_.pop_back();
  idle->restart();
  return idle;
}

void heap_backup::keep_copies(std::unique_ptr<backup_copies> idle) noexcept {
  core_.mutex_.assert_held();
  try {
    idle_copies_.push_back(std::move(idle));
  } catch (const std::bad_alloc&) {
  }
}

void heap_backup::drop(pool_state& pool) noexcept {
  core_.mutex_.assert_held();
  for (const saved_range& each : pool.saved) of(pool.saved_in).give(each.to);
  pool.saved.clear();
}

void heap_backup::drop(pool_state& pool, std::uint64_t start, std::uint64_t end) noexcept {
  core_.mutex_.assert_held();
  auto& saved = pool.saved;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const saved_range whole = saved[i];
    const std::uint64_t low = std::max(start, whole.address);
    const std::uint64_t high = std::min(end, whole.address + whole.to.size);
    if (low >= high) continue;
    const saved_range upper{
        high, {whole.to.host + (high - whole.address), whole.address + whole.to.size - high}};
    if (upper.to.size != 0) {
      try {
        saved.insert(saved.begin() + static_cast<std::ptrdiff_t>(i) + 1, upper);
      } catch (const std::bad_alloc&) {
        return;  // it is dropped with the rest
      }
    }
    saved[i].to.size = low - whole.address;
    of(pool.saved_in).give({whole.to.host + (low - whole.address), high - low});
    if (saved[i].to.size == 0) saved.erase(saved.begin() + static_cast<std::ptrdiff_t>(i--));
  }
}

/// Both kinds are tried, whatever happens to the first.
result<bytes> heap_backup::release() {
  core_.mutex_.assert_held();
  for (const auto& each : core_.pools_) drop(*each);
  idle_copies_.clear();
  result<bytes> returned = bytes{};
  static_cast<void>(core_.without_lock([&] {  // the heap is closed already
    returned = pinned_.trim();
    auto pageable = pageable_.trim();
    if (returned) returned = std::move(pageable);
  }));
  return returned;
}

}}}  // namespace weir::v0::heap
