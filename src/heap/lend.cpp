// SPDX-License-Identifier: Apache-2.0
// What the lender of handles asks of the heap: blocks that are one handle each.
#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

bool central_heap::lends_handles() const {
  return placement::kind_of_store(reclamation_.traits_of(*pools_.front()), device_) ==
         placement::store_kind::arena;
}

result<block_index> central_heap::allocate_handle(bytes size, const identified_stream& stream,
                                                  const handle_source& from) {
  const request wanted{.units = static_cast<std::uint32_t>(units_for(size)), .whole_handle = true};
  const destination to{.chosen_by_user = true,
                       .address = from.address,
                       .whole_handle = true,
                       .only_free_now = from.only_free_now};
  WEIR_TRY_VALUE(pointer, allocate_locked(size, wanted, stream, to, {}));
  const block_index index = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  // It goes to the store when it is freed, and into no thread's cache.
  blocks_[index].out.home = block::recorded;
  return index;
}

result<void> central_heap::free_handle(std::uint64_t block, const identified_stream& stream) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return free_locked(reinterpret_cast<void*>(block), &stream, any_size);
}

}}}  // namespace weir::v0::heap
