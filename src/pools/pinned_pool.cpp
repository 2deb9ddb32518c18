// SPDX-License-Identifier: Apache-2.0
// Making a pinned_pool.
#include "weir/pool/pinned_pool.hpp"

#include "pools/block_cache.hpp"

namespace weir { inline namespace v0 {

result<pinned_pool> pinned_pool::create(weir::device device, block_pool_options options) {
  WEIR_TRY_VALUE(cache, pools::block_cache::create(device, pools::pinned_memory(),
                                                   {options.threshold, options.crossing}));
  return pinned_pool{std::move(cache)};
}

}}  // namespace weir::v0
