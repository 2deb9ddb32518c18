// SPDX-License-Identifier: Apache-2.0
// An adaptor that calls the user to free memory before a request fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Called when the upstream has no room for `needed` bytes; `attempt` counts from 1. Returns
/// whether to try again. Called without locks, on the thread that allocates; it may use the
/// resource, but its own requests do not call it again. Its exceptions reach the caller that
/// allocates.
using shortage_callback = std::function<bool(bytes needed, unsigned attempt)>;

/// Passes requests on; where the upstream answers out_of_memory, calls the callback
/// and tries again as long as that returns true, `most_retries` times at most. Every retry
/// is a whole request: limits below are checked anew.
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs nothing beside the
/// call. Bad input: as the upstream says.
class WEIR_API retry_resource {
 public:
  static constexpr unsigned default_retries = 8;

  /// invalid_argument: the upstream or the callback is empty.
  [[nodiscard]] static result<retry_resource> create(any_resource upstream,
                                                     shortage_callback callback,
                                                     unsigned most_retries = default_retries);
  retry_resource(const retry_resource&) = default;
  retry_resource& operator=(const retry_resource&) = default;

  /// The upstream's last error.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// Requests that failed at first and succeeded by a retry, since the creation or the last
  /// reset_counters().
  [[nodiscard]] std::uint64_t recoveries() const noexcept;
  void reset_counters() const noexcept;
  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
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
