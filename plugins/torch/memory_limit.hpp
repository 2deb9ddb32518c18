// SPDX-License-Identifier: Apache-2.0
// How much physical memory a device's allocator may take: torch's fraction and weir's options.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "weir/base/bytes.hpp"
#include "weir/base/options.hpp"

namespace weir_torch {

/// The smaller of torch's fraction of the device's memory and of heap_limit and
/// heap_limit_percent, which a program cannot raise by its fraction; bytes::max(): no limit.
///
/// The fraction is rounded as torch does it: a request that fills the limit exactly must fit.
inline weir::bytes memory_limit(const weir::options& settings, weir::bytes total, double fraction) {
  weir::bytes limit = weir::bytes::max();
  if (settings.heap_limit != weir::bytes{}) limit = settings.heap_limit;
  if (settings.heap_limit_percent < 100) {
    const auto percent = static_cast<std::uint64_t>(settings.heap_limit_percent);
    limit = std::min(
        limit, weir::bytes{total.count() / 100 * percent + total.count() % 100 * percent / 100});
  }
  if (fraction >= 1.0) return limit;
  const double exact = std::round(fraction * static_cast<double>(total.count()));
  return std::min(limit, weir::bytes{static_cast<std::uint64_t>(exact)});
}

}  // namespace weir_torch
