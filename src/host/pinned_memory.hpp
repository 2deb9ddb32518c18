// SPDX-License-Identifier: Apache-2.0
// Memory of the system for the segments of a host arena: mapped, pinned, and given back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/host/host_arena.hpp"

namespace weir { inline namespace v0 { namespace host {

/// How a segment came from the system, and so how it goes back.
enum class memory_origin : std::uint8_t {
  registered,  // mapped here, then pinned by mem_host_register
  driver,      // mem_host_alloc
  pageable,    // mapped here and not pinned
};

/// A piece of memory of the system. Owns nothing: who has it calls release_memory().
struct pinned_memory {
  std::byte* base = nullptr;
  std::uint64_t size = 0;
  memory_origin origin = memory_origin::registered;
};

/// What a segment should be.
struct memory_request {
  std::uint64_t size = 0;
  host_pinning pinning = host_pinning::automatic;
  bool write_combined = false;
  bool huge_pages = true;
  int numa_node = -1;    // -1: wherever the system puts it
  unsigned threads = 1;  // how many threads touch the pages of large pieces before they are pinned
};

/// A segment is so much larger than what was requested that it has whole pages: of 4 KiB, and of
/// 2 MiB from 128 MiB on.
[[nodiscard]] std::uint64_t whole_pages(std::uint64_t size, bool huge_pages) noexcept;

/// Memory that every device of the runtime reaches. Takes about 0.65 s/GiB for one thread, without
/// a lock. The memory does not exist in a child of fork(): a child that touches it is ended by
/// SIGSEGV, and the parent's pages are neither copied nor shared. no_host_memory: the system has no
/// more; other errors are the driver's.
[[nodiscard]] result<pinned_memory> pin_memory(const context_scope& bound,
                                               const memory_request& request);
/// The same without pinning. no_host_memory.
[[nodiscard]] result<pinned_memory> map_pageable(std::uint64_t size);
/// After an error the memory stays pinned and mapped, as it was. The driver may wait for all work
/// of all devices.
[[nodiscard]] result<void> release_memory(const context_scope& bound, const pinned_memory& memory);

}}}  // namespace weir::v0::host
