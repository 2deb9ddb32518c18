// Any resource: the calls that need no template.
#include "weir/resource/resource.hpp"

#include "base/host_memory.hpp"

namespace weir::inline v0 {

result<void*> any_resource::try_allocate(bytes size, const stream_ref& stream,
                                         bytes alignment) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->try_allocate(size, stream, alignment);
}

void any_resource::deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept {
  try {
    if (const auto freed = try_deallocate(pointer, size, stream); !freed)
      report_error(freed.error());
  } catch (const std::bad_alloc&) {
    report_error(detail::no_host_memory());
  }
}

result<void> any_resource::try_deallocate(void* pointer, bytes size,
                                          const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->try_deallocate(pointer, size, stream);
}

}  // namespace weir::inline v0
