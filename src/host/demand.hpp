// SPDX-License-Identifier: Apache-2.0
// How much memory is pinned ahead of need.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace weir { inline namespace v0 { namespace host {

/// The policy of pinning ahead, which follows what was asked for.
///
/// In rest 1/64 of what is in use is kept free, so that what is pinned stays within 2 % of what was
/// asked for. While demand grows it is 1/8 of what was pinned for requests within the last second,
/// if that is more. Both up to `most`. Owned by an arena, under its lock.
class demand {
 public:
  using time = std::chrono::nanoseconds;
  static constexpr std::uint64_t step = std::uint64_t{2} << 20;
  static constexpr std::uint64_t rest_share = 64;
  static constexpr std::uint64_t growth_share = 8;
  static constexpr time window = std::chrono::seconds{1};

  explicit demand(std::uint64_t most) noexcept : most_{most} {}

  /// A request found no memory, and `size` bytes are pinned for it.
  void add_miss(std::uint64_t size, time now) noexcept {
    recent_ = now - last_miss_ > window ? size : recent_ + size;
    last_miss_ = now;
  }
  /// How much should be free while `in_use` bytes are not. A multiple of `step`.
  [[nodiscard]] std::uint64_t ahead(std::uint64_t in_use, time now) const noexcept {
    const std::uint64_t growth = now - last_miss_ > window ? 0 : recent_ / growth_share;
    return std::min(std::max(in_use / rest_share, growth), most_) / step * step;
  }
  /// The size of the segment that is pinned for a request which found no memory: of small ones as
  /// many as fit into the share of rest, so that no remainder is too small for the next.
  [[nodiscard]] static std::uint64_t segment_for(std::uint64_t size,
                                                 std::uint64_t in_use) noexcept {
    constexpr std::uint64_t largest_step = std::uint64_t{64} << 20;
    const std::uint64_t share = std::clamp(in_use / rest_share / step * step, step, largest_step);
    return size * std::max<std::uint64_t>(1, share / size);
  }

 private:
  const std::uint64_t most_;
  std::uint64_t recent_ = 0;  // pinned for requests, no two more than `window` apart
  time last_miss_ = -2 * window;
};

}}}  // namespace weir::v0::host
