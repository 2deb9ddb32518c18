// SPDX-License-Identifier: Apache-2.0
// device_vector<T>: elements in device memory; no constructors run.
//
//   auto weights = weir::device_vector<float>::create(memory, host.size(), stream).value();
//   weights.copy_from(host).value();    // queued, so `host` stays as it is for now
//   launch(weights.data(), weights.size(), stream);
//   const float last = weights.get(weights.size() - 1).value();    // waits for the stream
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/device_span.hpp"

namespace weir { inline namespace v0 {

/// Elements of a trivially copyable type in memory of a resource: a device_buffer that counts in
/// elements. New elements are undefined unless contents::zeroed is asked for; fill() and
/// copy_from() write them.
///
/// All operations are queued on the vector's stream (see device_buffer for passing it to another)
/// and return at once; only get() waits. moved_from: the vector has no resource; bad_stream: it
/// belongs to another thread's default stream. One thread at a time.
template <class T>
class device_vector {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  /// The element type.
  using value_type = T;

  /// Empty, and without a resource: nothing can be added.
  device_vector() noexcept = default;
  /// A vector of `count` elements, which may be zero. size_overflow: the size does not fit.
  [[nodiscard]] static result<device_vector> create(any_resource memory, std::size_t count,
                                                    const stream_ref& stream,
                                                    contents initial = contents::undefined) {
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    WEIR_TRY_VALUE(buffer,
                   device_buffer::create(std::move(memory), size, stream, initial, alignment()));
    return device_vector{std::move(buffer)};
  }
  /// create() with contents::zeroed.
  [[nodiscard]] static result<device_vector> zeroed(any_resource memory, std::size_t count,
                                                    const stream_ref& stream) {
    return create(std::move(memory), count, stream, contents::zeroed);
  }
  /// A copy of `values`. The copy is queued when the call returns: `values` must stay unchanged
  /// until the stream has completed it.
  [[nodiscard]] static result<device_vector> copy_of(any_resource memory, std::span<const T> values,
                                                     const stream_ref& stream) {
    WEIR_TRY_VALUE(vector, create(std::move(memory), values.size(), stream));
    WEIR_TRY(vector.copy_from(values));
    return std::move(vector);
  }
  /// A vector of the buffer's bytes. bad_alignment: the buffer is not aligned for T;
  /// invalid_argument: its size is not a multiple of the element size. On failure `buffer` is
  /// unchanged.
  [[nodiscard]] static result<device_vector> adopt(device_buffer&& buffer) {
    WEIR_TRY(buffer.span().template as<T>());
    return device_vector{std::move(buffer)};
  }
  /// Passes the underlying buffer to the caller; the vector is empty afterwards.
  [[nodiscard]] device_buffer release() noexcept { return std::move(buffer_); }
  /// As device_buffer::close().
  result<void> close() noexcept { return buffer_.close(); }
  /// Whether it has a resource and a stream.
  explicit operator bool() const noexcept { return static_cast<bool>(buffer_); }

  /// The device address of the first element.
  [[nodiscard]] T* data() noexcept { return static_cast<T*>(buffer_.data()); }
  [[nodiscard]] const T* data() const noexcept { return static_cast<const T*>(buffer_.data()); }
  /// The number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return buffer_.size().count() / sizeof(T); }
  /// How many elements fit into the allocated memory.
  [[nodiscard]] std::size_t capacity() const noexcept {
    return buffer_.capacity().count() / sizeof(T);
  }
  /// Whether there are no elements.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Address and number of the elements.
  [[nodiscard]] device_span<T> span() noexcept { return {data(), size()}; }
  [[nodiscard]] device_span<const T> span() const noexcept { return {data(), size()}; }
  operator device_span<T>() noexcept { return span(); }
  operator device_span<const T>() const noexcept { return span(); }
  /// As device_buffer::stream().
  [[nodiscard]] const stream_ref& stream() const { return buffer_.stream(); }
  /// The underlying buffer.
  [[nodiscard]] const device_buffer& buffer() const noexcept { return buffer_; }

  /// Changes the number of elements. Elements within both sizes are kept; new ones are undefined.
  result<void> resize(std::size_t count) {
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    return buffer_.resize(size);
  }
  /// Allocates memory for at least `count` elements.
  result<void> reserve(std::size_t count) {
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    return buffer_.reserve(size);
  }
  /// As the functions of device_buffer.
  result<void> shrink_to_fit() { return buffer_.shrink_to_fit(); }
  result<void> hand_over(const stream_ref& next) { return buffer_.hand_over(next); }
  result<void> record_stream(const stream_ref& other) const { return buffer_.record_stream(other); }
  result<void> join(const stream_ref& other) { return buffer_.join(other); }

  // Host memory must stay unchanged until the stream has completed the copy; copy.hpp explains the
  // cost of pageable memory. invalid_argument: elements outside the vector.

  /// Queues a copy of `values` over the elements from `first` on.
  result<void> copy_from(std::span<const T> values, std::size_t first = 0) {
    WEIR_TRY(buffer_.check_stream());
    WEIR_TRY_VALUE(target, span().part(first, values.size()));
    return copy(target, values, stream());
  }
  /// Queues a copy of the elements from `first` on to `values`.
  result<void> copy_to(std::span<T> values, std::size_t first = 0) const {
    WEIR_TRY(buffer_.check_stream());
    WEIR_TRY_VALUE(source, span().part(first, values.size()));
    return copy(values, source, stream());
  }
  /// Queues a fill of all elements with `value`, which is read before the call returns.
  result<void> fill(const T& value) {
    WEIR_TRY(buffer_.check_stream());
    return weir::fill(span(), value, stream());
  }
  /// Queues a write of one element; `value` is read before the call returns. Costs a driver call
  /// for each four bytes.
  result<void> set(std::size_t index, const T& value) {
    WEIR_TRY(buffer_.check_stream());
    WEIR_TRY_VALUE(target, span().part(index, 1));
    return weir::fill(target, value, stream());
  }
  /// Reads one element after waiting for the work queued so far. capture_forbidden: the stream is
  /// being captured.
  [[nodiscard]] result<T> get(std::size_t index) const {
    WEIR_TRY(buffer_.check_stream());
    WEIR_TRY(span().part(index, 1));
    std::array<std::byte, sizeof(T)> raw{};
    WEIR_TRY(buffer_.read(raw.data(), bytes{sizeof(T)} * index, bytes{sizeof(T)}));
    return std::bit_cast<T>(raw);
  }

 private:
  explicit device_vector(device_buffer buffer) noexcept : buffer_{std::move(buffer)} {}
  static constexpr bytes alignment() noexcept {
    return std::max(bytes{alignof(T)}, default_alignment);
  }

  device_buffer buffer_;
};

/// "1024 elements of 4 B: 4 KiB on device 0, stream 7".
template <class T>
[[nodiscard]] std::string to_string(const device_vector<T>& vector) {
  return std::to_string(vector.size()) + " elements of " + to_string(bytes{sizeof(T)}) + ": " +
         to_string(vector.buffer());
}

}}  // namespace weir::v0
