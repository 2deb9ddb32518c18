// Observers come and go.
#include "heap/observers.hpp"

#include <algorithm>
#include <new>

#include "heap/central_heap.hpp"

namespace weir::inline v0::heap {

void observers::remove(const event_sink& sink) noexcept {
  const auto position = std::find(sinks_.begin(), sinks_.end(), &sink);
  if (position != sinks_.end()) sinks_.erase(position);
}

bool central_heap::add_observer(event_sink& sink) {
  if (!usable()) return false;
  const detail::mutex_lock lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  observers_.add(sink);
  update_observers();
  return true;
}

void central_heap::remove_observer(event_sink& sink) noexcept {
  if (!usable()) return;
  const detail::mutex_lock lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  observers_.remove(sink);
  update_observers();
}

void central_heap::update_observers() noexcept {
  placement_.observer = observers_.sink();
  caches_.set_observer(observers_.sink());
}

}  // namespace weir::inline v0::heap
