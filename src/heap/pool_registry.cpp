// SPDX-License-Identifier: Apache-2.0
// Creating, sharing and ending private pools.
#include "heap/pool_registry.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "observe/misuse.hpp"

namespace weir { inline namespace v0 { namespace heap {

using order::driver_access;

result<std::shared_ptr<pool>> pool_registry::create(std::string_view name,
                                                    pool_options options) try {
  WEIR_TRY(core_.usable());
  const auto& can = core_.device_.capabilities();
  if (options.exportable && !(can.virtual_memory && can.posix_descriptors)) {
    return error{{.code = errc::not_supported, .detail = "the device cannot export memory"}};
  }
  if (options.exportable && options.in_segments()) {
    return error{
        {.code = errc::not_supported, .detail = "a pool in segments cannot share single blocks"}};
  }
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  pool_state& added = core_.add_pool(std::string{name});
  added.exportable = options.exportable;
  added.for_graphs = options.for_graphs;
  added.segments = options.in_segments();
  added.splits = !options.one_block_per_segment;
  added.source = std::move(options.source);
  added.suspendable = options.suspendable;
  try {
    return std::make_shared<pool>(core_.owner_, added.id, added.name);
  } catch (const std::bad_alloc&) {
    core_.drop_holder(added);  // the handle would have done it
    driver_access driver{core_.device_};
    sweep(driver);
    throw;
  }
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

std::shared_ptr<pool> pool_registry::share(pool_id id) {
  if (!core_.usable()) return nullptr;
  const detail::mutex_lock lock{core_.mutex_};
  pool_state* const shared = core_.find_pool(id);
  if (shared == nullptr) return nullptr;
  auto handle = std::make_shared<pool>(core_.owner_, id, shared->name);
  ++shared->holders;
  return handle;
}

void pool_registry::release(pool_id id) noexcept {
  if (!core_.usable()) return;
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return;
  pool_state* const left = core_.find_pool(id);
  if (left == nullptr) return;
  core_.drop_holder(*left);
  driver_access driver{core_.device_};
  sweep(driver);
}

result<void> pool_registry::set_fallback(pool_id id, bool value) {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  pool_state* const pool = core_.find_pool(id);
  if (pool == nullptr || pool->holders == 0) return errc::closed;
  pool->is_fallback = value;
  return {};
}

result<block_handles> pool_registry::handles_under(const void* pointer,
                                                   std::optional<pool_id> owner) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  WEIR_TRY_VALUE(index, host_.find_live(pointer));
  pool_state& home = core_.pool_of(core_.blocks_[index]);
  if (owner && home.id != *owner) {
    const block& other = core_.blocks_[index];
    return error{{.code = errc::foreign_pointer,
                  .detail = "the block belongs to another pool: " +
                            observe::words_of({.address = other.address,
                                               .size = bytes{other.size()},
                                               .tag = core_.accounts_.tag_of(other.account),
                                               .stream = core_.order_.id(other.stream)})}};
  }
  if (!home.exportable && (owner || !core_.exportable_)) {
    return error{{.code = errc::not_supported,
                  .detail = "the memory was not created exportable; set heap_exportable=on"}};
  }
  if (home.where != residence::resident) return errc::suspended;
  home.handles_seen = true;
  return home.memory->handles_under(index);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> pool_registry::sweep(pool_state& asking, driver_access& driver) {
  core_.mutex_.assert_held();
  const pool_hold held{core_, asking};
  sweep(driver);
  return core_.usable();
}

void pool_registry::sweep(driver_access& driver) noexcept try {
  core_.mutex_.assert_held();
  const auto is_over = [](const pool_state& each) {
    return each.id != pool_id{} && each.holders == 0 && each.blocks == 0 && !each.is_moving();
  };
  core_.pools_to_sweep_ = false;
  if (std::none_of(core_.pools_.begin(), core_.pools_.end(),
                   [&](const auto& each) { return is_over(*each); }))
    return;
  if (!driver.entered()) return;
  for (const auto& each : core_.pools_)
    if (each->guards_due) core_.guard_replays(*each);
  if (!progress_.poll_streams(driver, no_stream)) return;
  pool_id last{};
  while (pool_state* const each = core_.pool_behind(last)) {
    last = each->id;
    const bool suspended = each->where == residence::suspended;  // nothing of it is in use
    if (!is_over(*each) || (!suspended && !each->may_release(core_.order_))) continue;
    backup_.drop(*each);
    if (each->memory != nullptr) {
      progress_.retire(*each);
      // What is on its way counts as reserved: another thread that sweeps leaves the pool alone.
      if (!suspended) static_cast<void>(each->memory->release(bytes::max(), driver.enter()));
      if (!core_.usable()) return;  // the heap is being closed, which closes the stores
      if (each->memory->reserved() != 0 && !suspended) continue;
      detail::report_failure(each->memory->close(driver.enter()));
    }
    core_.accounts_.remove_pool(last);
    std::erase_if(core_.pools_, [&](const auto& other) { return other.get() == each; });
  }
} catch (const std::bad_alloc&) {
  core_.pools_to_sweep_ = true;
}

}}}  // namespace weir::v0::heap
