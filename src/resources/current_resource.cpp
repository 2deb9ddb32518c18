// Current resources: one for each device, and the scopes of threads before them.
#include "weir/resource/current_resource.hpp"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "device/state.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir::inline v0 {
namespace {

thread_local resource_scope* innermost_scope = nullptr;

struct entry {
  any_resource memory;
  /// The key must not be freed and become another device's.
  std::shared_ptr<detail::device_state> home;
};

struct registry {
  std::shared_mutex mutex;
  std::unordered_map<const detail::device_state*, entry> current;
};

/// Never destroyed: at the end of the process a destructor would meet a driver that is gone.
registry& process_registry() {
  static auto* const resources = new registry;
  return *resources;
}

any_resource find(const detail::device_state& key) {
  registry& resources = process_registry();
  const std::shared_lock lock{resources.mutex};
  const auto position = resources.current.find(&key);
  return position != resources.current.end() ? position->second.memory : any_resource{};
}

}  // namespace

result<any_resource> current_resource(device home) {
  for (const resource_scope* scope = innermost_scope; scope != nullptr; scope = scope->enclosing_)
    if (scope->memory_ && scope->memory_.device() == home) return scope->memory_;
  const detail::device_state& key = detail::device_state::of(home);
  if (any_resource known = find(key)) return known;
  // Created without the lock; of two threads at once both get the one that was entered first.
  WEIR_TRY_VALUE(allocator, caching_allocator::create(home));
  registry& resources = process_registry();
  const std::lock_guard lock{resources.mutex};
  const auto [position, is_first] = resources.current.try_emplace(
      &key, entry{std::move(allocator), detail::device_state::keep(home)});
  return position->second.memory;
}

result<any_resource> set_current_resource(device home, any_resource next) {
  if (next && next.device() != home)
    return error{.code = errc::invalid_argument, .detail = "a resource of another device"};
  registry& resources = process_registry();
  // Destroyed last, and without the lock: the runtime may end with it.
  entry previous;
  const std::lock_guard lock{resources.mutex};
  const auto position = resources.current.find(&detail::device_state::of(home));
  if (position != resources.current.end()) {
    previous = std::move(position->second);
    resources.current.erase(position);
  }
  if (next)
    resources.current.emplace(&detail::device_state::of(home),
                              entry{std::move(next), detail::device_state::keep(home)});
  return previous.memory;
}

resource_scope::resource_scope(any_resource memory) noexcept
    : memory_{std::move(memory)}, enclosing_{innermost_scope} {
  innermost_scope = this;
}

resource_scope::~resource_scope() { innermost_scope = enclosing_; }

}  // namespace weir::inline v0
