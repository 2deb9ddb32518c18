// SPDX-License-Identifier: Apache-2.0
// The driver's part of suspending and resuming a store.
#include "placement/suspension.hpp"

#include <utility>

#include "device/state.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

result<void> map_place(suspended_place& place, std::span<const vmm::access> rights,
                       const context_scope& bound) {
  WEIR_TRY(vmm::map(bound, place.address, place.memory));
  place.mapped = true;
  auto granted = vmm::set_access(bound, place.address, place.size, rights);
  if (granted) return {};
  auto undone = vmm::unmap(bound, place.address, place.size);
  place.mapped = !undone;
  detail::report_failure(undone);
  return granted;
}

}  // namespace

bytes suspension::size() const noexcept {
  bytes total{};
  for (const suspended_place& each : places) total += each.size;
  return total;
}

bytes suspension::missing() const noexcept {
  bytes total{};
  for (const suspended_place& each : places)
    if (!each.has_memory()) total += each.size;
  return total;
}

result<void> unmap_places(suspension& plan, std::span<const vmm::access> rights,
                          const context_scope& bound) noexcept {
  // What moves left behind is never needed again, whatever comes of the rest.
  for (left_mapping& each : plan.left) {
    if (!each.mapped) continue;
    WEIR_TRY(vmm::unmap(bound, each.address, each.size));
    each.mapped = false;
  }
  for (suspended_place& each : plan.places) {
    if (!each.mapped) continue;
    auto gone = vmm::unmap(bound, each.address, each.size);
    if (gone) {
      each.mapped = false;
      continue;
    }
    static_cast<void>(map_places(plan, rights, bound));
    return gone;
  }
  return {};
}

bool map_places(suspension& plan, std::span<const vmm::access> rights,
                const context_scope& bound) noexcept {
  bool all = true;
  for (suspended_place& each : plan.places) {
    if (each.mapped || !each.has_memory()) continue;
    const auto mapped = map_place(each, rights, bound);
    detail::report_failure(mapped);
    all = all && mapped;
  }
  return all;
}

result<void> release_places(suspension& plan, const context_scope& bound) noexcept {
  result<void> failed;
  for (int attempt = 0; attempt < 2; ++attempt) {
    failed = {};
    for (suspended_place& each : plan.places) {
      if (each.mapped || !each.has_memory()) continue;
      auto released = vmm::release(bound, each.memory);
      if (released) {
        each.memory = {};
      } else if (failed) {
        failed = std::move(released);
      }
    }
    if (failed) return {};
  }
  return failed;
}

void empty_places(suspension& plan, const context_scope& bound) noexcept {
  for (suspended_place& each : plan.places) {
    if (!each.mapped) continue;
    const auto gone = vmm::unmap(bound, each.address, each.size);
    each.mapped = !gone;
    detail::report_failure(gone);
  }
}

result<void> fill_place(suspended_place& place, physical_properties properties,
                        std::span<const vmm::access> rights, const context_scope& bound) {
  if (place.mapped) return {};
  const bool fresh = !place.has_memory();
  if (fresh) {
    WEIR_TRY_VALUE(created, vmm::create(bound, place.size, properties));
    place.memory = created;
  }
  auto mapped = map_place(place, rights, bound);
  if (mapped) return {};
  if (fresh && !place.mapped) {
    auto released = vmm::release(bound, place.memory);
    if (released) place.memory = {};
    detail::report_failure(released);
  }
  return mapped;
}

}}}  // namespace weir::v0::placement
