// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out.
#include "support/scarce_memory.hpp"

#include <cstdlib>
#include <new>
#include <utility>

namespace {

constexpr long plenty = -1;
constinit thread_local long allocations_left = plenty;  // before the one that fails
constinit thread_local bool is_spared = false;

}  // namespace

namespace weir::testing_support {

scarce_memory::scarce_memory(long enough) noexcept { allocations_left = enough; }
scarce_memory::~scarce_memory() { allocations_left = plenty; }
void scarce_memory::fail_next() noexcept { allocations_left = 0; }
bool scarce_memory::take_failure() noexcept {
  return std::exchange(allocations_left, plenty) == plenty;
}

spared_memory::spared_memory() noexcept : outer_{std::exchange(is_spared, true)} {}
spared_memory::~spared_memory() { is_spared = outer_; }

}  // namespace weir::testing_support

void* operator new(std::size_t size, std::align_val_t alignment) {
  if (!is_spared && allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc{};
  const auto step = static_cast<std::size_t>(alignment);
  if (void* const memory = std::aligned_alloc(step, (size / step + 1) * step)) return memory;
  throw std::bad_alloc{};
}
void* operator new(std::size_t size) {
  return operator new (size, std::align_val_t{__STDCPP_DEFAULT_NEW_ALIGNMENT__});
}
// Every form that a sanitizer would otherwise bring its own of, to be freed by the ones below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t& quiet) noexcept {
  return operator new(size, quiet);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
