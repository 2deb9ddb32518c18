// SPDX-License-Identifier: Apache-2.0
// device_buffer: bytes from a resource, owned, in the order of a stream.
//
//   using namespace weir::literals;
//   auto buffer = weir::device_buffer::create(memory, 64_MiB, stream).value();
//   launch(buffer.data(), stream);
//   buffer.hand_over(other).value();    // `other` goes on where `stream` is now
//   launch(buffer.data(), other);
//                                       // freed on `other`, behind the last work
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
/// Belongs to one stream at a time: work queued there may use it from the beginning to the end. For
/// use on a further stream there are record_stream(), before or after that use, and hand_over().
/// The contents are undefined unless contents::zeroed is asked for. Keeps its resource alive; its
/// stream must outlive it, or be left with hand_over(). Costs what the resource costs. One thread
/// at a time.
///
/// The per-thread default stream means that of the thread which names it. On another thread the
/// buffer can be handed over, closed and destroyed, which waits for all work of the device. Calls
/// that would queue work on its stream are bad_stream there.
class WEIR_API device_buffer {
 public:
  /// Memory that the caller must free with the resource.
  struct raw_memory {
    void* data = nullptr;
    bytes size{};
  };

  /// Empty, like one that was closed, released or moved from.
  device_buffer() noexcept = default;
  /// Zero bytes are fine: there is no memory then. Zeros are written by a fill that is queued on
  /// the stream. invalid_argument: the resource is empty; and the errors of the resource.
  [[nodiscard]] static result<device_buffer> create(any_resource memory, bytes size,
                                                    const stream_ref& stream,
                                                    contents initial = contents::undefined,
                                                    bytes alignment = default_alignment);
  ~device_buffer();
  device_buffer(device_buffer&& other) noexcept;
  device_buffer& operator=(device_buffer&& other) noexcept;

  /// Frees the memory now and returns the resource's answer. Empty afterwards in any case: memory
  /// that the resource does not take back stays allocated.
  result<void> close() noexcept;
  /// Passes the memory to the caller, in the stream's order. Empty afterwards.
  [[nodiscard]] raw_memory release() noexcept;
  explicit operator bool() const noexcept { return stream_.has_value(); }

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] bytes size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == bytes{}; }
  [[nodiscard]] device_span<std::byte> span() const noexcept {
    return {static_cast<std::byte*>(data_), static_cast<std::size_t>(size_.count())};
  }
  [[nodiscard]] bytes capacity() const noexcept { return capacity_; }
  // A buffer without a resource throws moved_from.
  [[nodiscard]] const stream_ref& stream() const {
    if (!stream_) raise(errc::moved_from);
    return *stream_;
  }
  [[nodiscard]] weir::device device() const { return memory_.device(); }
  [[nodiscard]] const any_resource& resource() const noexcept { return memory_; }

  // moved_from: the buffer has no resource; bad_stream: it belongs to another thread's default
  // stream. A call that fails leaves the buffer as it was.

  /// Whether work can be queued on the buffer's stream here.
  [[nodiscard]] result<void> check_stream() const;

  /// Changes the size; the bytes that both sizes have stay, new ones are undefined. Within the
  /// capacity nothing else happens; beyond it memory is allocated, copied and freed on the buffer's
  /// stream. capture_forbidden: that stream is being captured, so that the bytes would be copied
  /// only when the graph is launched, from memory that was freed.
  result<void> resize(bytes size);
  /// The same, but no bytes are kept, so none are copied.
  result<void> resize_discarding(bytes size);
  /// Makes the capacity at least `size`.
  result<void> reserve(bytes size);
  /// Makes the capacity the size.
  result<void> shrink_to_fit();

  /// The buffer belongs to `next` from now on, which waits for what is queued on the old stream.
  /// bad_stream: `next` is of another device than the memory; capture_forbidden: `next` is being
  /// captured and the old stream is outside of that capture. The other way round `next` becomes
  /// part of the capture; capture_forbidden if it is the legacy stream, which cannot.
  result<void> hand_over(const stream_ref& next);
  /// Work queued on `other` until the memory is freed may use it, too: call this at any time before
  /// the free, as with caching_allocator::record_stream(), which it forwards to. The memory is
  /// freed by close(), by the end of the buffer, and by a call that moves the bytes to other memory
  /// (resize(), reserve(), shrink_to_fit()): record streams for the new address again.
  /// not_supported: the resource is not of weir and keeps no such list; use join().
  result<void> record_stream(const stream_ref& other) const;
  /// The buffer's stream waits for the work that is queued on `other` so far, and for nothing that
  /// is queued there later. So the buffer's stream sees what that work wrote. capture_forbidden: as
  /// for hand_over().
  result<void> join(const stream_ref& other);
  /// Copies bytes to the host and waits for them. invalid_argument: they reach over the end;
  /// capture_forbidden: the stream is being captured.
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

/// Queues a copy from one buffer to another, on one device or between two, on the stream of `to`
/// and behind what is queued on the stream of `from`; that one then waits for the copy. So both
/// streams may go on, and both buffers may be closed, at once. invalid_argument: a range reaches
/// over a buffer's end, or they overlap; bad_stream, capture_forbidden: as for join().
WEIR_API result<void> copy_between(device_buffer& to, bytes to_offset, const device_buffer& from,
                                   bytes from_offset, bytes size);

}}  // namespace weir::v0
