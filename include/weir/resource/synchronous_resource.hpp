// SPDX-License-Identifier: Apache-2.0
// synchronous_resource: a resource without stream order on top of one with stream order.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// A resource for callers without a stream: the host and every stream may use the memory at once,
/// and nothing may use it when it is freed. pmr_resource and cuda_resource are built on it.
///
/// Requests go to the upstream on a private stream, and the call waits for that stream, which costs
/// about a microsecond more. A shared handle, never empty; keeps the upstream alive. Equal if the
/// upstreams are equal: then memory of one can be freed with the other. Thread-safe. Bad input: as
/// for the upstream.
class WEIR_API synchronous_resource {
 public:
  /// An adaptor of `upstream`. invalid_argument: the upstream is empty.
  [[nodiscard]] static result<synchronous_resource> create(any_resource upstream);
  synchronous_resource(const synchronous_resource&) = default;
  synchronous_resource& operator=(const synchronous_resource&) = default;

  /// Memory that may be used at once. The first form throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, bytes alignment = default_alignment) const {
    return try_allocate(size, alignment).value();
  }
  [[nodiscard]] result<void*> try_allocate(bytes size, bytes alignment = default_alignment) const;
  /// Frees memory that nothing uses any more. A failure of the first form goes to the error
  /// handler.
  void deallocate(void* pointer, bytes size) const noexcept;
  result<void> try_deallocate(void* pointer, bytes size) const;

  /// The resource that requests go to.
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
