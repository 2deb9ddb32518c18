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
registry& everybody() {
  static auto* const all = new registry;
  return *all;
}

any_resource find(const detail::device_state& key) {
  registry& all = everybody();
  const std::shared_lock lock{all.mutex};
  const auto found = all.current.find(&key);
  return found != all.current.end() ? found->second.memory : any_resource{};
}

}  // namespace

result<any_resource> current_resource(device of) {
  for (const resource_scope* each = innermost_scope; each != nullptr; each = each->around_)
    if (each->memory_ && each->memory_.device() == of) return each->memory_;
  const detail::device_state& key = detail::device_state::of(of);
  if (any_resource known = find(key)) return known;
  // Made without the lock; whoever comes second takes what the first has put there.
  WEIR_TRY_VALUE(made, caching_allocator::create(of));
  registry& all = everybody();
  const std::lock_guard lock{all.mutex};
  const auto [at, first] =
      all.current.try_emplace(&key, entry{std::move(made), detail::device_state::keep(of)});
  return at->second.memory;
}

result<any_resource> set_current_resource(device of, any_resource next) {
  if (next && next.device() != of)
    return error{.code = errc::invalid_argument, .detail = "a resource of another device"};
  registry& all = everybody();
  // Goes last, and without the lock: the runtime may end with it.
  entry before;
  const std::lock_guard lock{all.mutex};
  const auto at = all.current.find(&detail::device_state::of(of));
  if (at != all.current.end()) {
    before = std::move(at->second);
    all.current.erase(at);
  }
  if (next)
    all.current.emplace(&detail::device_state::of(of),
                        entry{std::move(next), detail::device_state::keep(of)});
  return before.memory;
}

resource_scope::resource_scope(any_resource memory) noexcept
    : memory_{std::move(memory)}, around_{innermost_scope} {
  innermost_scope = this;
}

resource_scope::~resource_scope() { innermost_scope = around_; }

}  // namespace weir::inline v0
