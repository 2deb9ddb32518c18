// SPDX-License-Identifier: Apache-2.0
// Memory outside of any stream's order, from a resource that has one.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// For callers that have no stream: memory may be used by the host and by every stream at once, and
/// must not be in use any more when it is freed. pmr_resource and cuda_resource are built on it.
///
/// Requests go to the upstream on a stream of this object's own, which is waited for; that costs
/// about a microsecond beside the request. A shared handle, never empty; keeps the upstream alive.
/// Equal if the upstreams are: then memory of one may be freed with the other. Any thread. Bad
/// input: as the upstream says.
class WEIR_API synchronous_resource {
 public:
  /// invalid_argument: the upstream is empty.
  [[nodiscard]] static result<synchronous_resource> create(any_resource upstream);
  synchronous_resource(const synchronous_resource&) = default;
  synchronous_resource& operator=(const synchronous_resource&) = default;

  /// Throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, bytes alignment = default_alignment) const {
    return try_allocate(size, alignment).value();
  }
  [[nodiscard]] result<void*> try_allocate(bytes size, bytes alignment = default_alignment) const;
  /// A failure goes to the error handler.
  void deallocate(void* pointer, bytes size) const noexcept;
  result<void> try_deallocate(void* pointer, bytes size) const;

  [[nodiscard]] const any_resource& upstream() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend WEIR_API bool operator==(const synchronous_resource& a,
                                  const synchronous_resource& b) noexcept;

 private:
  struct state;
  explicit synchronous_resource(std::shared_ptr<state> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

}}  // namespace weir::v0
