// Requests without a stream: on one of our own, waited for.
#include "weir/resource/synchronous_resource.hpp"

#include "resources/adaptor.hpp"

namespace weir::inline v0 {

struct synchronous_resource::state {
  any_resource upstream;
  stream own;
};

result<synchronous_resource> synchronous_resource::create(any_resource upstream) {
  WEIR_TRY(resources::check_upstream(upstream));
  WEIR_TRY_VALUE(own, stream::create(upstream.device()));
  return synchronous_resource{
      std::shared_ptr<state>{new state{std::move(upstream), std::move(own)}}};
}

result<void*> synchronous_resource::try_allocate(bytes size, bytes alignment) const {
  const stream_ref own = inside_->own.ref();
  WEIR_TRY_VALUE(made, inside_->upstream.try_allocate(size, own, alignment));
  if (made == nullptr) return nullptr;
  // The memory may come with a wait for somebody else's work; nobody else would see that wait.
  if (auto rested = own.synchronize(); !rested) {
    inside_->upstream.deallocate(made, size, own);
    return std::move(rested).error();
  }
  return made;
}

void synchronous_resource::deallocate(void* pointer, bytes size) const noexcept {
  inside_->upstream.deallocate(pointer, size, inside_->own.ref());
}

result<void> synchronous_resource::try_deallocate(void* pointer, bytes size) const {
  return inside_->upstream.try_deallocate(pointer, size, inside_->own.ref());
}

const any_resource& synchronous_resource::upstream() const noexcept { return inside_->upstream; }

bool operator==(const synchronous_resource& a, const synchronous_resource& b) noexcept {
  return a.inside_->upstream == b.inside_->upstream;
}

}  // namespace weir::inline v0
