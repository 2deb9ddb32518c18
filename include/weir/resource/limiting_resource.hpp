// SPDX-License-Identifier: Apache-2.0
// limiting_resource: an adaptor that limits the live memory.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// A limit on the live memory of another resource.
///
/// Always: the sum of the requested sizes of live memory is at most the limit. A request is checked
/// and reserves its share in one step, so two threads cannot both succeed if only one fits. A
/// request that fails, here or in the upstream, or that ends with an exception, leaves the sum
/// unchanged. Requested sizes are counted; the upstream may round them.
///
/// If a request does not fit only because of requests that the upstream is still serving, it waits
/// for these, for at most 10 s, and fails only if they succeed. It does not wait for requests of
/// its own thread, nor for those whose retry_resource is calling its callback.
///
/// A shared handle, never empty; keeps the upstream alive. Thread-safe. Costs two short locks and a
/// look-up under a third. Bad input: see resources.hpp.
class WEIR_API limiting_resource {
 public:
  /// An adaptor of `upstream`. invalid_argument: the upstream is empty.
  [[nodiscard]] static result<limiting_resource> create(any_resource upstream, bytes limit);
  limiting_resource(const limiting_resource&) = default;
  limiting_resource& operator=(const limiting_resource&) = default;

  /// Allocates in the order of `stream`. out_of_memory: the limit would be exceeded; the upstream
  /// was not called. Zero bytes are null.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The sum of the requested sizes of live memory.
  [[nodiscard]] bytes used() const noexcept;
  /// The most that used() can become.
  [[nodiscard]] bytes limit() const noexcept;
  /// Changes the limit for requests from now on; memory above it stays until it is freed.
  void set_limit(bytes limit) const noexcept;

  /// The resource that requests go to.
  [[nodiscard]] any_resource upstream() const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const;
  /// The kind of the memory: that of the upstream.
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
