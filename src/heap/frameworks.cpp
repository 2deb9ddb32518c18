// What frameworks ask about blocks and of pools beyond requests and frees.
#include <algorithm>
#include <new>

#include "heap/allocator_state.hpp"

namespace weir::inline v0::heap {

result<block_info> allocator_state::block_at(const void* pointer) {
  WEIR_TRY(usable());
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  block_index which = table_.find(address);
  for (auto each = pools_.begin(); which == no_block && each != pools_.end(); ++each)
    if ((*each)->memory != nullptr) which = (*each)->memory->block_over(address);
  const block& what = blocks_[which];  // where there is none: the record that is never used
  if (what.is() != block_kind::live) return errc::foreign_pointer;
  return block_info{
      .address = what.address,
      .size = bytes{what.size()},
      .requested = bytes{what.size() - what.out.waste},
      .state = block_state::live,
      .stream = order_.id(what.stream),
      .tag = accounts_.tag_of(what.account),
      .pool = is_private(what.account) ? accounts_.pool_of(what.account) : pool_id{},
  };
}

result<block_handles> allocator_state::handles_under(const void* pointer,
                                                     std::optional<pool_id> of) try {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(which, find_live(pointer));
  const pool_state& home = pool_of(blocks_[which]);
  if (of && home.id != *of) return errc::foreign_pointer;
  if (!home.exportable && (of || !exportable_)) {
    return error{.code = errc::not_supported, .detail = "the memory is not exportable"};
  }
  return home.memory->handles_under(which);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> allocator_state::empty_cache(pool_id of) try {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  pool_state* const which = find_pool(of);
  if (which == nullptr) return errc::already_freed;
  if (which->memory == nullptr || which->of_capture) return bytes{};
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  std::vector<stamp> replays;  // may have been queued on any stream
  if (which->retains) {
    for (stream_slot slot = 1; slot <= order_.count(); ++slot) replays.push_back(order_.now(slot));
  }
  WEIR_TRY(wait_for_streams(driver));
  const bool over = std::all_of(replays.begin(), replays.end(),
                                [&](stamp each) { return order_.completed(each); });
  if (!over) return bytes{};
  retire(*which);
  return which->memory->release(bytes::max(), driver.enter());
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void allocator_state::begin_notice() noexcept {
  if (!usable()) return;
  const std::lock_guard lock{mutex_};
  order_.pause();
}

void allocator_state::end_notice() noexcept {
  if (!usable()) return;
  const std::lock_guard lock{mutex_};
  order_.resume();
}

}  // namespace weir::inline v0::heap
