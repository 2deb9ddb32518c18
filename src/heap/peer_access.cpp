// SPDX-License-Identifier: Apache-2.0
// Granting peers access, and recording what their streams use.
#include "heap/peer_access.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "order/driver_access.hpp"

namespace weir { inline namespace v0 { namespace heap {

result<void> peer_access::enable(weir::device peer) try {
  WEIR_TRY(core_.usable());
  if (peer == core_.device_)
    return error{{.code = errc::invalid_argument,
                  .detail = "the peer must be another device than the allocator's"}};
  WEIR_TRY_VALUE(reaches, peer.can_access_peer(core_.device_));
  if (!reaches)
    return error{{.code = errc::not_supported,
                  .detail = "the device has no peer access to the allocator's device"}};
  // It may be recorded beside a capture, and cannot be asked then.
  static_cast<void>(stream_ref::legacy(peer).id());
  // Memory of the driver's own is reached by whole contexts.
  if (core_.policy_ == placement_policy::classic) WEIR_TRY(peer.enable_peer_access(core_.device_));
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(residency_.await_moves());  // those have their rights already
  WEIR_TRY(core_.usable());
  const vmm::access right = vmm::access_for(peer);
  const auto is_granted = [&](const vmm::access& each) {
    return each.location.id == right.location.id;
  };
  std::vector<vmm::access>& rights = core_.placement_.rights;
  if (std::any_of(rights.begin(), rights.end(), is_granted)) return {};
  rights.reserve(rights.size() + 1);
  order::driver_access driver{core_.device_};
  WEIR_TRY(driver.entered());
  for (const auto& each : core_.pools_)
    if (each->memory != nullptr) WEIR_TRY(each->memory->grant(right, driver.enter()));
  if (core_.placement_.outside != nullptr)
    WEIR_TRY(core_.placement_.outside->grant(right, driver.enter()));
  rights.push_back(right);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> peer_access::record_stream(void* pointer, const stream_ref& stream) {
  WEIR_TRY_VALUE(use, foreign_uses::describe(stream, core_.device_));
  listening_.add(stream.device());
  bool has_joint_stream = false;
  {
    const detail::mutex_lock lock{core_.mutex_};
    has_joint_stream = core_.foreign_uses_.has_joint_stream();
  }
  WEIR_TRY_VALUE(joint, foreign_uses::make_joint_stream(core_.device_, has_joint_stream));
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  WEIR_TRY_VALUE(index, host_.find_live(pointer));
  const stream_slot slot = core_.foreign_uses_.add(index, use, joint, core_.order_);
  host_.record_use(index, slot, use.stream.known_id());
  return {};
}

}}}  // namespace weir::v0::heap
