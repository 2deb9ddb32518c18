// One register of views for the process, by runtime.
#include "buffers/exclusive_devices.hpp"

#include <algorithm>
#include <vector>

#include "base/mutex.hpp"
#include "pools/per_process.hpp"
#include "weir/device/runtime.hpp"

namespace weir { inline namespace v0 { namespace buffers {

namespace {

struct view_register {
  detail::mutex mutex;
  std::vector<const runtime*> viewed WEIR_GUARDED_BY(mutex);  // once for each view
};

view_register& all_views() {
  static constinit pools::per_process<view_register> views;
  return views.get();
}

/// Calls it with each device without concurrent managed access; true as soon as that is.
template <class Call>
bool any_exclusive(const detail::device_state& of, const Call& call) {
  for (int number = 0; number < of.owner->device_count(); ++number) {
    const auto device = of.owner->device(device_id{number});
    if (!device || device->capabilities().concurrent_managed_access) continue;
    if (call(*device)) return true;
  }
  return false;
}

}  // namespace

bool has_exclusive_device(const detail::device_state& of) {
  return any_exclusive(of, [](weir::device) { return true; });
}

void add_exclusive_devices(const detail::device_state& of, awaited_work& work) {
  any_exclusive(of, [&](weir::device each) {
    const auto& state = detail::device_state::of(each);
    if (state.context.load(std::memory_order_acquire) != nullptr) work.add(each);
    return false;
  });
}

void begin_exclusive_view(const detail::device_state& of) {
  view_register& views = all_views();
  const detail::mutex_lock lock{views.mutex};
  views.viewed.push_back(of.owner);
}

void end_exclusive_view(const detail::device_state& of) noexcept {
  view_register& views = all_views();  // there since the view began
  const detail::mutex_lock lock{views.mutex};
  const auto position = std::find(views.viewed.begin(), views.viewed.end(), of.owner);
  if (position != views.viewed.end()) views.viewed.erase(position);
}

bool any_exclusive_view(const detail::device_state& of) {
  view_register& views = all_views();
  const detail::mutex_lock lock{views.mutex};
  return std::find(views.viewed.begin(), views.viewed.end(), of.owner) != views.viewed.end();
}

}}}  // namespace weir::v0::buffers
