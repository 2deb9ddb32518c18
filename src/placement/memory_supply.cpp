// SPDX-License-Identifier: Apache-2.0
// Asking the driver for what it has, and trying what it does not report.
#include "placement/memory_supply.hpp"

#include <algorithm>

#include "device/state.hpp"
#include "device/surely.hpp"
#include "placement/backing_store.hpp"

namespace weir { inline namespace v0 { namespace placement {

result<bool> memory_supply::can_give(std::uint64_t needed, const physical_properties& properties,
                                     const context_scope& bound) {
  if (cannot_give(needed)) return false;
  if (!free_) {
    WEIR_TRY_VALUE(info, device_.memory_info());
    free_ = info.free.count();
  }
  if (needed <= *free_) return true;
  auto tried = vmm::create(bound, bytes{needed}, properties);
  if (tried) {
    detail::report_failure(vmm::release_surely(bound, *tried));
    free_ = needed;
    return true;
  }
  if (tried.code() != errc::out_of_memory) return std::move(tried).error();
  refused_ = needed;
  return false;
}

void memory_supply::created(std::uint64_t size) noexcept {
  held_ += size;
  if (free_) *free_ -= std::min(*free_, size);
}

void memory_supply::released(std::uint64_t size) noexcept {
  held_ -= std::min(held_, size);
  forget();
}

}}}  // namespace weir::v0::placement
