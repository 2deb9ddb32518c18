// SPDX-License-Identifier: Apache-2.0
// pinned_buffer<T>: elements in pinned host memory, from a pool, for copies at full speed.
//
//   auto pool = weir::pinned_pool::create(gpu).value();
//   auto batch = weir::pinned_buffer<float>::create(pool, on_device.size(), stream).value();
//   std::iota(batch.begin(), batch.end(), 0.0F);
//   weir::copy(on_device, batch, stream).value();
//                                          // may be destroyed at once: the pool waits
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir { inline namespace v0 {

/// Elements of a trivially copyable type in memory of a pinned_pool. Their number is fixed.
///
/// The host may use them at once: the pool returns memory that no work uses. After the first copy
/// the host must wait for the stream, as with all memory that a device may access. Returned to the
/// pool with this object, after the work queued on its stream and on recorded streams. Keeps its
/// pool alive. One thread at a time.
template <class T>
class pinned_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  /// The element type.
  using value_type = T;

  /// Empty, like one that was closed or moved from.
  pinned_buffer() noexcept = default;
  /// A buffer of `count` elements, undefined or zero; the host writes the zeros before the call
  /// returns. invalid_argument: `count` is zero; size_overflow: the size does not fit.
  [[nodiscard]] static result<pinned_buffer> create(pinned_pool pool, std::size_t count,
                                                    const stream_ref& stream,
                                                    contents initial = contents::undefined) try {
    if (count == 0) return errc::invalid_argument;
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    WEIR_TRY_VALUE(memory, device_buffer::create(std::move(pool), size, stream, contents::undefined,
                                                 alignment()));
    if (initial == contents::zeroed)
      std::fill_n(static_cast<std::byte*>(memory.data()), size.count(), std::byte{});
    return pinned_buffer{std::move(memory)};
  } catch (const std::bad_alloc&) {  // of the host, for the resource
    return errc::no_host_memory;
  }
  /// create() with contents::zeroed.
  [[nodiscard]] static result<pinned_buffer> zeroed(pinned_pool pool, std::size_t count,
                                                    const stream_ref& stream) {
    return create(std::move(pool), count, stream, contents::zeroed);
  }
  /// A copy of `values`, made by the host before the call returns.
  [[nodiscard]] static result<pinned_buffer> copy_of(pinned_pool pool, std::span<const T> values,
                                                     const stream_ref& stream) {
    WEIR_TRY_VALUE(buffer, create(std::move(pool), values.size(), stream));
    std::copy(values.begin(), values.end(), buffer.data());
    return std::move(buffer);
  }
  /// Returns the memory to the pool now, after the work queued on its stream. Empty afterwards.
  result<void> close() noexcept { return memory_.close(); }
  /// Whether it owns memory.
  explicit operator bool() const noexcept { return static_cast<bool>(memory_); }

  /// The address of the first element.
  [[nodiscard]] T* data() noexcept { return static_cast<T*>(memory_.data()); }
  [[nodiscard]] const T* data() const noexcept { return static_cast<const T*>(memory_.data()); }
  /// The number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size().count() / sizeof(T); }
  /// Whether there are no elements.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// The elements.
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size()}; }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size()}; }
  /// Iterators over the elements.
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size(); }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + size(); }
  /// One element; `index` is not checked.
  [[nodiscard]] T& operator[](std::size_t index) noexcept { return data()[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return data()[index]; }

  /// The stream that the buffer belongs to.
  [[nodiscard]] const stream_ref& stream() const { return memory_.stream(); }
  /// As the functions of device_buffer.
  [[nodiscard]] result<void> check_stream() const { return memory_.check_stream(); }
  result<void> hand_over(const stream_ref& next) { return memory_.hand_over(next); }
  result<void> record_stream(const stream_ref& other) const { return memory_.record_stream(other); }
  result<void> join(const stream_ref& other) { return memory_.join(other); }

 private:
  explicit pinned_buffer(device_buffer memory) noexcept : memory_{std::move(memory)} {}
  static constexpr bytes alignment() noexcept {
    return std::max(bytes{alignof(T)}, default_alignment);
  }

  device_buffer memory_;
};

}}  // namespace weir::v0
