// SPDX-License-Identifier: Apache-2.0
// Whether the driver maps memory that network cards can reach.
#include "device/rdma_probe.hpp"

#include <new>

#include "device/state.hpp"
#include "device/surely.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace detail {
namespace {

result<void> map_one_handle(const context_scope& bound) {
  const bytes size = bound.device().capabilities().granularity;
  WEIR_TRY_VALUE(memory, vmm::create(bound, size, {.rdma = true}));
  device_address range = 0;
  bool mapped = false;
  const auto attempt = [&]() -> result<void> {
    WEIR_TRY_VALUE(reserved, vmm::reserve(bound, size));
    range = reserved;
    WEIR_TRY(vmm::map(bound, range, memory));
    mapped = true;
    const vmm::access own = vmm::access_for(bound.device());
    return vmm::set_access(bound, range, size, {&own, 1});
  };
  auto outcome = attempt();
  // Failures below say nothing about the property.
  if (mapped) report_failure(vmm::unmap_surely(bound, range, size));
  if (range != 0) report_failure(vmm::free_surely(bound, range, size));
  report_failure(vmm::release_surely(bound, memory));
  return outcome;
}

}  // namespace

bool maps_with_rdma(const context_scope& bound) noexcept try {
  if (!bound) return false;
  const auto& capabilities = bound.device().capabilities();
  if (!capabilities.virtual_memory || !capabilities.rdma_with_virtual_memory) return false;
  std::atomic<rdma_answer>& known = device_state::of(bound.device()).rdma;
  const rdma_answer before = known.load(std::memory_order_relaxed);
  if (before != rdma_answer::unknown) return before == rdma_answer::yes;
  const thread_capture_mode_guard relaxed{bound.device()};
  const auto outcome = map_one_handle(bound);
  if (!outcome && outcome.code() == errc::out_of_memory) return true;
  known.store(outcome ? rdma_answer::yes : rdma_answer::no, std::memory_order_relaxed);
  return outcome.has_value();
} catch (const std::bad_alloc&) {
  return true;  // no host memory for the error; the next call asks again
}

}}}  // namespace weir::v0::detail
