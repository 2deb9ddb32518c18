// SPDX-License-Identifier: Apache-2.0
// weir::buffer_pool: typed buffers on all devices, taken and freed.
//
//   auto pool = weir::buffer_pool::create({.max_cached = 4_GiB, .max_idle_time = 30s}).value();
//   auto sums = pool.take<float>(rows, stream, weir::contents::zeroed).value();
//   launch(sums.data(), stream);
//   auto written = weir::event::create(gpu).value();
//   written.record(stream).value();
//   other.wait(written).value();        // another stream reads what was written ...
//   sums.record_stream(other).value();  // ... and may do so until the buffer is freed
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

struct buffer_pool_options {
  /// How much freed memory is cached, on each device.
  bytes max_cached = bytes::max();
  /// How long a buffer that nobody takes is cached.
  std::chrono::nanoseconds max_idle_time = std::chrono::nanoseconds::max();
  /// What time it is, from any beginning; must not go backwards, fail, or use the pool. Empty: the
  /// system's monotonic clock. Asked only where max_idle_time is a limit.
  std::function<std::chrono::nanoseconds()> clock{};
  /// What must be done before a freed buffer goes to another stream, or to the driver.
  crossing_rule crossing = crossing_rule::all_work;
};

/// What a buffer_pool did and holds, of one moment for each device.
struct buffer_pool_stats {
  // Since the pool was made or reset_counters() was last called.
  std::uint64_t hits = 0;     ///< takes served by a cached buffer
  std::uint64_t misses = 0;   ///< takes for which the driver was asked
  std::uint64_t returns = 0;  ///< buffers that were freed

  bytes cached{};      ///< freed and not taken again
  bytes taken{};       ///< rounded
  bytes taken_peak{};  ///< of one device; the sum of those where several are asked about

  friend bool operator==(const buffer_pool_stats&, const buffer_pool_stats&) = default;
};

/// "hits 3, misses 1, …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const buffer_pool_stats& stats);

/// Buffers by device and rounded length.
///
/// A buffer is an array of T for as long as it is taken; what is cached is plain memory, so that
/// one type's buffer serves another type of the same length in bytes. Lengths are rounded as
/// block_pool says, by less than 12.5 % + 512 B. Takes and frees follow stream order as block_pool
/// says: every take names its stream, and a buffer used on further streams is told so while it is
/// taken.
///
/// **Memory** is plain device memory that the pool caches itself, for each device apart. A
/// caching_allocator below would keep what the pool releases, and the bounds would bound nothing.
///
/// **Cost.** A take that finds a buffer of its own stream costs a lock and no driver call; zeroed
/// costs one fill of the length asked for. A free makes no driver call. What is over a bound is
/// released to the driver, the longest unused first, with takes on that device and with trim(),
/// which wait for nothing.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr. Pools know nothing of each
/// other. Buffers keep their memory's cache alive, so no order of destruction is wrong, the
/// driver's included. A handle that was moved from answers moved_from. Any thread.
class WEIR_API buffer_pool {
 public:
  /// invalid_argument: max_idle_time is negative.
  [[nodiscard]] static result<buffer_pool> create(buffer_pool_options options = {});

  /// `count` elements for work queued on `stream` from now on. invalid_argument: no elements;
  /// size_overflow; out_of_memory; closed: the pool was.
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
  /// Untyped.
  [[nodiscard]] result<pooled_memory> take(bytes size, const stream_ref& stream,
                                           contents initial = contents::undefined,
                                           bytes alignment = default_alignment) const;

  /// The same, but only if a cached buffer is known to be free for the stream; not_found: none is,
  /// and nothing was counted. No driver call if the reference knows its id, as block_pool says of
  /// hits, except for the fill of zeroed ones: nobody is asked how far streams have come, and no
  /// bound is enforced.
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

  /// As pooled_buffer::free(), but refuses a buffer of another pool: foreign_pointer.
  template <class T>
  result<void> free(pooled_buffer<T>&& buffer, const stream_ref& stream) const {
    return free(std::move(buffer.memory_), stream);
  }
  result<void> free(pooled_memory&& buffer, const stream_ref& stream) const;

  /// Of one device, or of all together. A device that no buffer was taken on has zeros.
  [[nodiscard]] buffer_pool_stats stats(weir::device device) const;
  [[nodiscard]] buffer_pool_stats stats() const;
  /// Every peak becomes the current value, on one device or on all.
  void reset_peaks(weir::device device) const;
  void reset_peaks() const;
  /// Hits, misses and returns become 0, on one device or on all.
  void reset_counters(weir::device device) const;
  void reset_counters() const;

  /// Releases cached memory that nothing uses any more to the driver, the longest unused first,
  /// until at most `keep` bytes are reserved on the device, or on each device, and what is over the
  /// pool's bounds in any case: with bytes::max() that alone. Waits for nothing; returns how much
  /// was released. All devices are attempted; the first failure is returned.
  result<bytes> trim(weir::device device, bytes keep = {}) const;
  result<bytes> trim(bytes keep = {}) const;
  /// The same for all that is cached, after waiting for the streams that may use it.
  result<bytes> empty_cache(weir::device device) const;
  result<bytes> empty_cache() const;

  /// Ends the pool: it serves no more takes and caches nothing. Buffers that are taken stay good,
  /// and go to the driver when they are freed, which then waits for all work of the device. All
  /// devices are attempted; the first failure is returned.
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
