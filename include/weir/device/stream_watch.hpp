// SPDX-License-Identifier: Apache-2.0
// Streams that use memory but ask for none: how weir learns of them.
//
//   const weir::stream_ref copies{gpu, cuda_stream};   // a cudaStream_t that only copies
//   weir::watch_stream(copies).value();
//   launch(copies);
//   weir::unwatch_stream(copies).value();              // before it is destroyed
//
// Freed memory leaves its stream only when all work that was queued on any stream is done
// (docs/allocator.md). An allocator knows the streams that were named in its requests and frees,
// and every weir::stream. Others are declared here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 {

/// From now on every allocator and pool of the device takes the stream's work into account, even if
/// no request names it. Idempotent; a weir::stream need not be watched. Costs one more event
/// whenever memory is about to change streams, otherwise nothing.
///
/// Unwatch the stream before it is destroyed: querying a destroyed stream crashes the driver.
/// bad_stream: a per-thread default stream.
WEIR_API result<void> watch_stream(const stream_ref& stream);

/// Declares that the stream will not be used any more: its last work is marked, and it is never
/// queried again. The same as release_stream() of every allocator and pool of the device.
WEIR_API result<void> unwatch_stream(const stream_ref& stream);

/// A function that appends streams, each with a known id (stream_ref::identified()). Called by
/// allocators with locks held, on any thread, whenever memory is about to change streams: it must
/// not call weir, wait or throw. The streams that it returns are watched from then on.
using stream_source = std::function<void(std::vector<stream_ref>& streams)>;

/// Keeps a stream_source registered. Its end waits for threads that are inside the source; after
/// that the source is not called any more. So it must not end inside the source, nor with a lock
/// held that the source takes.
class WEIR_API stream_source_registration {
 public:
  stream_source_registration() noexcept = default;
  ~stream_source_registration();
  stream_source_registration(stream_source_registration&& other) noexcept;
  stream_source_registration& operator=(stream_source_registration&& other) noexcept;

  /// Whether a source is registered by this object.
  explicit operator bool() const noexcept { return home_ != nullptr; }

 private:
  friend WEIR_API result<stream_source_registration> watch_streams(weir::device device,
                                                                   stream_source source);
  stream_source_registration(std::shared_ptr<detail::device_state> home,
                             std::uint64_t key) noexcept;

  std::shared_ptr<detail::device_state> home_;
  std::uint64_t key_ = 0;
};

/// Registers a source of streams, for frameworks that create streams for others. invalid_argument:
/// the source is empty.
[[nodiscard]] WEIR_API result<stream_source_registration> watch_streams(weir::device device,
                                                                        stream_source source);

}}  // namespace weir::v0
