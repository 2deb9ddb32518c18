// SPDX-License-Identifier: Apache-2.0
// An adaptor that turns to a second resource where the first has no room.
#pragma once

#include <cstdint>
#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// Memory of `primary`, and of `alternate` for requests that primary refuses with out_of_memory,
/// whatever limit is in the way. Every other error of primary is the caller's. Each block is freed
/// with the one it came from.
///
/// A shared handle, never empty; keeps both alive. Any thread. Costs a look-up under a lock of its
/// own. Bad input: as said in resources.hpp.
class WEIR_API fallback_resource {
 public:
  /// invalid_argument: one is empty, or they are for different devices.
  [[nodiscard]] static result<fallback_resource> create(any_resource primary,
                                                        any_resource alternate);
  fallback_resource(const fallback_resource&) = default;
  fallback_resource& operator=(const fallback_resource&) = default;

  /// The alternate's error if both have no room.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// Requests that the alternate has met, since the creation or the last reset_counters().
  [[nodiscard]] std::uint64_t fallbacks() const noexcept;
  void reset_counters() const noexcept;
  [[nodiscard]] any_resource primary() const;
  [[nodiscard]] any_resource alternate() const;
  [[nodiscard]] weir::device device() const;
  /// That of both; device where they differ, because the host may not touch every block.
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
