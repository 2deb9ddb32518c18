// SPDX-License-Identifier: Apache-2.0
// weir::bin_pool: a software pool of device memory, for drivers without stream-ordered pools.
//
//   auto pool = weir::bin_pool::create(gpu).value();
//   auto weights = weir::pooled_buffer<float>::create(pool, 1 << 20, stream).value();
//   launch(weights.data(), weights.size(), stream);
//   // at its end the buffer is returned to the pool, after the work queued on `stream`
#pragma once

#include <memory>
#include <utility>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/memory_source.hpp"
#include "weir/pool/block_pool.hpp"
#include "weir/pool/pooled_buffer.hpp"

namespace weir { inline namespace v0 {

/// A pool of plain device memory (cuMemAlloc), cached in bins of one size each; see block_pool.
///
/// Needs neither stream-ordered pools nor virtual memory. On devices with virtual memory a
/// caching_allocator wastes less and shares memory better between streams.
class WEIR_API bin_pool : public block_pool {
 public:
  /// A pool of the device. With an `upstream`, blocks come from it instead of the driver and are
  /// returned to it; its errors are handled like those of the driver. Null: the driver.
  [[nodiscard]] static result<bin_pool> create(weir::device device, block_pool_options options = {},
                                               std::shared_ptr<memory_source> upstream = nullptr);

 private:
  explicit bin_pool(std::shared_ptr<pools::block_cache> state) noexcept
      : block_pool{std::move(state)} {}
};

}}  // namespace weir::v0
