// SPDX-License-Identifier: Apache-2.0
// A pointer that another library keeps for every thread, read without a call of that library.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" void* __tls_get_addr(void* module_and_offset);  // NOLINT: the C library's own name

namespace weir_torch {

/// Where a library keeps one pointer in the thread-local memory of every thread. What it saves is
/// written at its only user, `profilers`.
///
/// It is found by search: the library is made to hold a pointer that is known, its thread-local
/// memory is looked through, and what holds the pointer now, and does not when it is taken away, is
/// the place. Where there is no such place, or more than one, nothing is found. A place stays right
/// while the library is loaded; of a thread that never used the library it holds null.
class thread_word {
 public:
  thread_word() = default;

  /// `code`: any function of the library. hold(true) makes it hold a pointer in this thread, and
  /// hold(false) what it held before; both return what it holds then.
  template <class Hold>
  [[nodiscard]] static thread_word find(const void* code, Hold&& hold) {
    const void* const known = hold(true);
    const block memory = thread_memory_of(code);
    std::vector<std::size_t> places;
    for (std::size_t offset = 0; offset + sizeof known <= memory.size; offset += sizeof known)
      if (memory.word_at(offset) == known) places.push_back(offset);
    const void* const before = hold(false);
    if (places.size() != 1 || before == known || memory.word_at(places.front()) != before)
      return {};
    thread_word found;
    found.place_ = {memory.module, places.front()};
    return found;
  }

  [[nodiscard]] explicit operator bool() const noexcept { return place_.module != 0; }

  /// This thread's, for as long as the thread lives. Only of one that was found.
  [[nodiscard]] const void* const volatile* of_this_thread() const noexcept {
    index place = place_;
    return static_cast<const void* const volatile*>(__tls_get_addr(&place));
  }

 private:
  /// As the C library wants it.
  struct index {
    std::size_t module = 0;  // counted from 1
    std::size_t offset = 0;
  };
  /// A library's thread-local memory in this thread.
  struct block {
    std::size_t module = 0;
    const char* begin = nullptr;
    std::size_t size = 0;

    [[nodiscard]] const void* word_at(std::size_t offset) const noexcept {
      return *reinterpret_cast<const void* const volatile*>(begin + offset);
    }
  };
  struct search {
    std::uintptr_t code;
    block found;
  };

  static int look_at(dl_phdr_info* library, std::size_t, void* arguments) {
    auto& looked_for = *static_cast<search*>(arguments);
    std::size_t size = 0;
    bool holds_code = false;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const auto& segment = library->dlpi_phdr[i];
      if (segment.p_type == PT_TLS) size = segment.p_memsz;
      const std::uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_LOAD && looked_for.code - begin < segment.p_memsz) holds_code = true;
    }
    if (!holds_code) return 0;
    if (library->dlpi_tls_modid != 0) looked_for.found = {library->dlpi_tls_modid, nullptr, size};
    return 1;
  }
  static block thread_memory_of(const void* code) {
    search looked_for{reinterpret_cast<std::uintptr_t>(code), {}};
    dl_iterate_phdr(&look_at, &looked_for);
    // The C library does not tell the address of memory that it keeps in the thread's own block
    // (`dlpi_tls_data` is null there, though the library uses it): so it is asked for it.
    block& found = looked_for.found;
    index first{found.module, 0};
    if (found.module != 0) found.begin = static_cast<const char*>(__tls_get_addr(&first));
    return found;
  }

  index place_;
};

}  // namespace weir_torch
