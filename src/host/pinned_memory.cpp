// SPDX-License-Identifier: Apache-2.0
// mmap, mbind, madvise, and the driver's calls that pin.
#include "host/pinned_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/signals_blocked.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace host {
namespace {

using driver::call;
using driver::check;

constexpr std::uint64_t huge_page = std::uint64_t{2} << 20;
constexpr std::uint64_t small_page = 4096;
/// Pieces below this are pinned by the calling thread alone.
constexpr std::uint64_t worth_threads = std::uint64_t{64} << 20;
constexpr std::uint64_t touched_at_a_time = std::uint64_t{16} << 20;

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

/// Whole pages of the system at an address that is a multiple of `alignment`; null: it has none.
std::byte* map_aligned(std::uint64_t size, std::uint64_t alignment) noexcept {
  const std::uint64_t whole = size + alignment;
  if (whole < size) return nullptr;
  void* const mapped =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const low = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uint64_t skipped = (alignment - address % alignment) % alignment;
  if (skipped != 0) ::munmap(low, skipped);
  const std::uint64_t rest = alignment - skipped;
  if (rest != 0) ::munmap(low + skipped + size, rest);
  return low + skipped;
}

/// Asks for pages of one NUMA node. The system may use others where that has none.
void prefer_node(std::byte* base, std::uint64_t size, int node) noexcept {
#if defined(SYS_mbind)
  constexpr int preferred = 1;  // MPOL_PREFERRED
  constexpr int most_nodes = 1024;
  constexpr int bits = 8 * static_cast<int>(sizeof(unsigned long));
  if (node < 0 || node >= most_nodes) return;
  unsigned long nodes[most_nodes / bits] = {};
  nodes[node / bits] = 1UL << (node % bits);
  // Without NUMA, or without permission, pages lie where the system puts them.
  static_cast<void>(::syscall(SYS_mbind, base, size, preferred, nodes, most_nodes + 1, 0));
#else
  static_cast<void>(base), static_cast<void>(size), static_cast<void>(node);
#endif
}

/// Has the pages made by several threads, on a quarter of the processors at most: the driver makes
/// them one after the other. What fails here is done, or refused, when the memory is pinned.
void touch_pages(std::byte* base, std::uint64_t size, unsigned wanted) noexcept {
  const unsigned threads = std::min(wanted, std::thread::hardware_concurrency() / 4);
  if (threads < 2 || size < worth_threads) return;
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    for (;;) {
      const std::uint64_t at = next.fetch_add(touched_at_a_time, std::memory_order_relaxed);
      if (at >= size) return;
      if (::madvise(base + at, std::min(touched_at_a_time, size - at), MADV_POPULATE_WRITE) != 0)
        return;
    }
  };
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(threads - 1);
    const detail::signals_blocked quiet;
    for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  } catch (const std::bad_alloc&) {  // then with fewer
  } catch (const std::system_error&) {
  }
  work();
  for (std::thread& each : helpers) each.join();
}

error refused(error reason, std::uint64_t size) noexcept {
  reason.set_requested(bytes{size});
  if (reason.code() == errc::out_of_memory) reason.set_code(errc::no_host_memory);
  return reason;
}

result<pinned_memory> allocate_by_driver(const context_scope& bound,
                                         const memory_request& request) {
  unsigned flags = driver::host_alloc_portable | driver::host_alloc_device_map;
  if (request.write_combined) flags |= driver::host_alloc_write_combined;
  void* base = nullptr;
  auto pinned =
      check(call::mem_host_alloc, bound.driver().mem_host_alloc(&base, request.size, flags),
            bytes{request.size});
  if (!pinned) return refused(std::move(pinned).error(), request.size);
  return pinned_memory{static_cast<std::byte*>(base), request.size, memory_origin::driver};
}

result<pinned_memory> register_mapping(const context_scope& bound, const memory_request& request) {
  const bool huge = request.huge_pages && request.size >= huge_page;
  std::byte* const base = map_aligned(request.size, huge ? huge_page : small_page);
  if (base == nullptr)
    return error{{.code = errc::no_host_memory, .requested = bytes{request.size}}};
  ::madvise(base, request.size, MADV_DONTFORK);
  if (huge) ::madvise(base, request.size, MADV_HUGEPAGE);
  prefer_node(base, request.size, request.numa_node);
  touch_pages(base, request.size, request.threads);
  constexpr unsigned flags = driver::host_register_portable | driver::host_register_device_map;
  auto pinned =
      check(call::mem_host_register, bound.driver().mem_host_register(base, request.size, flags),
            bytes{request.size});
  if (pinned) return pinned_memory{base, request.size, memory_origin::registered};
  ::munmap(base, request.size);
  return refused(std::move(pinned).error(), request.size);
}

}  // namespace

std::uint64_t whole_pages(std::uint64_t size, bool huge_pages) noexcept {
  // At most 1.6 % more; what is shorter has huge pages as far as they fit.
  constexpr std::uint64_t worth_rounding = 64 * huge_page;
  const std::uint64_t page = huge_pages && size >= worth_rounding ? huge_page : small_page;
  return (size + page - 1) / page * page;
}

result<pinned_memory> pin_memory(const context_scope& bound, const memory_request& request) {
  if (!bound) return bound.error();
  const bool can_register = bound.device().capabilities().host_register && !request.write_combined;
  if (request.pinning == host_pinning::driver_memory || !can_register)
    return allocate_by_driver(bound, request);
  auto registered = register_mapping(bound, request);
  if (registered || request.pinning == host_pinning::registered_memory) return registered;
  // Virtual machines and sandboxes may refuse to register what they let the driver allocate.
  const bool by_driver =
      registered.code() == errc::not_supported || registered.code() == errc::not_permitted;
  return by_driver ? allocate_by_driver(bound, request) : std::move(registered);
}

result<pinned_memory> map_pageable(std::uint64_t size) {
  std::byte* const base = map_aligned(size, small_page);
  if (base == nullptr) return error{{.code = errc::no_host_memory, .requested = bytes{size}}};
  return pinned_memory{base, size, memory_origin::pageable};
}

result<void> release_memory(const context_scope& bound, const pinned_memory& memory) {
  if (memory.origin == memory_origin::pageable) {
    ::munmap(memory.base, memory.size);
    return {};
  }
  if (!bound) return bound.error();
  if (memory.origin == memory_origin::driver)
    return check(call::mem_free_host, bound.driver().mem_free_host(memory.base));
  WEIR_TRY(check(call::mem_host_unregister, bound.driver().mem_host_unregister(memory.base)));
  ::munmap(memory.base, memory.size);
  return {};
}

}}}  // namespace weir::v0::host
