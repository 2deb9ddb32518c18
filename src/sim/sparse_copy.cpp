// SPDX-License-Identifier: Apache-2.0
// Copies that leave alone what nobody ever wrote.
#include "sim/sparse_copy.hpp"

#include <algorithm>
#include <cstring>

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// Smaller copies touch so few pages that to ask for them takes longer.
constexpr std::uint64_t worth_asking = std::uint64_t{256} << 10;

/// The first bytes of a range, all of which may have been written or none.
struct stretch {
  std::uint64_t size = 0;
  bool written = true;
};

stretch first_stretch(memory& space, std::uint64_t address, std::uint64_t size) {
  const region* const area = space.find(address);
  if (area == nullptr) return {size};  // not memory of the machine
  const std::uint64_t piece = std::min(size, area->end() - address);
  if (area->kind == memory_kind::registered) return {piece};
  const std::uint64_t begin = area->offset + (address - area->base);
  const auto [first, last] = area->pages->written(begin, begin + piece);
  if (first > begin) return {first - begin, false};
  return {last - begin};
}

void clear(memory& space, std::uint64_t address, std::uint64_t size) {
  while (size != 0) {
    const stretch next = first_stretch(space, address, size);
    if (next.written) std::memset(reinterpret_cast<void*>(address), 0, next.size);
    address += next.size;
    size -= next.size;
  }
}

}  // namespace

void copy_sparsely(memory& space, std::uint64_t to, std::uint64_t from, std::uint64_t size) {
  const bool plainly = size < worth_asking || (to < from + size && from < to + size);
  while (size != 0) {
    const stretch next = plainly ? stretch{size} : first_stretch(space, from, size);
    if (next.written) {
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), next.size);
    } else {
      clear(space, to, next.size);
    }
    to += next.size;
    from += next.size;
    size -= next.size;
  }
}

}}}  // namespace weir::v0::sim
