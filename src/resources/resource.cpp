// Any resource: the calls that need no template.
#include "weir/resource/resource.hpp"

namespace weir::inline v0 {

result<void*> any_resource::try_allocate(bytes size, const stream_ref& stream,
                                         bytes alignment) const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->try_allocate(size, stream, alignment);
}

void any_resource::deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept {
  try {
    if (const auto done = try_deallocate(pointer, size, stream); !done) report_error(done.error());
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
  }
}

result<void> any_resource::try_deallocate(void* pointer, bytes size,
                                          const stream_ref& stream) const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->try_deallocate(pointer, size, stream);
}

}  // namespace weir::inline v0
