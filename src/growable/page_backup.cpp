// SPDX-License-Identifier: Apache-2.0
// Copies of suspended pages.
#include "growable/page_backup.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "order/driver_access.hpp"

namespace weir { inline namespace v0 { namespace growable {
namespace {

constexpr bytes chunk{std::uint64_t{32} << 20};

}  // namespace

result<void> page_backup::save(std::span<const std::uint64_t> pages, bytes page) try {
  std::vector<heap::backup_piece> pieces;
  WEIR_TRY(host_.of(host_memory_kind::pinned).take(page.count() * pages.size(), pieces));
  std::size_t next = 0;
  try {
    all_.reserve(pages.size() + pieces.size());
  } catch (const std::bad_alloc&) {
    for (const auto& each : pieces) host_.of(host_memory_kind::pinned).give(each);
    return detail::no_host_memory();
  }
  for (const std::uint64_t begin : pages) {
    for (std::uint64_t at = begin; at < begin + page.count();) {
      heap::backup_piece& from = pieces[next];
      const std::uint64_t size = std::min(begin + page.count() - at, from.size);
      all_.push_back({at, {from.host, size}});
      at += size;
      from.host += size;
      from.size -= size;
      if (from.size == 0) ++next;
    }
  }
  auto copied = copy(true);
  if (!copied) drop();
  return copied;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> page_backup::restore() { return copy(false); }

result<void> page_backup::copy(bool to_host) try {
  if (all_.empty()) return {};
  order::driver_access driver{device_};
  WEIR_TRY(driver.entered());
  const context_scope& bound = driver.enter();
  heap::backup_copies copies{device_, host_.of(host_memory_kind::pinned)};
  const suspend_progress nobody;
  heap::copy_meter meter{nobody, size().count()};
  const auto queue = [&]() -> result<void> {
    WEIR_TRY(copies.begin(host_memory_kind::pinned, chunk, meter, bound));
    for (const saved& each : all_) {
      WEIR_TRY(to_host ? copies.save(each.address, each.to, bound)
                       : copies.restore(each.address, each.to, bound));
    }
    return copies.finish(bound);
  };
  auto done = queue();
  // Host memory that a copy may still write to must not serve others.
  if (!copies.drain(bound) && !done) all_.clear();
  return done;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void page_backup::drop() noexcept {
  for (const saved& each : all_) host_.of(host_memory_kind::pinned).give(each.to);
  all_.clear();
}

bytes page_backup::size() const noexcept {
  bytes sum{};
  for (const saved& each : all_) sum += bytes{each.to.size};
  return sum;
}

}}}  // namespace weir::v0::growable
