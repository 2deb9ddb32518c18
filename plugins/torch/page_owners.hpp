// Which device an address belongs to, in one load: a byte for every 2 MiB of the address space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <sys/mman.h>

namespace weir_torch {

/// Says of a block's first byte which device it was allocated on.
///
/// Two devices never share 2 MiB of addresses, because physical memory comes in such units. The
/// table covers 48 bits of addresses; of its 128 MiB only the pages that are written take memory.
/// Any thread; a block is noted before it is handed out, so who frees it sees the note.
class page_owners {
 public:
  static constexpr int none = -1;

  page_owners() {
    void* const made = ::mmap(nullptr, entries, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) throw std::bad_alloc{};
    bytes_ = static_cast<std::uint8_t*>(made);
  }
  ~page_owners() { ::munmap(bytes_, entries); }
  page_owners(const page_owners&) = delete;
  page_owners& operator=(const page_owners&) = delete;

  void note(const void* address, int device) noexcept {
    const auto page = page_of(address);
    if (page >= entries) return;
    const auto mark = static_cast<std::uint8_t>(device + 1);
    if (__atomic_load_n(&bytes_[page], __ATOMIC_RELAXED) != mark)
      __atomic_store_n(&bytes_[page], mark, __ATOMIC_RELAXED);
  }

  /// The device noted last for these 2 MiB, or none.
  [[nodiscard]] int of(const void* address) const noexcept {
    const auto page = page_of(address);
    if (page >= entries) return none;
    return static_cast<int>(__atomic_load_n(&bytes_[page], __ATOMIC_RELAXED)) - 1;
  }

 private:
  static constexpr std::size_t entries = std::size_t{1} << (48 - 21);

  static std::size_t page_of(const void* address) noexcept {
    return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(address) >> 21);
  }

  std::uint8_t* bytes_;
};

}  // namespace weir_torch
