// SPDX-License-Identifier: Apache-2.0
// fallback_resource: an adaptor that uses a second resource when the first is out of memory.
#pragma once

#include <cstdint>
#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Allocates from `primary`, and from `alternate` if primary returns out_of_memory. Every other
/// error of primary is returned to the caller. Each block is freed with the resource it came from.
///
/// A shared handle, never empty; keeps both alive. Thread-safe. Costs a look-up under its own lock.
/// Bad input: see resources.hpp.
class WEIR_API fallback_resource {
 public:
  /// An adaptor of both. invalid_argument: one is empty, or they belong to different devices.
  [[nodiscard]] static result<fallback_resource> create(any_resource primary,
                                                        any_resource alternate);
  fallback_resource(const fallback_resource&) = default;
  fallback_resource& operator=(const fallback_resource&) = default;

  /// Allocates in the order of `stream`. If both are out of memory, the alternate's error.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// How many requests the alternate served since creation or the last reset_counters().
  [[nodiscard]] std::uint64_t fallbacks() const noexcept;
  /// Sets fallbacks() to 0.
  void reset_counters() const noexcept;
  /// The resource that is tried first.
  [[nodiscard]] any_resource primary() const;
  /// The resource that is tried when the first is out of memory.
  [[nodiscard]] any_resource alternate() const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const;
  /// The kind of both; memory_kind::device if they differ, because the host cannot access every
  /// block.
  [[nodiscard]] memory_kind kind() const noexcept;
  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const fallback_resource&, const fallback_resource&) noexcept = default;

 private:
  struct state;
  explicit fallback_resource(std::shared_ptr<state> shared) noexcept : state_{std::move(shared)} {}

  std::shared_ptr<state> state_;
};

static_assert(stream_resource<fallback_resource>);

}}  // namespace weir::v0
