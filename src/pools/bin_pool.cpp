// Making a bin_pool.
#include "weir/pool/bin_pool.hpp"

#include "pools/block_cache.hpp"

namespace weir::inline v0 {

result<bin_pool> bin_pool::create(weir::device where, block_pool_options settings) {
  WEIR_TRY_VALUE(inside, pools::block_cache::create(where, pools::plain_memory,
                                                    {settings.threshold, settings.crossing}));
  return bin_pool{std::move(inside)};
}

}  // namespace weir::inline v0
