// SPDX-License-Identifier: Apache-2.0
// An adaptor that aligns more strictly than its upstream.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Hands out memory aligned to at least `alignment`, or to what a request asks for if that is more.
///
/// The request goes to the upstream with that alignment; where the upstream refuses it
/// (bad_alignment), with as many bytes more as make room for an aligned address. The upstream frees
/// exactly what it handed out. Zero bytes are null.
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs a look-up under a lock
/// of its own. Bad input: as said in resources.hpp; bad_alignment only for no power of two, and
/// size_overflow where the padded size is no size.
class WEIR_API aligned_resource {
 public:
  /// bad_alignment: no power of two; invalid_argument: the upstream is empty.
  [[nodiscard]] static result<aligned_resource> create(any_resource upstream, bytes alignment);
  aligned_resource(const aligned_resource&) = default;
  aligned_resource& operator=(const aligned_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  [[nodiscard]] bytes alignment() const noexcept;
  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
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
