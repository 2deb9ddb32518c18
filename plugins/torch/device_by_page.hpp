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
/// Two devices never share 2 MiB of addresses, because physical memory comes in such units. The
/// table covers 48 bits of addresses; of its 128 MiB only the pages that are written take memory.
/// Any thread; a block's page is set before the block is handed out, so who frees it sees the
/// device.
class device_by_page {
 public:
  static constexpr int none = -1;

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
    if (__atomic_load_n(&table_[page], __ATOMIC_RELAXED) != entry)
      __atomic_store_n(&table_[page], entry, __ATOMIC_RELAXED);
  }

  /// The device that was set last for these 2 MiB, or none.
  [[nodiscard]] int find(const void* address) const noexcept {
    const auto page = page_of(address);
    if (page >= entries) return none;
    return static_cast<int>(__atomic_load_n(&table_[page], __ATOMIC_RELAXED)) - 1;
  }

 private:
  static constexpr std::size_t entries = std::size_t{1} << (48 - 21);

  static std::size_t page_of(const void* address) noexcept {
    return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(address) >> 21);
  }

  std::uint8_t* table_;
};

}  // namespace weir_torch
