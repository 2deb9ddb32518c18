// SPDX-License-Identifier: Apache-2.0
// The device that an address belongs to, in one load: a byte for every 2 MiB of the address space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <sys/mman.h>

namespace weir_torch {

/// The device that a block was allocated on, by the page of its first byte.
///
/// Physical memory comes in units of 2 MiB, so that two devices share a page only where memory
/// comes from elsewhere (pools over other allocators), or where addresses of one are reused for the
/// other: such a page is `unknown` from then on, and so are addresses beyond the 48 bits that the
/// table covers. Of its 128 MiB only the pages that are written take memory.
/// Any thread; a block's page is set before the block is handed out, so who frees it sees the
/// device.
class device_by_page {
 public:
  static constexpr int none = -1;
  static constexpr int unknown = -2;  // each device must be asked

  device_by_page() {
    void* const table = ::mmap(nullptr, entries, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) throw std::bad_alloc{};
    table_ = static_cast<std::uint8_t*>(table);
  }
  ~device_by_page() { ::munmap(table_, entries); }
  device_by_page(const device_by_page&) = delete;
  device_by_page& operator=(const device_by_page&) = delete;

  void set(const void* address, int device) noexcept {
    const auto page = page_of(address);
    if (page >= entries) return;
    const auto entry = static_cast<std::uint8_t>(device + 1);
    std::uint8_t before = __atomic_load_n(&table_[page], __ATOMIC_RELAXED);
    while (before != entry && before != shared) {
      const std::uint8_t now = before == 0 ? entry : shared;
      if (__atomic_compare_exchange_n(&table_[page], &before, now, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        return;
    }
  }

  /// The only device that was ever set for these 2 MiB, none, or unknown.
  [[nodiscard]] int find(const void* address) const noexcept {
    const auto page = page_of(address);
    if (page >= entries) return unknown;
    const std::uint8_t entry = __atomic_load_n(&table_[page], __ATOMIC_RELAXED);
    return entry == shared ? unknown : static_cast<int>(entry) - 1;
  }

 private:
  static constexpr std::uint8_t shared = 0xff;
  static constexpr std::size_t entries = std::size_t{1} << (48 - 21);

  static std::size_t page_of(const void* address) noexcept {
    return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(address) >> 21);
  }

  std::uint8_t* table_;
};

}  // namespace weir_torch
