// SPDX-License-Identifier: Apache-2.0
// What a new observer is told, and who calls the observers.
#include "heap/observer_registry.hpp"

#include <vector>

namespace weir { inline namespace v0 { namespace heap {

std::shared_ptr<observers> observer_registry::add(event_sink& sink) {
  if (!core_.usable()) return nullptr;
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return nullptr;
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  std::vector<pool_snapshot> existing;
  if (sink.wants_existing()) existing = inspection_.describe_all();
  core_.observers_->add(sink);
  update();
  for (const pool_snapshot& each : existing) tell_existing(each, sink);
  limits_.tell(sink);
  return core_.observers_;
}

void observer_registry::tell_existing(const pool_snapshot& pool, event_sink& sink) const noexcept {
  const auto tell = [&](memory_event event) {
    event.device = core_.device_.id();
    event.pool = pool.id;
    sink.on_existing(event);
  };
  if (pool.id != pool_id{}) tell({.kind = memory_event_kind::pool_created});
  memory_event mapped{.kind = memory_event_kind::reserve};
  for (const physical_info& each : pool.physical) {  // handles that touch are told as one
    if (mapped.size != 0 && mapped.address + mapped.size != each.address) {
      tell(mapped);
      mapped.size = 0;
    }
    if (mapped.size == 0) mapped.address = each.address;
    mapped.size += each.size.count();
  }
  if (mapped.size != 0) tell(mapped);
  for (const block_info& each : pool.blocks) {
    if (each.state != block_state::live) continue;
    tell({.kind = memory_event_kind::allocate,
          .tag = each.tag.number(),
          .stream = each.stream,
          .address = each.address,
          .size = each.requested.count(),
          .rounded = each.size.count()});
  }
  if (pool.stats.suspended.count() != 0)
    tell({.kind = memory_event_kind::suspended, .size = pool.stats.suspended.count()});
}

void observer_registry::remove(event_sink& sink) noexcept {
  if (core_.home_->forked()) return;
  const detail::mutex_lock lock{core_.mutex_};
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  core_.observers_->remove(sink);
  update();
}

void observer_registry::update() noexcept {
  core_.mutex_.assert_held();
  core_.placement_.observer = core_.observers_->sink();
  core_.caches_.set_observer(core_.observers_->sink());
}

}}}  // namespace weir::v0::heap
