// Plain device memory: the calls, by way of driver_memory.
#include "weir/resource/plain_resource.hpp"

#include "resources/driver_memory.hpp"

namespace weir::inline v0 {

result<plain_resource> plain_resource::create(weir::device where) {
  return plain_resource{std::make_shared<resources::driver_memory>(where, &allocate_plain)};
}

result<void*> plain_resource::try_allocate(bytes size, const stream_ref& stream, bytes alignment) {
  return inside_->allocate(size, stream, alignment);
}

result<void> plain_resource::try_deallocate(void* pointer, bytes size, const stream_ref& stream) {
  return inside_->deallocate(pointer, size, stream);
}

weir::device plain_resource::device() const noexcept { return inside_->device(); }

bytes plain_resource::in_use() const { return inside_->in_use(); }

}  // namespace weir::inline v0
