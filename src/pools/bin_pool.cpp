// SPDX-License-Identifier: Apache-2.0
// Making a bin_pool.
#include "weir/pool/bin_pool.hpp"

#include "pools/block_cache.hpp"

namespace weir { inline namespace v0 {

result<bin_pool> bin_pool::create(weir::device device, block_pool_options options,
                                  std::shared_ptr<memory_source> upstream) {
  auto source =
      upstream != nullptr ? pools::upstream_memory(std::move(upstream)) : pools::plain_memory();
  WEIR_TRY_VALUE(cache, pools::block_cache::create(device, std::move(source),
                                                   {options.threshold, options.crossing}));
  return bin_pool{std::move(cache)};
}

}}  // namespace weir::v0
