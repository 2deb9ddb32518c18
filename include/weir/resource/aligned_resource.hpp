// SPDX-License-Identifier: Apache-2.0
// aligned_resource: an adaptor for stricter alignment than its upstream's.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Allocates memory aligned to at least `alignment`, or to the alignment of the request if that is
/// more.
///
/// The request goes to the upstream with that alignment. If the upstream refuses it
/// (bad_alignment), the adaptor requests enough bytes more to contain an aligned address. Zero
/// bytes are null.
///
/// A shared handle, never empty; keeps the upstream alive. Thread-safe. Costs a look-up under its
/// own lock. Bad input: see resources.hpp; bad_alignment: not a power of two; size_overflow: the
/// padded size does not fit.
class WEIR_API aligned_resource {
 public:
  /// An adaptor of `upstream`. bad_alignment: not a power of two; invalid_argument: the upstream is
  /// empty.
  [[nodiscard]] static result<aligned_resource> create(any_resource upstream, bytes alignment);
  aligned_resource(const aligned_resource&) = default;
  aligned_resource& operator=(const aligned_resource&) = default;

  /// Allocates in the order of `stream`.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The least alignment of the memory.
  [[nodiscard]] bytes alignment() const noexcept;
  /// The resource that requests go to.
  [[nodiscard]] any_resource upstream() const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const;
  /// The kind of the memory: that of the upstream.
  [[nodiscard]] memory_kind kind() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const aligned_resource&, const aligned_resource&) noexcept = default;

 private:
  struct state;
  explicit aligned_resource(std::shared_ptr<state> shared) noexcept : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

static_assert(stream_resource<aligned_resource>);

}}  // namespace weir::v0
