// SPDX-License-Identifier: Apache-2.0
// device_span<T>: address and number of elements on a device, for code that must not touch them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "weir/base/bytes.hpp"
#include "weir/base/checked.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 {

namespace detail {

/// size_overflow: more than a pointer difference can count.
[[nodiscard]] inline result<bytes> size_of_elements(std::size_t count, std::size_t element) {
  const auto size = checked_multiply(bytes{element}, count);
  if (!size || size->count() > static_cast<std::uint64_t>(PTRDIFF_MAX)) {
    return error{
        {.code = errc::size_overflow,
         .detail = std::to_string(count) + " elements of " + std::to_string(element) + " B"}};
  }
  return *size;
}

[[nodiscard]] inline error beyond_end(std::size_t first, std::size_t count, std::size_t size) {
  return {
      {.code = errc::invalid_argument,
       .detail = (count == 1 ? "element " + std::to_string(first)
                             : std::to_string(count) + " elements from " + std::to_string(first)) +
                 " of " + std::to_string(size)}};
}

}  // namespace detail

/// Elements in memory that the host may not touch: a std::span without access to them.
///
/// Owns nothing: good as long as the memory. As cheap to copy as a pointer and a number.
template <class T>
class device_span {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;

  constexpr device_span() noexcept = default;
  constexpr device_span(T* data, std::size_t size) noexcept : data_{data}, size_{size} {}
  /// From a span of the same elements that may be written.
  template <class Other>
  requires(std::is_convertible_v<Other (*)[], T (*)[]>) constexpr device_span(
      device_span<Other> other) noexcept
      : data_{other.data()}, size_{other.size()} {}

  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr bytes size_bytes() const noexcept { return bytes{sizeof(T)} * size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }

  /// `count` elements from `first` on. invalid_argument: they reach over the end.
  [[nodiscard]] result<device_span> part(std::size_t first, std::size_t count) const {
    if (first > size_ || count > size_ - first) return detail::beyond_end(first, count, size_);
    return device_span{count != 0 ? data_ + first : data_, count};
  }

  /// The same bytes as elements of another type. bad_alignment: they do not begin where an Other
  /// may; invalid_argument: their number is not a whole number of Others.
  template <class Other>
  [[nodiscard]] result<device_span<Other>> as() const {
    static_assert(std::is_trivially_copyable_v<Other> &&
                  (std::is_const_v<Other> || !std::is_const_v<T>));
    if (std::bit_cast<std::uintptr_t>(data_) % alignof(Other) != 0) return errc::bad_alignment;
    if (size_bytes().count() % sizeof(Other) != 0) return errc::invalid_argument;
    return device_span<Other>{reinterpret_cast<Other*>(data_), size_ * sizeof(T) / sizeof(Other)};
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}}  // namespace weir::v0
