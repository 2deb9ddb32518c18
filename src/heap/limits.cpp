// How much may be taken, and whom to ask before a request fails.
#include <new>
#include <utility>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

result<void> central_heap::set_limit(bytes most) {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  own_limit_ = most.count();
  update_limit(true);
  return {};
}

result<void> central_heap::set_limit(tag tag, bytes most) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  accounts_.set_limit(tag, most.count());
  update_limits();
  placement_.emit({.kind = memory_event_kind::limit, .tag = tag.number(), .size = most.count()});
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

bool central_heap::is_apart(std::uint16_t tag) const noexcept {
  return accounts_.limited(tag) || (tag < tag_pools_.size() && tag_pools_[tag] != pool_id{});
}

void central_heap::update_limits() noexcept {
  caches_.for_each([&](thread_cache& each) {
    mutex_.assert_held();
    for (std::uint32_t i = 0; i < each.delta_count; ++i)
      each.limits[i] = is_apart(static_cast<std::uint16_t>(i));
  });
  caches_.set_reason(thread_cache::limited, accounts_.any_limit() || !tag_pools_.empty());
}

std::uint64_t central_heap::add_callback(out_of_memory_callback callback) {
  if (!usable()) return 0;
  auto shared = std::make_shared<out_of_memory_callback>(std::move(callback));
  const detail::mutex_lock lock{mutex_};
  callbacks_.emplace(next_callback_, std::move(shared));
  return next_callback_++;
}

std::uint64_t central_heap::add_growth_callback(out_of_memory_callback callback) {
  if (!usable()) return 0;
  auto shared = std::make_shared<out_of_memory_callback>(std::move(callback));
  const detail::mutex_lock lock{mutex_};
  growth_callbacks_.emplace(next_callback_, std::move(shared));
  return next_callback_++;
}

void central_heap::remove_callback(std::uint64_t key) noexcept {
  if (home_->forked()) return;
  std::shared_ptr<out_of_memory_callback> last;  // what it holds goes without the lock
  const detail::mutex_lock lock{mutex_};
  callback_map& all = callbacks_.count(key) != 0 ? callbacks_ : growth_callbacks_;
  const auto entry = all.find(key);
  if (entry == all.end()) return;
  last = std::move(entry->second);
  all.erase(entry);
}

}}}  // namespace weir::v0::heap
