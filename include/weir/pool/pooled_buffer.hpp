// Memory of a pool with an owner: untyped, and as an array of T.
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
#include "weir/device/stream.hpp"
#include "weir/pool/block_pool.hpp"

namespace weir::inline v0 {

class buffer_pool;

/// What is in a new buffer.
enum class contents : std::uint8_t {
  undefined,  ///< whatever was there
  zeroed,     ///< zeros, by one fill queued on the buffer's stream
};

/// A block of a pool that goes back with this object, on its stream, behind the work queued there.
///
/// Holds a block unless moved from or given back, and keeps its pool alive. Its stream may be
/// destroyed before it if that is a weir::stream. One thread at a time; it may go on another thread
/// than it came from. What goes wrong in the destructor is reported to the error handler.
class WEIR_API pooled_memory {
 public:
  /// invalid_argument: zero bytes; otherwise as block_pool::try_allocate.
  [[nodiscard]] static result<pooled_memory> create(const block_pool& from, bytes size,
                                                    const stream_ref& stream,
                                                    contents inside = contents::undefined,
                                                    bytes alignment = bytes{256}) {
    return create(from.inside_, size, stream, inside, alignment);
  }
  ~pooled_memory();
  pooled_memory(pooled_memory&& other) noexcept;
  pooled_memory& operator=(pooled_memory&& other) noexcept;

  explicit operator bool() const noexcept { return home_ != nullptr; }
  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }
  /// The stream it was made for.
  [[nodiscard]] const stream_ref& stream() const noexcept { return stream_; }

  /// Work queued on `stream` until this goes back may use the memory, too.
  result<void> record_stream(const stream_ref& stream) const;
  /// Goes back now, behind the work queued on its stream, or on `stream` instead. Empty afterwards
  /// if that succeeds. already_freed: it was empty.
  result<void> give_back();
  result<void> give_back(const stream_ref& stream);

 private:
  friend class buffer_pool;
  pooled_memory(std::shared_ptr<pools::block_cache> home, void* data, bytes size,
                const stream_ref& stream) noexcept;
  [[nodiscard]] static result<pooled_memory> create(const std::shared_ptr<pools::block_cache>& home,
                                                    bytes size, const stream_ref& stream,
                                                    contents inside, bytes alignment);
  result<void> give_back(const stream_ref* stream);

  std::shared_ptr<pools::block_cache> home_;
  void* data_ = nullptr;
  bytes size_{};
  stream_ref stream_;
};

/// The same as an array of T, which need not be default-made: a device knows no constructors.
template <class T>
class pooled_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>,
                "bytes are all that a device copies");

 public:
  using value_type = T;

  /// invalid_argument: no elements; size_overflow: more than there are addresses.
  [[nodiscard]] static result<pooled_buffer> create(const block_pool& from, std::size_t count,
                                                    const stream_ref& stream,
                                                    contents inside = contents::undefined) {
    WEIR_TRY_VALUE(size, bytes_of(count));
    WEIR_TRY_VALUE(memory, pooled_memory::create(from, size, stream, inside, alignment()));
    return pooled_buffer{std::move(memory)};
  }

  explicit operator bool() const noexcept { return static_cast<bool>(memory_); }
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.data()); }
  [[nodiscard]] std::size_t size() const noexcept {
    return static_cast<std::size_t>(memory_.size().count() / sizeof(T));
  }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] bytes size_bytes() const noexcept { return memory_.size(); }
  [[nodiscard]] const stream_ref& stream() const noexcept { return memory_.stream(); }

  result<void> record_stream(const stream_ref& stream) const {
    return memory_.record_stream(stream);
  }
  result<void> give_back() { return memory_.give_back(); }
  result<void> give_back(const stream_ref& stream) { return memory_.give_back(stream); }

 private:
  friend class buffer_pool;
  explicit pooled_buffer(pooled_memory memory) noexcept : memory_{std::move(memory)} {}
  [[nodiscard]] static result<bytes> bytes_of(std::size_t count) {
    const auto size = checked_multiply(bytes{sizeof(T)}, count);
    if (!size) return errc::size_overflow;
    return *size;
  }
  [[nodiscard]] static constexpr bytes alignment() noexcept {
    return bytes{std::max<std::uint64_t>(alignof(T), 256)};
  }

  pooled_memory memory_;
};

}  // namespace weir::inline v0
