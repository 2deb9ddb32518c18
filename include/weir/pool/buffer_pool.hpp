// SPDX-License-Identifier: Apache-2.0
// weir::buffer_pool: typed buffers on all devices, taken and freed.
//
//   auto pool = weir::buffer_pool::create({.max_cached = 4_GiB, .max_idle_time = 30s}).value();
//   auto sums = pool.take<float>(rows, stream, weir::contents::zeroed).value();
//   launch(sums.data(), stream);
//   auto written = weir::event::create(gpu).value();
//   written.record(stream).value();
//   other.wait(written).value();        // another stream reads what was written ...
//   sums.record_stream(other).value();  // ... and may use it until the buffer is freed
//   launch(sums.data(), other);
//   sums.free().value();                // or at the end of its life
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/options.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/block_pool.hpp"
#include "weir/pool/pooled_buffer.hpp"

namespace weir { inline namespace v0 {

namespace pools {
class device_caches;
}

/// The choices of a buffer_pool.
struct buffer_pool_options {
  /// How much freed memory is cached, on each device.
  bytes max_cached = bytes::max();
  /// How long an unused buffer is cached.
  std::chrono::nanoseconds max_idle_time = std::chrono::nanoseconds::max();
  /// The clock, with any starting point; must be monotonic, must not fail, and must not use the
  /// pool. Empty: the system's monotonic clock. Called only if max_idle_time is a limit.
  std::function<std::chrono::nanoseconds()> clock{};
  /// Which work must be complete before a freed buffer goes to another stream, or to the driver.
  crossing_rule crossing = crossing_rule::all_work;
};

/// The counters of a buffer_pool, consistent for each device.
struct buffer_pool_stats {
  // Since the pool was created or reset_counters() was last called.
  std::uint64_t hits = 0;     ///< takes served by a cached buffer
  std::uint64_t misses = 0;   ///< takes served by the driver
  std::uint64_t returns = 0;  ///< buffers that were freed

  bytes cached{};      ///< freed and not taken again
  bytes taken{};       ///< taken and not freed, in rounded sizes
  bytes taken_peak{};  ///< of one device; for several devices, the sum of their peaks

  friend bool operator==(const buffer_pool_stats&, const buffer_pool_stats&) = default;
};

/// "hits 3, misses 1, …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const buffer_pool_stats& stats);

/// Buffers by device and rounded length.
///
/// A taken buffer is an array of T. Cached memory is untyped, so a freed buffer can serve another
/// type of the same length in bytes. Lengths are rounded as in block_pool, by less than 12.5 % +
/// 512 B. Takes and frees follow the stream order of block_pool: every take names its stream, and
/// further streams are declared with record_stream().
///
/// **Memory** is plain device memory, cached separately for each device. (On top of a
/// caching_allocator the bounds would have no effect, because it keeps what the pool releases.)
///
/// **Cost.** A take that finds a buffer of its own stream costs a lock and no driver call; zeroing
/// costs one fill of the requested length. A free makes no driver call. Takes on that device, and
/// trim(), release memory above a bound to the driver, the longest unused first; they do not wait.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr. Pools are independent. Buffers
/// keep the cache of their memory alive, so pools, buffers and runtimes can be destroyed in any
/// order. Calls through a handle that was moved from return moved_from. Thread-safe.
class WEIR_API buffer_pool {
 public:
  /// An empty pool for all devices. invalid_argument: max_idle_time is negative.
  [[nodiscard]] static result<buffer_pool> create(buffer_pool_options options = {});

  /// A buffer of `count` elements for work queued on `stream` from now on. invalid_argument:
  /// `count` is zero; size_overflow; out_of_memory; closed: the pool is closed.
  template <class T>
  [[nodiscard]] result<pooled_buffer<T>> take(std::size_t count, const stream_ref& stream,
                                              contents initial = contents::undefined) const {
    WEIR_TRY_VALUE(size, pooled_buffer<T>::bytes_of(count));
    WEIR_TRY_VALUE(memory, take(size, stream, initial, pooled_buffer<T>::alignment()));
    return pooled_buffer<T>{std::move(memory)};
  }
  /// The same for the legacy stream of the device.
  template <class T>
  [[nodiscard]] result<pooled_buffer<T>> take(std::size_t count, weir::device device,
                                              contents initial = contents::undefined) const {
    return take<T>(count, stream_ref::legacy(device), initial);
  }
  /// An untyped buffer of `size` bytes.
  [[nodiscard]] result<pooled_memory> take(bytes size, const stream_ref& stream,
                                           contents initial = contents::undefined,
                                           bytes alignment = default_alignment) const;

  /// The same, but only if a cached buffer is known to be free for the stream. not_found: there is
  /// none; nothing is counted. No driver call if the reference knows its id (see block_pool),
  /// except for the fill of zeroed buffers: streams are not polled, and bounds are not enforced.
  template <class T>
  [[nodiscard]] result<pooled_buffer<T>> try_take_cached(
      std::size_t count, const stream_ref& stream, contents initial = contents::undefined) const {
    WEIR_TRY_VALUE(size, pooled_buffer<T>::bytes_of(count));
    WEIR_TRY_VALUE(memory, try_take_cached(size, stream, initial, pooled_buffer<T>::alignment()));
    return pooled_buffer<T>{std::move(memory)};
  }
  [[nodiscard]] result<pooled_memory> try_take_cached(bytes size, const stream_ref& stream,
                                                      contents initial = contents::undefined,
                                                      bytes alignment = default_alignment) const;

  /// As pooled_buffer::free(), but checks the pool. foreign_pointer: the buffer belongs to another
  /// pool.
  template <class T>
  result<void> free(pooled_buffer<T>&& buffer, const stream_ref& stream) const {
    return free(std::move(buffer.memory_), stream);
  }
  result<void> free(pooled_memory&& buffer, const stream_ref& stream) const;

  /// The counters of one device, or of all together. They are zero for devices without buffers.
  [[nodiscard]] buffer_pool_stats stats(weir::device device) const;
  [[nodiscard]] buffer_pool_stats stats() const;
  /// Sets the peaks to the current values, on one device or on all.
  void reset_peaks(weir::device device) const;
  void reset_peaks() const;
  /// Sets hits, misses and returns to 0, on one device or on all.
  void reset_counters(weir::device device) const;
  void reset_counters() const;

  /// Releases idle cached memory to the driver, the longest unused first, until at most `keep`
  /// bytes are reserved on the device, or on each device. Memory above the pool's bounds is always
  /// released; with bytes::max() only that. Does not wait. Returns how much was released. All
  /// devices are attempted; the first failure is returned.
  result<bytes> trim(weir::device device, bytes keep = {}) const;
  result<bytes> trim(bytes keep = {}) const;
  /// Waits for the streams that may use cached memory, then releases all of it. Returns how much.
  result<bytes> empty_cache(weir::device device) const;
  result<bytes> empty_cache() const;

  /// Ends the pool: it serves no more takes and caches nothing. Taken buffers stay valid and are
  /// released to the driver when they are freed; that waits for all work of the device. All devices
  /// are attempted; the first failure is returned.
  result<void> close() const;

  /// Whether the handle means a pool: it was not moved from.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const buffer_pool&, const buffer_pool&) noexcept = default;

 private:
  explicit buffer_pool(std::shared_ptr<pools::device_caches> state) noexcept
      : state_{std::move(state)} {}

  std::shared_ptr<pools::device_caches> state_;
};

/// "buffer_pool: " and its statistics.
[[nodiscard]] WEIR_API std::string to_string(const buffer_pool& pool);

}}  // namespace weir::v0
