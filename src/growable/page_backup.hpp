// SPDX-License-Identifier: Apache-2.0
// The contents of suspended pages, in host memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "heap/backup.hpp"
#include "heap/heap_backup.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"

namespace weir { inline namespace v0 { namespace growable {

/// Copies of pages in host memory of the allocator's backup.
///
/// Owned by a reservation; one thread at a time. The copies are made without any lock, on streams
/// of their own: all work on the pages is done before save(), and they are mapped for restore().
class page_backup {
 public:
  page_backup(weir::device device, heap::heap_backup& host) noexcept
      : device_{device}, host_{host} {}
  ~page_backup() { drop(); }
  page_backup(const page_backup&) = delete;
  page_backup& operator=(const page_backup&) = delete;

  /// Copies these pages to the host, or nothing. no_host_memory: the host has not so much.
  [[nodiscard]] result<void> save(std::span<const std::uint64_t> pages, bytes page);
  /// Copies them back, and waits for the copies. The contents stay on the host until drop().
  [[nodiscard]] result<void> restore();
  void drop() noexcept;
  [[nodiscard]] bytes size() const noexcept;

 private:
  struct saved {
    std::uint64_t address = 0;
    heap::backup_piece to{};
  };
  [[nodiscard]] result<void> copy(bool to_host);

  const weir::device device_;
  heap::heap_backup& host_;
  std::vector<saved> all_;
};

}}}  // namespace weir::v0::growable
