// SPDX-License-Identifier: Apache-2.0
// Any resource: the calls that need no template.
#include "weir/resource/resource.hpp"

#include "pools/guarded.hpp"
#include "pools/memory_home.hpp"

namespace weir { inline namespace v0 {

result<void*> any_resource::try_allocate(bytes size, const stream_ref& stream,
                                         bytes alignment) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->try_allocate(size, stream, alignment);
}

void any_resource::deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept {
  const auto freed = pools::freed_surely([&] { return try_deallocate(pointer, size, stream); });
  pools::report_failed_free(freed, pointer, size);
}

result<void> any_resource::try_deallocate(void* pointer, bytes size,
                                          const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->try_deallocate(pointer, size, stream);
}

result<void> any_resource::record_stream(void* pointer, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->record_stream(pointer, stream);
}

}}  // namespace weir::v0
