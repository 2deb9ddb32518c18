// SPDX-License-Identifier: Apache-2.0
// Current resources: one for each device, and the scopes of threads before them.
#include "weir/resource/current_resource.hpp"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "device/per_process.hpp"
#include "device/state.hpp"
#include "pools/guarded.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir { inline namespace v0 {
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

registry& process_registry() {
  static constinit detail::per_process<registry> resources;
  return resources.get();
}

any_resource find(const detail::device_state& key) {
  registry& resources = process_registry();
  const std::shared_lock lock{resources.mutex};
  const auto position = resources.current.find(&key);
  return position != resources.current.end() ? position->second.memory : any_resource{};
}

}  // namespace

result<any_resource> current_resource(device home) {
  if (detail::device_state::of(home).forked()) return detail::fork_error();
  for (const resource_scope* scope = innermost_scope; scope != nullptr; scope = scope->enclosing_)
    if (scope->memory_ && scope->memory_.device() == home) return scope->memory_;
  return pools::guarded([&]() -> result<any_resource> {
    const detail::device_state& key = detail::device_state::of(home);
    if (any_resource known = find(key)) return known;
    // Created without the lock; of two threads at once both get the one that was entered first.
    WEIR_TRY_VALUE(allocator, caching_allocator::create(home));
    registry& resources = process_registry();
    const std::lock_guard lock{resources.mutex};
    const auto [position, is_first] = resources.current.try_emplace(
        &key, entry{std::move(allocator), detail::device_state::keep(home)});
    return position->second.memory;
  });
}

result<any_resource> set_current_resource(device home, any_resource next) {
  if (next && next.device() != home)
    return error{
        {.code = errc::invalid_argument, .detail = "the resource belongs to another device"}};
  if (detail::device_state::of(home).forked()) return detail::fork_error();
  return pools::guarded([&]() -> result<any_resource> {
    registry& resources = process_registry();
    // Destroyed last, and without the lock: the runtime may end with it.
    entry previous;
    const std::lock_guard lock{resources.mutex};
    auto& current = resources.current;
    const auto* const key = &detail::device_state::of(home);
    if (!next) {
      if (const auto known = current.find(key); known != current.end()) {
        previous = std::move(known->second);
        current.erase(known);
      }
      return previous.memory;
    }
    entry& entered = current[key];
    previous = std::exchange(entered, entry{std::move(next), detail::device_state::keep(home)});
    return previous.memory;
  });
}

resource_scope::resource_scope(any_resource memory) noexcept
    : memory_{std::move(memory)}, enclosing_{innermost_scope} {
  innermost_scope = this;
}

resource_scope::~resource_scope() { innermost_scope = enclosing_; }

}}  // namespace weir::v0
