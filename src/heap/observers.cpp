// Adding and removing observers.
#include "heap/observers.hpp"

#include <algorithm>
#include <new>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

void observers::remove(const event_sink& sink) noexcept {
  const auto position = std::find(sinks_.begin(), sinks_.end(), &sink);
  if (position != sinks_.end()) sinks_.erase(position);
}

event_sink& observers::begin_end() noexcept {
  const detail::mutex_lock lock{end_mutex_};  // after what a registration removed before
  is_ending_ = true;
  return *this;
}

void observers::remove_late(const event_sink& sink) noexcept {
  const detail::mutex_lock lock{end_mutex_};
  remove(sink);
}

void observers::on_event(const memory_event& event) noexcept {
  if (!is_ending_) return tell(event);
  const detail::mutex_lock lock{end_mutex_};
  tell(event);
}

std::shared_ptr<observers> central_heap::add_observer(event_sink& sink) {
  if (!usable()) return nullptr;
  const detail::mutex_lock lock{mutex_};
  if (!usable()) return nullptr;
  const thread_caches::stop stopped{caches_, own_cache()};
  std::vector<pool_snapshot> existing;
  if (sink.wants_existing()) {
    settle_caches();
    for (const auto& each : pools_) describe(*each, existing.emplace_back());
  }
  observers_->add(sink);
  update_observers();
  for (const pool_snapshot& each : existing) tell_existing(each, sink);
  tell_limits(sink);
  return observers_;
}

void central_heap::tell_existing(const pool_snapshot& pool, event_sink& sink) const noexcept {
  const auto tell = [&](memory_event event) {
    event.device = device_.id();
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

void central_heap::tell_limits(event_sink& sink) const noexcept {
  const auto tell = [&](std::uint16_t tag, std::uint64_t most) {
    if (most == bytes::max().count()) return;
    sink.on_event(
        {.kind = memory_event_kind::limit, .tag = tag, .device = device_.id(), .size = most});
  };
  tell(0, placement_.reserved_limit);
  for (std::size_t i = 1; i < accounts_.tags(); ++i) {
    const auto number = static_cast<std::uint16_t>(i);
    if (accounts_.limited(number)) tell(number, accounts_.limit(number));
  }
}

/// Also after close(): while another thread is inside it, events are emitted.
void central_heap::remove_observer(event_sink& sink) noexcept {
  if (home_->forked()) return;
  const detail::mutex_lock lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  observers_->remove(sink);
  update_observers();
}

void central_heap::update_observers() noexcept {
  placement_.observer = observers_->sink();
  caches_.set_observer(observers_->sink());
}

}}}  // namespace weir::v0::heap
