// SPDX-License-Identifier: Apache-2.0
// Copies and fills: lines, boxes, batches, between devices; always on the stream of the call.
//
//   using namespace weir::literals;
//   weir::copy(on_device, std::span{host}, stream).value();   // any two ranges of the same type
//   weir::fill(on_device, 1.0F, stream).value();
//   weir::copy_2d({to, 4096_B}, {from, 512_B}, 512_B, 64, stream).value();
//
// Every call queues work and returns; nothing is queued on the default stream instead. Both sides
// must stay as they are until the stream has completed the copy.
//
// Memory may be of any kind: of a device, managed, pinned, or the host's own pageable memory. A
// copy from or to pageable memory goes through the driver's own staging, which is slower; whether
// the call waits for it is up to the driver, so do not count on either: neither that the source may
// be changed at once, nor that the host goes on meanwhile. staging_buffer says when it has read or
// written each side.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 {

// --- Lines ---------------------------------------------------------------------------------------

/// Queues a copy of `size` bytes; nothing for zero bytes. invalid_argument: an address is null, or
/// the two sides overlap; size_overflow: a side exceeds the end of the address space.
WEIR_API result<void> copy_bytes(void* to, const void* from, bytes size, const stream_ref& stream);

/// The same between two devices. If they have no peer access, the driver copies through the host.
/// The stream may belong to either device.
///
/// The contexts of both devices stay until the runtime ends. The memory must stay until the copy is
/// complete; copy_between() in device_buffer.hpp ensures that.
///
/// invalid_argument, besides the above: the devices belong to different runtimes.
WEIR_API result<void> copy_peer(void* to, device to_device, const void* from, device from_device,
                                bytes size, const stream_ref& stream);

/// Queues a fill with one byte value. The memory must be device, managed or pinned memory.
WEIR_API result<void> fill_bytes(void* to, std::uint8_t value, bytes size,
                                 const stream_ref& stream);
/// Queues a fill with `count` copies of the `element` bytes at `pattern`, which are read before the
/// call returns. Patterns of one repeated byte and of four bytes take one driver call. Others take
/// one for each doubling, and one for each four bytes, or for each byte if the element size or the
/// address is not a multiple of four.
WEIR_API result<void> fill_pattern(void* to, const void* pattern, bytes element,
                                   std::uint64_t count, const stream_ref& stream);

// --- Boxes ---------------------------------------------------------------------------------------

/// Rows of memory at a fixed distance.
struct pitched_memory {
  void* data = nullptr;    ///< the first byte of the first row
  bytes pitch{};           ///< from the start of one row to the next
  std::uint64_t rows = 0;  ///< rows of each plane; used in 3D only
};
/// Rows of memory at a fixed distance, to be read only.
struct const_pitched_memory {
  const void* data = nullptr;  ///< the first byte of the first row
  bytes pitch{};               ///< from the start of one row to the next
  std::uint64_t rows = 0;      ///< rows of each plane; used in 3D only

  /// Rows of `pitch_of_rows` bytes from `first` on.
  constexpr const_pitched_memory(const void* first, bytes pitch_of_rows,
                                 std::uint64_t rows_of_plane = 0) noexcept
      : data{first}, pitch{pitch_of_rows}, rows{rows_of_plane} {}
  /// The same rows as `same`, to be read only.
  constexpr const_pitched_memory(const pitched_memory& same) noexcept
      : data{same.data}, pitch{same.pitch}, rows{same.rows} {}
};

/// The size of a part of pitched memory.
struct box {
  bytes width{};             ///< bytes of each row
  std::uint64_t rows = 1;    ///< rows of each plane
  std::uint64_t planes = 1;  ///< number of planes
};

