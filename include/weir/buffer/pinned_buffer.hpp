// pinned_buffer<T>: elements in pinned host memory, from a pool, for copies at full speed.
//
//   auto pool = weir::pinned_pool::create(gpu).value();
//   auto batch = weir::pinned_buffer<float>::create(pool, 1 << 20, stream).value();
//   std::iota(batch.begin(), batch.end(), 0.0F);
//   weir::copy(on_device, batch, stream).value();
//                                          // may go at once: the pool waits for the stream
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::inline v0 {

/// Elements of a trivially copyable type in memory of a pinned_pool. Their number is fixed.
///
/// The host may touch them from the beginning: the pool hands out memory that no work uses. From
/// the first copy on the host waits for the stream, as with any memory that a device may touch.
/// Given back with this object, behind what is queued on its stream; who uses it on a further
/// stream says so with join(). Keeps its pool alive. One thread at a time.
template <class T>
class pinned_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  using value_type = T;

  /// Empty, like one that was closed or moved from.
  pinned_buffer() noexcept = default;
  /// `count` elements that hold what the memory held before: for data that is about to be written.
  /// invalid_argument: `count` is zero; size_overflow: there is no such size.
  [[nodiscard]] static result<pinned_buffer> create(pinned_pool pool, std::size_t count,
                                                    const stream_ref& stream) {
    if (count == 0) return errc::invalid_argument;
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    constexpr bytes alignment{alignof(T) > 256 ? alignof(T) : 256};
    WEIR_TRY_VALUE(memory, device_buffer::create(std::move(pool), size, stream, alignment));
    return pinned_buffer{std::move(memory)};
  }
  /// `count` elements of zero bytes.
  [[nodiscard]] static result<pinned_buffer> zeroed(pinned_pool pool, std::size_t count,
                                                    const stream_ref& stream) {
    WEIR_TRY_VALUE(made, create(std::move(pool), count, stream));
    auto* const first = static_cast<std::byte*>(made.memory_.data());
    std::fill_n(first, made.memory_.size().count(), std::byte{});
    return std::move(made);
  }
  /// The elements of `values`, copied before the call returns.
  [[nodiscard]] static result<pinned_buffer> copy_of(pinned_pool pool, std::span<const T> values,
                                                     const stream_ref& stream) {
    WEIR_TRY_VALUE(made, create(std::move(pool), values.size(), stream));
    std::copy(values.begin(), values.end(), made.data());
    return std::move(made);
  }
  result<void> close() noexcept { return memory_.close(); }
  explicit operator bool() const noexcept { return static_cast<bool>(memory_); }

  [[nodiscard]] T* data() noexcept { return static_cast<T*>(memory_.data()); }
  [[nodiscard]] const T* data() const noexcept { return static_cast<const T*>(memory_.data()); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size().count() / sizeof(T); }
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size()}; }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size()}; }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size(); }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + size(); }
  [[nodiscard]] T& operator[](std::size_t index) noexcept { return data()[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return data()[index]; }

  /// Needs one that is not empty.
  [[nodiscard]] const stream_ref& stream() const noexcept { return memory_.stream(); }
  result<void> hand_over(const stream_ref& next) { return memory_.hand_over(next); }
  result<void> join(const stream_ref& other) { return memory_.join(other); }

 private:
  explicit pinned_buffer(device_buffer memory) noexcept : memory_{std::move(memory)} {}

  device_buffer memory_;
};

}  // namespace weir::inline v0
