// SPDX-License-Identifier: Apache-2.0
// staging_buffer: pageable host memory to and from a device at the speed of pinned memory.
//
//   auto pool = weir::pinned_pool::create(gpu).value();
//   auto stage = weir::staging_buffer::create(pool, stream).value();
//   stage.upload(on_device.data(), std::as_bytes(std::span{host})).value();  // `host` may change
//   stage.download(std::as_writable_bytes(std::span{host}), on_device.data()).value();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/buffer/pinned_buffer.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir { inline namespace v0 {

/// The choices of a staging_buffer.
struct staging_options {
  /// The size of each half: small enough for the processor's cache, large enough for fast
  /// transfers.
  bytes chunk{std::uint64_t{4} << 20};
};

/// Two pieces of pinned memory for double buffering: while one is copied over the bus, the host
/// fills or empties the other.
///
/// Copies are queued on the stream that it was created with, which must outlive it. A per-thread
/// default stream is that of the creating thread. Keeps its pool alive. One thread at a time. The
/// pinned memory is allocated once, by create().
class WEIR_API staging_buffer {
 public:
  /// A staging buffer for `stream`. invalid_argument: the chunk size is zero.
  [[nodiscard]] static result<staging_buffer> create(const pinned_pool& pool,
                                                     const stream_ref& stream,
                                                     staging_options settings = {});

  // capture_forbidden: the stream is being captured; every launch of the graph would copy the first
  // contents again. moved_from: the buffer is empty; bad_stream: it was created for another
  // thread's default stream. After a failure the earlier copies stay queued, and the buffer is
  // usable.

  /// Queues copies of all of `from`. When it returns, `from` has been read and may be changed or
  /// freed; the copies run in the stream's order.
  result<void> upload(void* to, std::span<const std::byte> from);
  /// Waits for the stream and copies: when it returns, `to` holds the data.
  result<void> download(std::span<std::byte> to, const void* from);

  /// upload() without a copy by the host: `produce(piece, offset)` writes the pinned memory in
  /// place, piece by piece in order; it must not throw.
  template <class Produce>
  result<void> upload_with(void* to, bytes size, Produce&& produce) {
    return upload_pieces(
        to, size,
        [](void* context, std::span<std::byte> piece, bytes offset) noexcept {
          (*static_cast<std::remove_reference_t<Produce>*>(context))(piece, offset);
        },
        context_of(produce));
  }
  /// download() without a copy by the host: `consume(piece, offset)` reads the pinned memory in
  /// place, piece by piece in order; it must not throw.
  template <class Consume>
  result<void> download_with(const void* from, bytes size, Consume&& consume) {
    return download_pieces(
        from, size,
        [](void* context, std::span<std::byte> piece, bytes offset) noexcept {
          (*static_cast<std::remove_reference_t<Consume>*>(context))(
              std::span<const std::byte>{piece}, offset);
        },
        context_of(consume));
  }

  /// The size of each half, as given to create().
  [[nodiscard]] bytes chunk() const noexcept { return bytes{halves_[0].memory.size()}; }

 private:
  using piece_function = void (*)(void* context, std::span<std::byte> piece, bytes offset) noexcept;
  struct half {
    pinned_buffer<std::byte> memory;
    event done;  ///< behind the last copy of this half
  };

  explicit staging_buffer(std::array<half, 2> halves) noexcept : halves_{std::move(halves)} {}
  template <class Function>
  static void* context_of(Function& function) noexcept {
    return const_cast<void*>(static_cast<const void*>(&function));
  }
  [[nodiscard]] result<void> ready_to_start() const;
  [[nodiscard]] result<void> wait_for(const half& waited) const;
  [[nodiscard]] result<void> record_done(half& used) const;
  [[nodiscard]] result<void> wait_for_stream() const;
  [[nodiscard]] const stream_ref& stream() const noexcept { return halves_[0].memory.stream(); }
  result<void> upload_pieces(void* to, bytes size, piece_function produce, void* context);
  result<void> download_pieces(const void* from, bytes size, piece_function consume, void* context);
  result<void> fetch(half& target, const void* from, bytes size);

  std::array<half, 2> halves_;
};

}}  // namespace weir::v0
