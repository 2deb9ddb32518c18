// SPDX-License-Identifier: Apache-2.0
// device_span<T>: address and number of elements on a device, without access to them.
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

/// A range of elements in memory that the host cannot access: like std::span, without element
/// access.
///
/// Owns nothing; valid while the memory is. As cheap to copy as a pointer and a number.
template <class T>
class device_span {
 public:
  /// The element type, const if the elements may only be read.
  using element_type = T;
  /// The element type without const.
  using value_type = std::remove_cv_t<T>;

  /// No elements.
  constexpr device_span() noexcept = default;
  /// `size` elements from `data` on.
  constexpr device_span(T* data, std::size_t size) noexcept : data_{data}, size_{size} {}
  /// From a span of the same elements that may be written.
  template <class Other>
  requires(std::is_convertible_v<Other (*)[], T (*)[]>) constexpr device_span(
      device_span<Other> other) noexcept
      : data_{other.data()}, size_{other.size()} {}

  /// The device address of the first element.
  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  /// The number of elements.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  /// The number of bytes of all elements.
  [[nodiscard]] constexpr bytes size_bytes() const noexcept { return bytes{sizeof(T)} * size_; }
  /// Whether there are no elements.
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }

  /// The `count` elements from `first` on. invalid_argument: they exceed the span.
  [[nodiscard]] result<device_span> part(std::size_t first, std::size_t count) const {
    if (first > size_ || count > size_ - first) return detail::beyond_end(first, count, size_);
    return device_span{count != 0 ? data_ + first : data_, count};
  }

  /// The same bytes as elements of another type. bad_alignment: the address is not aligned for it;
  /// invalid_argument: the bytes are not a whole number of its elements.
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
