// SPDX-License-Identifier: Apache-2.0
// Requests without a stream: on one of the resource's own, waited for.
#include "weir/resource/synchronous_resource.hpp"

#include "device/finished_work.hpp"
#include "pools/guarded.hpp"
#include "resources/adaptor.hpp"

namespace weir { inline namespace v0 {

struct synchronous_resource::state {
  any_resource upstream;
  stream own;
};

result<synchronous_resource> synchronous_resource::create(any_resource upstream) {
  WEIR_TRY(resources::check_upstream(upstream));
  WEIR_TRY_VALUE(own, stream::create(upstream.device()));
  return pools::guarded([&]() -> result<synchronous_resource> {
    return synchronous_resource{
        std::shared_ptr<state>{new state{std::move(upstream), std::move(own)}}};
  });
}

result<void*> synchronous_resource::try_allocate(bytes size, bytes alignment) const {
  const stream_ref own = state_->own.ref();
  WEIR_TRY_VALUE(pointer, state_->upstream.try_allocate(size, own, alignment));
  if (pointer == nullptr) return nullptr;
  // The memory may come with a wait for other work, queued on `own` alone.
  const context_scope bound{own.device()};
  if (auto waited = detail::wait_for_work(own, bound); !waited) {
    state_->upstream.deallocate(pointer, size, own);
    return std::move(waited).error();
  }
  return pointer;
}

void synchronous_resource::deallocate(void* pointer, bytes size) const noexcept {
  state_->upstream.deallocate(pointer, size, state_->own.ref());
}

result<void> synchronous_resource::try_deallocate(void* pointer, bytes size) const {
  return state_->upstream.try_deallocate(pointer, size, state_->own.ref());
}

const any_resource& synchronous_resource::upstream() const noexcept { return state_->upstream; }

bool operator==(const synchronous_resource& a, const synchronous_resource& b) noexcept {
  return a.state_->upstream == b.state_->upstream;
}

}}  // namespace weir::v0
