// SPDX-License-Identifier: Apache-2.0
// Managed memory: the one driver call that differs from plain memory.
#include "weir/resource/managed_resource.hpp"

#include "pools/guarded.hpp"
#include "resources/driver_memory.hpp"

namespace weir { inline namespace v0 {
namespace {

result<device_address> allocate_managed(const context_scope& bound, bytes size) {
  device_address address = 0;
  WEIR_TRY(driver::check(
      driver::call::mem_alloc_managed,
      bound.driver().mem_alloc_managed(&address, size.count(), driver::CU_MEM_ATTACH_GLOBAL),
      size));
  return address;
}

}  // namespace

result<managed_resource> managed_resource::create(weir::device home) {
  if (!home.capabilities().managed_memory) return errc::not_supported;
  return pools::guarded([&]() -> result<managed_resource> {
    return managed_resource{std::make_shared<resources::driver_memory>(home, &allocate_managed)};
  });
}

result<void*> managed_resource::try_allocate(bytes size, const stream_ref& stream,
                                             bytes alignment) const {
  return pools::guarded([&] { return state_->allocate(size, stream, alignment); });
}

result<void> managed_resource::try_deallocate(void* pointer, bytes size,
                                              const stream_ref& stream) const {
  return pools::guarded([&] { return state_->deallocate(pointer, size, stream); });
}

result<void> managed_resource::record_stream(void* pointer, const stream_ref& stream) const {
  return pools::guarded([&] { return state_->record_stream(pointer, stream); });
}

weir::device managed_resource::device() const noexcept { return state_->device(); }

bytes managed_resource::in_use() const { return state_->in_use(); }

}}  // namespace weir::v0
