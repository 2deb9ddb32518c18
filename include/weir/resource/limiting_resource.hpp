// SPDX-License-Identifier: Apache-2.0
// An adaptor that lets no more than so many bytes be allocated at a time.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// A budget over another resource.
///
/// Always: the requested sizes of live memory sum up to at most the limit. A request is checked and
/// takes its share of the budget in one step, so two threads cannot pass together where only one
/// fits; a request that is refused, here or by the upstream, or that ends with an exception, leaves
/// the budget as it was. Requested sizes are counted; the upstream may round.
///
/// A request that has no room only because of others that the upstream is still asked for waits for
/// these, for 10 s at most, so that they make it fail only if they are met. It does not wait for
/// requests of its own thread, nor for those whose retry_resource is calling its callback.
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs two short locks and a
/// look-up under a third. Bad input: as said in resources.hpp.
class WEIR_API limiting_resource {
 public:
  /// invalid_argument: the upstream is empty.
  [[nodiscard]] static result<limiting_resource> create(any_resource upstream, bytes limit);
  limiting_resource(const limiting_resource&) = default;
  limiting_resource& operator=(const limiting_resource&) = default;

  /// out_of_memory: the budget has no room; the upstream was not called. Zero bytes are null.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The requested sizes of live memory.
  [[nodiscard]] bytes used() const noexcept;
  [[nodiscard]] bytes limit() const noexcept;
  /// For requests from now on; memory beyond it stays until it is freed.
  void set_limit(bytes limit) const noexcept;

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
  [[nodiscard]] memory_kind kind() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const limiting_resource&, const limiting_resource&) noexcept = default;

 private:
  struct state;
  explicit limiting_resource(std::shared_ptr<state> shared) noexcept : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

static_assert(stream_resource<limiting_resource>);

}}  // namespace weir::v0