/// Queues a copy of `rows` rows of `width` bytes, or of a box; nothing for an empty box.
/// invalid_argument: an address is null; a pitch is smaller than the width; a plane has fewer rows
/// than the box; or the sides overlap. The pitch of a single row, and the rows of a single plane,
/// are ignored. Sides may interleave if their pitches (and rows of a plane) are equal.
/// size_overflow: a side exceeds the end of the address space.
WEIR_API result<void> copy_2d(const pitched_memory& to, const const_pitched_memory& from,
                              bytes width, std::uint64_t rows, const stream_ref& stream);
WEIR_API result<void> copy_3d(const pitched_memory& to, const const_pitched_memory& from,
                              const box& size, const stream_ref& stream);
/// Queues a fill of `rows` rows of `width` bytes with one byte value; errors as for copy_2d().
WEIR_API result<void> fill_2d(const pitched_memory& to, std::uint8_t value, bytes width,
                              std::uint64_t rows, const stream_ref& stream);

// --- Batches -------------------------------------------------------------------------------------

/// One copy of a batch.
struct copy_item {
  void* to = nullptr;          ///< the destination
  const void* from = nullptr;  ///< the source
  bytes size{};                ///< how many bytes
};

/// Queues many copies in one driver call. Without that call (before CUDA 12.8), on the legacy
/// stream and during a capture it queues them one by one. Items are copied in any order.
///
/// Nothing is queued if an item is invalid: by the rules of copy_bytes(), or because its
/// destination overlaps another item's source or destination. The detail of a driver error names
/// the item; items before it may have been queued.
WEIR_API result<void> copy_batch(std::span<const copy_item> items, const stream_ref& stream);

// --- Ranges --------------------------------------------------------------------------------------

namespace detail {

template <class Range>
using element_of = std::remove_pointer_t<decltype(std::declval<Range&>().data())>;

template <class Range>
inline constexpr bool is_view = false;
template <class T, std::size_t Extent>
inline constexpr bool is_view<std::span<T, Extent>> = true;
template <class T>
inline constexpr bool is_view<device_span<T>> = true;

/// A range that outlives the call: a work queue must not be given what a temporary owns.
template <class Range>
concept lasting = std::is_lvalue_reference_v<Range> || is_view<std::remove_cvref_t<Range>>;

}  // namespace detail

/// Anything with data() and size() over trivially copyable elements: std::span, std::vector,
/// device_span, the buffers of weir.
template <class Range>
concept memory_range = requires(std::remove_reference_t<Range>& range) {
  range.data();
  { range.size() } -> std::convertible_to<std::size_t>;
}
&&std::is_trivially_copyable_v<std::remove_cv_t<detail::element_of<Range>>>;

/// Queues a copy of all elements. invalid_argument, besides the cases of copy_bytes(): the two have
/// different numbers of elements.
template <memory_range To, memory_range From>
requires(detail::lasting<To>&& detail::lasting<From> && !std::is_const_v<detail::element_of<To>> &&
         std::is_same_v<detail::element_of<To>, std::remove_cv_t<detail::element_of<From>>>)
    result<void> copy(To&& to, From&& from, const stream_ref& stream) {
  if (to.size() != from.size()) {
    return error{
        {.code = errc::invalid_argument, .detail = "source and destination have different sizes"}};
  }
  // Both exist, so their sizes in bytes fit.
  return copy_bytes(to.data(), from.data(), bytes{sizeof(detail::element_of<To>)} * to.size(),
                    stream);
}

/// Queues a fill of all elements. bad_alignment: the memory is not aligned for its elements.
template <memory_range To>
requires(detail::lasting<To> && !std::is_const_v<detail::element_of<To>>) result<void> fill(
    To&& to, const detail::element_of<To>& value, const stream_ref& stream) {
  using element = detail::element_of<To>;
  if (reinterpret_cast<std::uintptr_t>(to.data()) % alignof(element) != 0) {
    return errc::bad_alignment;
  }
  return fill_pattern(to.data(), &value, bytes{sizeof(element)}, to.size(), stream);
}

}}  // namespace weir::v0
