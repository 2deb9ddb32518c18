// SPDX-License-Identifier: Apache-2.0
// retry_resource: an adaptor that calls a callback and retries when its upstream is out of memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Called when the upstream is out of memory for a request of `needed` bytes; `attempt` counts
/// from 1. Returns whether to try again. Called without locks, on the thread that allocates. It may
/// use the resource; its own requests do not call it again. Its exceptions reach the caller of the
/// request.
using shortage_callback = std::function<bool(bytes needed, unsigned attempt)>;

/// Passes requests to the upstream. After out_of_memory it calls the callback and tries again while
/// that returns true, at most `most_retries` times. Every retry is a complete request: limits of
/// upstream adaptors are checked again.
///
/// A shared handle, never empty; keeps the upstream alive. Thread-safe. Costs one call. Bad input:
/// as for the upstream.
class WEIR_API retry_resource {
 public:
  /// How often a request is tried again by default.
  static constexpr unsigned default_retries = 8;

  /// An adaptor of `upstream`. invalid_argument: the upstream or the callback is empty.
  [[nodiscard]] static result<retry_resource> create(any_resource upstream,
                                                     shortage_callback callback,
                                                     unsigned most_retries = default_retries);
  retry_resource(const retry_resource&) = default;
  retry_resource& operator=(const retry_resource&) = default;

  /// Allocates in the order of `stream`. If all retries fail, the upstream's last error.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// How many requests succeeded by a retry since creation or the last reset_counters().
  [[nodiscard]] std::uint64_t recoveries() const noexcept;
  /// Sets recoveries() to 0.
  void reset_counters() const noexcept;
  /// The resource that requests go to.
  [[nodiscard]] any_resource upstream() const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const;
  /// The kind of the memory: that of the upstream.
  [[nodiscard]] memory_kind kind() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const retry_resource&, const retry_resource&) noexcept = default;

 private:
  struct state;
  explicit retry_resource(std::shared_ptr<state> shared) noexcept : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

static_assert(stream_resource<retry_resource>);

}}  // namespace weir::v0
