// SPDX-License-Identifier: Apache-2.0
// Plain device memory: the calls, by way of driver_memory.
#include "weir/resource/plain_resource.hpp"

#include "pools/guarded.hpp"
#include "resources/driver_memory.hpp"

namespace weir { inline namespace v0 {

result<plain_resource> plain_resource::create(weir::device home) {
  return pools::guarded([&]() -> result<plain_resource> {
    return plain_resource{std::make_shared<resources::driver_memory>(home, &allocate_plain)};
  });
}

result<void*> plain_resource::try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment) const {
  return pools::guarded([&] { return state_->allocate(size, stream, alignment); });
}

result<void> plain_resource::try_deallocate(void* pointer, bytes size,
                                            const stream_ref& stream) const {
  return pools::guarded([&] { return state_->deallocate(pointer, size, stream); });
}

result<void> plain_resource::record_stream(void* pointer, const stream_ref& stream) const {
  return pools::guarded([&] { return state_->record_stream(pointer, stream); });
}

weir::device plain_resource::device() const noexcept { return state_->device(); }

bytes plain_resource::in_use() const { return state_->in_use(); }

}}  // namespace weir::v0
