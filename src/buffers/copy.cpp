// SPDX-License-Identifier: Apache-2.0
// Copies and fills of one run of bytes.
#include "weir/buffer/copy.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/host_memory.hpp"
#include "buffers/interval.hpp"
#include "pools/queueable.hpp"

namespace weir { inline namespace v0 {

using buffers::address_of;
using buffers::interval_of;
using driver::call;
using driver::check;

namespace {

result<void> check_sides(void* to, const void* from, bytes size) {
  WEIR_TRY_VALUE(target, interval_of(to, size));
  WEIR_TRY_VALUE(source, interval_of(from, size));
  if (target.overlaps(source)) return buffers::overlap_error(size);
  return {};
}

bool is_one_byte(const unsigned char* pattern, std::size_t element) {
  return std::all_of(pattern, pattern + element, [&](auto each) { return each == pattern[0]; });
}

/// Writes the pattern once, by values that are arguments of the calls: no host memory need outlive
/// them, and a capture keeps the values.
result<void> write_once(const context_scope& bound, std::uint64_t to, const unsigned char* pattern,
                        std::size_t element, driver::CUstream stream) {
  constexpr std::size_t word = sizeof(std::uint32_t);
  if (element % word != 0 || to % word != 0) {
    for (std::size_t i = 0; i < element; ++i) {
      WEIR_TRY(check(call::memset_d8_async,
                     bound.driver().memset_d8_async(to + i, pattern[i], 1, stream)));
    }
    return {};
  }
  for (std::size_t i = 0; i < element; i += word) {
    std::uint32_t value = 0;
    std::memcpy(&value, pattern + i, word);
    WEIR_TRY(
        check(call::memset_d32_async, bound.driver().memset_d32_async(to + i, value, 1, stream)));
  }
  return {};
}

}  // namespace

result<void> copy_bytes(void* to, const void* from, bytes size, const stream_ref& stream) try {
  if (size == bytes{}) return {};
  WEIR_TRY(check_sides(to, from, size));
  const context_scope bound{stream.device()};
  WEIR_TRY(pools::check_queueable(stream, bound));
  return check(
      call::memcpy_async,
      bound.driver().memcpy_async(address_of(to), address_of(from), size.count(), stream.handle()),
      size);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> copy_peer(void* to, device to_device, const void* from, device from_device, bytes size,
                       const stream_ref& stream) try {
  if (&to_device.driver() != &from_device.driver() ||
      &to_device.driver() != &stream.device().driver()) {
    return error{{.code = errc::invalid_argument,
                  .detail = "source and destination belong to different runtimes"}};
  }
  if (size == bytes{}) return {};
  WEIR_TRY(check_sides(to, from, size));
  WEIR_TRY_VALUE(target, to_device.context());
  WEIR_TRY_VALUE(source, from_device.context());
  const context_scope bound{stream.device()};
  WEIR_TRY(pools::check_queueable(stream, bound));
  return check(call::memcpy_peer_async,
               bound.driver().memcpy_peer_async(address_of(to), target, address_of(from), source,
                                                size.count(), stream.handle()),
               size);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> fill_bytes(void* to, std::uint8_t value, bytes size, const stream_ref& stream) try {
  if (size == bytes{}) return {};
  WEIR_TRY_VALUE(target, interval_of(to, size));
  const context_scope bound{stream.device()};
  WEIR_TRY(pools::check_queueable(stream, bound));
  return check(call::memset_d8_async,
               bound.driver().memset_d8_async(target.first, value, size.count(), stream.handle()),
               size);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> fill_pattern(void* to, const void* pattern, bytes element, std::uint64_t count,
                          const stream_ref& stream) try {
  if (pattern == nullptr || element == bytes{}) return errc::invalid_argument;
  const auto size = checked_multiply(element, count);
  if (!size) return error{{.code = errc::size_overflow, .requested = element}};
  const auto* const value = static_cast<const unsigned char*>(pattern);
  if (is_one_byte(value, element.count())) return fill_bytes(to, value[0], *size, stream);
  if (count == 0) return {};
  WEIR_TRY_VALUE(target, interval_of(to, *size));
  const context_scope bound{stream.device()};
  WEIR_TRY(pools::check_queueable(stream, bound));
  const auto& calls = bound.driver();
  if (element.count() == sizeof(std::uint32_t) && target.first % sizeof(std::uint32_t) == 0) {
    std::uint32_t word = 0;
    std::memcpy(&word, value, sizeof word);
    return check(call::memset_d32_async,
                 calls.memset_d32_async(target.first, word, count, stream.handle()), *size);
  }
  WEIR_TRY(write_once(bound, target.first, value, element.count(), stream.handle()));
  // The part that is filled so far is the source of the next copy, which doubles it.
  for (bytes filled = element; filled < *size;) {
    const bytes more = std::min(filled, *size - filled);
    WEIR_TRY(check(call::memcpy_async,
                   calls.memcpy_async(target.first + filled.count(), target.first, more.count(),
                                      stream.handle()),
                   more));
    filled += more;
  }
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

}}  // namespace weir::v0
