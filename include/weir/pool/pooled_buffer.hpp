// SPDX-License-Identifier: Apache-2.0
// pooled_memory and pooled_buffer<T>: owners of memory from a block_pool or buffer_pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/checked.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/block_pool.hpp"
#include "weir/pool/contents.hpp"
#include "weir/pool/memory_owner.hpp"

namespace weir { inline namespace v0 {

class buffer_pool;

/// A block of a pool, returned to it with this object; see memory_owner. A weir::stream may be
/// destroyed before the memory that was allocated for it.
class WEIR_API pooled_memory : public memory_owner {
 public:
  /// A block of the pool. invalid_argument: zero bytes; otherwise as block_pool::try_allocate().
  [[nodiscard]] static result<pooled_memory> create(const block_pool& pool, bytes size,
                                                    const stream_ref& stream,
                                                    contents initial = contents::undefined,
                                                    bytes alignment = default_alignment) {
    return create(pool.state_, size, stream, initial, alignment);
  }
  pooled_memory() noexcept = default;

 private:
  friend class buffer_pool;
  pooled_memory(const std::shared_ptr<pools::block_cache>& cache, void* data, bytes size,
                const stream_ref& stream) noexcept;
  [[nodiscard]] static result<pooled_memory> create(
      const std::shared_ptr<pools::block_cache>& cache, bytes size, const stream_ref& stream,
      contents initial, bytes alignment);
  /// The same with a block that is cached. not_found: there is none.
  [[nodiscard]] static result<pooled_memory> create_cached(
      const std::shared_ptr<pools::block_cache>& cache, bytes size, const stream_ref& stream,
      contents initial, bytes alignment);
};

/// The same as an array of T. T need not be default-constructible; nothing is constructed.
template <class T>
class pooled_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>,
                "T must be trivially copyable and not const");

 public:
  /// The element type.
  using value_type = T;

  /// A buffer of `count` elements. invalid_argument: `count` is zero; size_overflow: the size does
  /// not fit.
  [[nodiscard]] static result<pooled_buffer> create(const block_pool& pool, std::size_t count,
                                                    const stream_ref& stream,
                                                    contents initial = contents::undefined) {
    WEIR_TRY_VALUE(size, bytes_of(count));
    WEIR_TRY_VALUE(memory, pooled_memory::create(pool, size, stream, initial, alignment()));
    return pooled_buffer{std::move(memory)};
  }
  pooled_buffer() noexcept = default;

  /// Whether it owns a buffer.
  explicit operator bool() const noexcept { return static_cast<bool>(memory_); }
  /// Whether there are no elements.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// The address of the first element; null if it owns no memory.
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.data()); }
  /// The number of elements.
  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(memory_.size().count() / sizeof(T));
  }
  /// The number of bytes of all elements.
  [[nodiscard]] bytes size_bytes() const noexcept { return memory_.size(); }
  /// Address and number of the elements. The host can access only those of a pinned_pool, by data()
  /// or as a pinned_buffer.
  [[nodiscard]] device_span<T> span() const noexcept { return {data(), size()}; }
  /// The stream that it was allocated for.
  [[nodiscard]] const stream_ref& stream() const { return memory_.stream(); }

  /// As the functions of memory_owner.
  result<void> record_stream(const stream_ref& stream) const {
    return memory_.record_stream(stream);
  }
  result<void> free() { return memory_.free(); }
  result<void> free(const stream_ref& stream) { return memory_.free(stream); }

 private:
  friend class buffer_pool;
  explicit pooled_buffer(pooled_memory memory) noexcept : memory_{std::move(memory)} {}
  [[nodiscard]] static result<bytes> bytes_of(std::size_t count) {
    const auto size = checked_multiply(bytes{sizeof(T)}, count);
    if (!size) return errc::size_overflow;
    return *size;
  }
  [[nodiscard]] static constexpr bytes alignment() noexcept {
    return std::max(bytes{alignof(T)}, default_alignment);
  }

  pooled_memory memory_;
};

}}  // namespace weir::v0
