// SPDX-License-Identifier: Apache-2.0
// One register of views for the process, by runtime.
#include "buffers/exclusive_devices.hpp"

#include <algorithm>
#include <vector>

#include "base/mutex.hpp"
#include "device/per_process.hpp"
#include "weir/device/runtime.hpp"

namespace weir { inline namespace v0 { namespace buffers {

namespace {

struct exclusive_view {
  const runtime* of = nullptr;
  idle_part part{};
  friend bool operator==(const exclusive_view&, const exclusive_view&) = default;
};

struct view_register {
  detail::mutex mutex;
  std::vector<exclusive_view> viewed WEIR_GUARDED_BY(mutex);  // once for each view
};

view_register& all_views() {
  static constinit detail::per_process<view_register> views;
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

void add_exclusive_devices(const detail::device_state& of, pools::awaited_work& work) {
  any_exclusive(of, [&](weir::device each) {
    const auto& state = detail::device_state::of(each);
    if (state.context.load(std::memory_order_acquire) != nullptr) work.add(each);
    return false;
  });
}

void begin_exclusive_view(const detail::device_state& of, const idle_part& part) {
  view_register& views = all_views();
  const detail::mutex_lock lock{views.mutex};
  views.viewed.push_back({of.owner, part});
}

void end_exclusive_view(const detail::device_state& of, const idle_part& part) noexcept {
  view_register& views = all_views();  // there since the view began
  const detail::mutex_lock lock{views.mutex};
  const auto position =
      std::find(views.viewed.begin(), views.viewed.end(), exclusive_view{of.owner, part});
  if (position != views.viewed.end()) views.viewed.erase(position);
}

bool any_exclusive_view(const detail::device_state& of, const stream_ref& stream) {
  view_register& views = all_views();
  const detail::mutex_lock lock{views.mutex};
  return std::any_of(views.viewed.begin(), views.viewed.end(), [&](const exclusive_view& each) {
    return each.of == of.owner && (!each.part.stream || *each.part.stream == stream);
  });
}

}}}  // namespace weir::v0::buffers
