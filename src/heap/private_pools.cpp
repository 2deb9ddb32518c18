// Private pools of an allocator: who holds them, what lies under their blocks, when they end.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"
#include "observe/misuse.hpp"

namespace weir { inline namespace v0 { namespace heap {

pool::~pool() {
  if (const auto allocator = owner_.lock()) allocator->release_pool(id_);
}

bool pool::is_of(const central_heap& candidate) const noexcept {
  return !owner_.owner_before(candidate.weak_from_this()) &&
         !candidate.weak_from_this().owner_before(owner_);
}

const pool_scope*& innermost_scope() noexcept {
  thread_local constinit const pool_scope* now = nullptr;
  return now;
}

const pool* central_heap::scoped_pool() const noexcept {
  for (const pool_scope* scope = innermost_scope(); scope != nullptr; scope = scope->outer_) {
    const pool* const into = scope->pool_.state_.get();
    if (into != nullptr && into->is_of(*this)) return into;
  }
  return nullptr;
}

result<std::shared_ptr<pool>> central_heap::create_pool(std::string_view name,
                                                        pool_options options) try {
  WEIR_TRY(usable());
  const auto& can = device_.capabilities();
  if (options.exportable && !(can.virtual_memory && can.posix_descriptors)) {
    return error{.code = errc::not_supported, .detail = "the device cannot export memory"};
  }
  if (options.exportable && options.in_segments()) {
    return error{.code = errc::not_supported, .detail = "segments cannot be given away in parts"};
  }
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  pool_state& added = add_pool(std::string{name});
  added.exportable = options.exportable;
  added.retains = options.retains;
  added.segments = options.in_segments();
  added.splits = options.splits;
  added.source = std::move(options.source);
  added.suspendable = options.suspendable;
  try {
    return std::make_shared<pool>(weak_from_this(), added.id, added.name);
  } catch (const std::bad_alloc&) {
    drop_holder(added);  // there is no handle that would
    driver_access driver{placement_.device};
    sweep_pools(driver);
    throw;
  }
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

std::shared_ptr<pool> central_heap::share_pool(pool_id id) {
  if (!usable()) return nullptr;
  const detail::mutex_lock lock{mutex_};
  pool_state* const shared = find_pool(id);
  if (shared == nullptr) return nullptr;
  auto handle = std::make_shared<pool>(weak_from_this(), id, shared->name);
  ++shared->holders;
  return handle;
}

result<void> central_heap::set_fallback(pool_id id, bool value) {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  pool_state* const pool = find_pool(id);
  if (pool == nullptr || pool->holders == 0) return errc::closed;
  pool->is_fallback = value;
  return {};
}

void central_heap::release_pool(pool_id id) noexcept {
  if (!usable()) return;
  const detail::mutex_lock lock{mutex_};
  if (!usable()) return;
  pool_state* const left = find_pool(id);
  if (left == nullptr) return;
  drop_holder(*left);
  driver_access driver{placement_.device};
  sweep_pools(driver);
}

pool_state* central_heap::pool_behind(pool_id id) const noexcept {
  const auto behind = std::find_if(pools_.begin(), pools_.end(), [&](const auto& each) {
    return each->id.number() > id.number();
  });
  return behind == pools_.end() ? nullptr : behind->get();
}

result<void> central_heap::sweep_pools(pool_state& asking, driver_access& driver) {
  const pool_hold held{*this, asking};
  sweep_pools(driver);
  return usable();
}

/// Releases the pools that nobody holds and that have no blocks, as far as streams have passed
/// them. What cannot go now goes at the next look for room, trim or wait.
void central_heap::sweep_pools(driver_access& driver) noexcept try {
  const auto is_over = [](const pool_state& each) {
    return each.id != pool_id{} && each.holders == 0 && each.blocks == 0 && !each.is_moving();
  };
  pools_to_sweep_ = false;
  if (std::none_of(pools_.begin(), pools_.end(), [&](const auto& each) { return is_over(*each); }))
    return;
  if (!driver.entered()) return;
  for (const auto& each : pools_)
    if (each->guards_due) guard_replays(*each);
  if (!poll_streams(driver, no_stream)) return;
  pool_id last{};
  while (pool_state* const each = pool_behind(last)) {
    last = each->id;
    const bool suspended = each->where == residence::suspended;  // nothing of it is in use
    if (!is_over(*each) || (!suspended && !may_release(*each))) continue;
    backup_.drop(*each);
    if (each->memory != nullptr) {
      retire(*each);
      // What is on its way counts as reserved: another thread that sweeps leaves the pool alone.
      if (!suspended) static_cast<void>(each->memory->release(bytes::max(), driver.enter()));
      if (!usable()) return;  // the heap is being closed, which closes the stores
      if (each->memory->reserved() != 0 && !suspended) continue;
      detail::report_failure(each->memory->close(driver.enter()));
    }
    accounts_.remove_pool(last);
    std::erase_if(pools_, [&](const auto& other) { return other.get() == each; });
  }
} catch (const std::bad_alloc&) {
  pools_to_sweep_ = true;
}

bool central_heap::may_release(const pool_state& from) const noexcept {
  if (from.where != residence::resident) return false;
  if (!from.of_graphs()) return true;
  if (from.retains && from.blocks != 0) return false;
  return from.holders == 0 && !from.guards_due &&
         std::all_of(from.guards.begin(), from.guards.end(), [&](stamp each) {
           mutex_.assert_held();
           return order_.completed(each);
         });
}

/// A pool that graphs alone hold may go without any call, with the last replay of one that was
/// destroyed.
bool central_heap::keeps_memory(const pool_state& pool) const noexcept {
  return pool.of_graphs() && pool.holders > captures_.ties_of(pool.id);
}

result<block_handles> central_heap::handles_under(const void* pointer,
                                                  std::optional<pool_id> of) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(index, find_live(pointer));
  pool_state& home = pool_of(blocks_[index]);
  if (of && home.id != *of) {
    const block& other = blocks_[index];
    return error{
        .code = errc::foreign_pointer,
        .detail = "of another pool: " + observe::words_of({.address = other.address,
                                                           .size = bytes{other.size()},
                                                           .tag = accounts_.tag_of(other.account),
                                                           .stream = order_.id(other.stream)})};
  }
  if (!home.exportable && (of || !exportable_)) {
    return error{.code = errc::not_supported, .detail = "the memory is not exportable"};
  }
  if (home.where != residence::resident) return errc::suspended;
  home.handles_seen = true;
  return home.memory->handles_under(index);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

}}}  // namespace weir::v0::heap
