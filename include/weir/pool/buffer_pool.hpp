// weir::buffer_pool: typed buffers on all devices, taken and given back.
//
//   auto pool = weir::buffer_pool::create({.most_kept = 4_GiB, .longest_kept = 30s}).value();
//   auto sums = pool.take<float>(rows, stream, weir::contents::zeroed).value();
//   reduce(sums.data(), stream);
//   sums.record_stream(other);         // another stream reads it, too
//   read(sums.data(), other);
//   sums.give_back();                  // or at the end of its life
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/options.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/block_pool.hpp"
#include "weir/pool/pooled_buffer.hpp"

namespace weir::inline v0 {

namespace pools {
class device_caches;
}

struct buffer_pool_options {
  /// How much is kept of what was given back, on each device.
  bytes most_kept = bytes::max();
  /// How long a buffer that nobody takes is kept.
  std::chrono::nanoseconds longest_kept = std::chrono::nanoseconds::max();
  /// What time it is, from any beginning; must not go backwards, fail, or use the pool. Empty: the
  /// system's monotonic clock. Asked only where longest_kept is a limit.
  std::function<std::chrono::nanoseconds()> clock{};
  /// What must be done before a buffer that came back goes to another stream, or to the driver.
  crossing_rule crossing = crossing_rule::all_work;
};

/// What a buffer_pool did, of one moment for each device.
struct buffer_pool_stats {
  std::uint64_t hits = 0;     ///< takes served by a buffer that was kept
  std::uint64_t misses = 0;   ///< takes for which the driver was asked
  std::uint64_t returns = 0;  ///< buffers that came back
  bytes kept{};               ///< given back and not taken again
  bytes taken{};              ///< rounded
  bytes taken_peak{};         ///< of one device; the sum of those where several are asked about

  friend bool operator==(const buffer_pool_stats&, const buffer_pool_stats&) = default;
};

/// Buffers by device and rounded length.
///
/// A buffer is an array of T for as long as it is taken; what is kept is plain memory, so that one
/// type's buffer serves another type of the same length in bytes. Lengths are rounded as block_pool
/// says, by less than 12.5 % + 512 B. Take and give back follow stream order as block_pool says:
/// every take names its stream, and a buffer used on further streams is told so while it is taken.
///
/// **Memory** is plain device memory that the pool keeps itself, in a cache for each device. A
/// caching_allocator below would keep what the pool gives up, and the bounds would bound nothing.
///
/// **Cost.** A take that finds a buffer of its own stream costs a lock and no driver call; zeroed
/// costs one fill of the length asked for. Giving back makes no driver call. What is over a bound
/// goes back to the driver, the longest unused first, with takes on that device, which wait for
/// nothing, or with trim(), which waits for the streams.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr. Pools know nothing of each
/// other. Buffers keep their memory's cache alive, so no order of destruction is wrong, the
/// driver's included. Any thread.
class WEIR_API buffer_pool {
 public:
  /// invalid_argument: longest_kept is negative.
  [[nodiscard]] static result<buffer_pool> create(buffer_pool_options settings = {});

  /// `count` elements for work queued on `stream` from now on. invalid_argument: no elements;
  /// size_overflow; out_of_memory; already_freed: the pool was shut down.
  template <class T>
  [[nodiscard]] result<pooled_buffer<T>> take(std::size_t count, const stream_ref& stream,
                                              contents inside = contents::undefined) const {
    WEIR_TRY_VALUE(size, pooled_buffer<T>::bytes_of(count));
    WEIR_TRY_VALUE(memory, take(size, stream, inside, pooled_buffer<T>::alignment()));
    return pooled_buffer<T>{std::move(memory)};
  }
  /// The same for the legacy stream of the device.
  template <class T>
  [[nodiscard]] result<pooled_buffer<T>> take(std::size_t count, weir::device where,
                                              contents inside = contents::undefined) const {
    return take<T>(count, stream_ref::legacy(where), inside);
  }
  /// Untyped.
  [[nodiscard]] result<pooled_memory> take(bytes size, const stream_ref& stream,
                                           contents inside = contents::undefined,
                                           bytes alignment = bytes{256}) const;

  /// As pooled_buffer::give_back(), but refuses a buffer of another pool: foreign_pointer.
  template <class T>
  result<void> give_back(pooled_buffer<T>&& buffer, const stream_ref& stream) const {
    return give_back(std::move(buffer.memory_), stream);
  }
  result<void> give_back(pooled_memory&& buffer, const stream_ref& stream) const;

  /// Gives all that is kept back to the driver, on one device or on all, after waiting for the
  /// streams that may use it. Returns how much.
  result<bytes> empty(weir::device where) const;
  result<bytes> empty() const;
  /// The same for what is over the bounds.
  result<bytes> trim() const;

  /// Of one device, or of all together. A device that no buffer was taken on has zeros.
  [[nodiscard]] buffer_pool_stats stats(weir::device where) const;
  [[nodiscard]] buffer_pool_stats stats() const;

  /// Ends the pool: it serves no more takes and keeps nothing. Buffers that are taken stay good,
  /// and go to the driver when they come back, which then waits for their stream. All devices are
  /// attempted; the first failure is returned.
  result<void> shutdown() const;

  friend bool operator==(const buffer_pool&, const buffer_pool&) noexcept = default;

 private:
  explicit buffer_pool(std::shared_ptr<pools::device_caches> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<pools::device_caches> inside_;
};

}  // namespace weir::inline v0
