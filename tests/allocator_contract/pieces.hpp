// SPDX-License-Identifier: Apache-2.0
// Which parts of a block carry its pattern: all of it, where the machine can bear that.
#pragma once

#include <cstdint>

#include "support/driver_fixture.hpp"
#include "weir/base/bytes.hpp"

namespace weir::testing_support {

[[nodiscard]] inline CUdeviceptr address_of(const void* memory) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
}

/// Calls `touch(address, words)` for each part of the block: the whole, or of a block larger than
/// `whole_up_to` 64 KiB at both ends and 512 bytes wherever a physical handle may begin.
template <class Touch>
void for_each_piece(const void* memory, bytes size, bytes whole_up_to, Touch touch) {
  constexpr std::uint64_t end_size = 64 * kib;
  constexpr std::uint64_t mark_size = 512;
  constexpr std::uint64_t handle_size = 2 * mib;
  const CUdeviceptr begin = address_of(memory);
  if (size <= whole_up_to || size.count() <= 2 * end_size) {
    if (size.count() >= sizeof(word)) touch(begin, size.count() / sizeof(word));
    return;
  }
  touch(begin, end_size / sizeof(word));
  const CUdeviceptr last = begin + (size.count() - end_size) / sizeof(word) * sizeof(word);
  const CUdeviceptr first_mark = (begin + end_size + handle_size - 1) / handle_size * handle_size;
  for (CUdeviceptr at = first_mark; at + mark_size <= last; at += handle_size)
    touch(at, mark_size / sizeof(word));
  touch(last, end_size / sizeof(word));
}

}  // namespace weir::testing_support
