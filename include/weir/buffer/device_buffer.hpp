// SPDX-License-Identifier: Apache-2.0
// device_buffer: bytes from a resource, owned, in the order of a stream.
//
//   using namespace weir::literals;
//   auto buffer = weir::device_buffer::create(memory, 64_MiB, stream).value();
//   launch(buffer.data(), stream);
//   buffer.hand_over(other).value();    // `other` waits for the work on `stream`
//   launch(buffer.data(), other);
//                                       // freed on `other`, after the last work
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/pooled_buffer.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Memory of a resource that is freed with this object, on its stream.
///
/// Belongs to one stream at a time: work queued there may use it. For use on a further stream there
/// are record_stream(), before or after that use, and hand_over(). The contents are undefined
/// unless contents::zeroed is requested. Keeps its resource alive. Its stream must outlive it,
/// unless the buffer is handed over to another one. Costs what the resource costs. One thread at a
/// time.
///
/// A per-thread default stream is that of the creating thread. Other threads can hand the buffer
/// over, close and destroy it, which waits for all work of the device. Other calls return
/// bad_stream there.
class WEIR_API device_buffer {
 public:
  /// Memory that the caller must free with the resource.
  struct raw_memory {
    void* data = nullptr;  ///< null if there is none
    bytes size{};          ///< the size to free it with
  };

  /// Empty, like one that was closed, released or moved from.
  device_buffer() noexcept = default;
  /// A buffer of `size` bytes; for zero bytes nothing is allocated. contents::zeroed queues a fill
  /// on the stream. invalid_argument: the resource is empty; otherwise the errors of the resource.
  [[nodiscard]] static result<device_buffer> create(any_resource memory, bytes size,
                                                    const stream_ref& stream,
                                                    contents initial = contents::undefined,
                                                    bytes alignment = default_alignment);
  ~device_buffer();
  device_buffer(device_buffer&& other) noexcept;
  device_buffer& operator=(device_buffer&& other) noexcept;

  /// Frees the memory now and returns the resource's result. Empty afterwards, also on failure:
  /// then the memory stays allocated.
  result<void> close() noexcept;
  /// Passes the memory to the caller, in the stream's order. Empty afterwards.
  [[nodiscard]] raw_memory release() noexcept;
  /// Whether it has a resource and a stream; a buffer of zero bytes has.
  explicit operator bool() const noexcept { return stream_.has_value(); }

  /// The address; null if there is no memory.
  [[nodiscard]] void* data() const noexcept { return data_; }
  /// The number of bytes in use, at most capacity().
  [[nodiscard]] bytes size() const noexcept { return size_; }
  /// Whether the size is zero.
  [[nodiscard]] bool empty() const noexcept { return size_ == bytes{}; }
  /// Address and size as a span.
  [[nodiscard]] device_span<std::byte> span() const noexcept {
    return {static_cast<std::byte*>(data_), static_cast<std::size_t>(size_.count())};
  }
  /// The allocated size; resize() within it allocates nothing.
  [[nodiscard]] bytes capacity() const noexcept { return capacity_; }
  /// The stream that the memory belongs to. A buffer without a resource throws moved_from.
  [[nodiscard]] const stream_ref& stream() const {
    if (!stream_) raise(errc::moved_from);
    return *stream_;
  }
  /// The resource's device. A buffer without a resource throws moved_from.
  [[nodiscard]] weir::device device() const { return memory_.device(); }
  /// The resource that the memory comes from; empty if there is none.
  [[nodiscard]] const any_resource& resource() const noexcept { return memory_; }

  // moved_from: the buffer has no resource; bad_stream: it belongs to another thread's default
  // stream. A call that fails leaves the buffer as it was.

  /// Whether the calling thread can queue work on the buffer's stream; the error if not.
  [[nodiscard]] result<void> check_stream() const;

  /// Changes the size. Bytes within both sizes are kept, new ones are undefined. Above the capacity
  /// new memory is allocated, the bytes are copied, and the old memory is freed, on the buffer's
  /// stream. capture_forbidden: that stream is being captured; the copy would run only when the
  /// graph is launched, from freed memory.
  result<void> resize(bytes size);
  /// The same without keeping or copying any bytes.
  result<void> resize_discarding(bytes size);
  /// Makes the capacity at least `size`.
  result<void> reserve(bytes size);
  /// Reduces the capacity to the size.
  result<void> shrink_to_fit();

  /// Passes the buffer to the stream `next`, which waits for the work queued on the old stream.
  /// bad_stream: `next` belongs to another device than the memory; capture_forbidden: `next` is
  /// being captured and the old stream is outside of that capture. If only the old stream is being
  /// captured, `next` joins the capture; the legacy stream cannot (capture_forbidden).
  result<void> hand_over(const stream_ref& next);
  /// Declares that work queued on `other` until the free may use the memory, too; see
  /// caching_allocator::record_stream(). Call it at any time before the free: by close(), by the
  /// end of the buffer, or by a call that moves the bytes to new memory (resize(), reserve(),
  /// shrink_to_fit()). Record streams again for the new address. not_supported: the resource is not
  /// one of weir and has no record_stream(); use join().
  result<void> record_stream(const stream_ref& other) const;
  /// Makes the buffer's stream wait for the work queued on `other` so far, so that it sees what
  /// that work wrote. capture_forbidden: as for hand_over().
  result<void> join(const stream_ref& other);
  /// Copies bytes to the host and waits for the copy. invalid_argument: the range exceeds the
  /// buffer; capture_forbidden: the stream is being captured.
  result<void> read(void* to, bytes offset, bytes size) const;

 private:
  result<void> move_to(bytes capacity, bytes kept);
  result<void> free() noexcept;

  any_resource memory_;
  std::optional<stream_ref> stream_;
  std::uint64_t thread_ = 0;  // whose default stream it is; 0: it is none
  void* data_ = nullptr;
  bytes size_{};
  bytes capacity_{};
  bytes alignment_{};
};

/// "4 MiB on device 0, stream 7"; "closed, released or moved from" without a resource.
[[nodiscard]] WEIR_API std::string to_string(const device_buffer& buffer);

/// Queues a copy from one buffer to another, on one device or between two. It runs on the stream of
/// `to`, after the work queued on the stream of `from`, which then waits for the copy. So both
/// streams can be used, and both buffers closed, at once. invalid_argument: a range exceeds its
/// buffer, or the ranges overlap; bad_stream, capture_forbidden: as for join().
WEIR_API result<void> copy_between(device_buffer& to, bytes to_offset, const device_buffer& from,
                                   bytes from_offset, bytes size);

}}  // namespace weir::v0
