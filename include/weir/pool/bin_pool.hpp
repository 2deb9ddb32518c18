// SPDX-License-Identifier: Apache-2.0
// weir::bin_pool: device memory from a software pool, for drivers that have no pools.
//
//   auto pool = weir::bin_pool::create(gpu).value();
//   auto weights = weir::pooled_buffer<float>::create(pool, 1 << 20, stream).value();
//   launch(weights.data(), weights.size(), stream);
//   // at its end the buffer goes back to the pool, behind the work queued on `stream`
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

/// Plain device memory (cuMemAlloc) cached in bins of one size each; block_pool says how.
///
/// Needs nothing of the device but plain memory: no pools, no virtual memory. Where there is
/// virtual memory a caching_allocator wastes less and shares better.
class WEIR_API bin_pool : public block_pool {
 public:
  /// With an upstream the blocks come from it instead of from the driver, and go back to it: one
  /// that is out of memory or refuses a block counts as a driver that does. Null: the driver.
  [[nodiscard]] static result<bin_pool> create(weir::device device, block_pool_options options = {},
                                               std::shared_ptr<memory_source> upstream = nullptr);

 private:
  explicit bin_pool(std::shared_ptr<pools::block_cache> state) noexcept
      : block_pool{std::move(state)} {}
};

}}  // namespace weir::v0
