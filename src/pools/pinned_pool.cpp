// Making a pinned_pool.
#include "weir/pool/pinned_pool.hpp"

#include "pools/block_cache.hpp"

namespace weir::inline v0 {

result<pinned_pool> pinned_pool::create(weir::device where, block_pool_options settings) {
  WEIR_TRY_VALUE(inside, pools::block_cache::create(where, pools::pinned_memory,
                                                    {settings.threshold, settings.crossing}));
  return pinned_pool{std::move(inside)};
}

}  // namespace weir::inline v0
