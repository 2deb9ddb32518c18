// SPDX-License-Identifier: Apache-2.0
// The three calls of std::pmr::memory_resource.
#include "weir/resource/pmr_resource.hpp"

#include <algorithm>

#include "resources/adaptor.hpp"

namespace weir { inline namespace v0 {
namespace {

/// The standard library wants an address also for nothing.
bytes size_for(std::size_t size) { return bytes{std::max<std::size_t>(size, 1)}; }

}  // namespace

pmr_resource::~pmr_resource() = default;

result<pmr_resource> pmr_resource::create(any_resource upstream) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (!host_accessible(upstream.kind()))
    return error{
        {.code = errc::invalid_argument,
         .detail = "std::pmr needs memory that the host can access; use pinned or managed memory"}};
  WEIR_TRY_VALUE(memory, synchronous_resource::create(std::move(upstream)));
  return pmr_resource{memory};
}

void* pmr_resource::do_allocate(std::size_t size, std::size_t alignment) {
  return memory_.allocate(size_for(size), bytes{alignment});
}

void pmr_resource::do_deallocate(void* pointer, std::size_t size, std::size_t) {
  memory_.deallocate(pointer, size_for(size));
}

bool pmr_resource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* const same = dynamic_cast<const pmr_resource*>(&other);
  return same != nullptr && same->memory_ == memory_;
}

}}  // namespace weir::v0
