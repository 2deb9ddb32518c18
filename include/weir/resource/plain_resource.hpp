// SPDX-License-Identifier: Apache-2.0
// plain_resource: plain device memory; one cuMemAlloc and one cuMemFree for each request.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

namespace resources {
class driver_memory;
}

/// A resource that takes every allocation from the driver and caches nothing.
///
/// For comparisons, for single large buffers, and under adaptors in tests. A shared handle, never
/// empty; memory of a handle can be freed with every equal one. Memory that is live at the end of
/// the last handle is freed and reported to the error handler (still_live). Thread-safe.
///
/// **Cost.** An allocation is a driver call of 65–550 µs. A free waits for the stream, and then for
/// everything that cuMemFree waits for.
///
/// **Captures.** Memory can be allocated while a stream is being captured, but belongs to no graph:
/// it must outlive the graphs that use it. Freeing it on a captured stream is capture_forbidden.
///
/// **Bad input.** bad_alignment: not a power of two, or above 256 (see aligned_resource.hpp);
/// size_overflow; bad_stream: the stream belongs to another device; foreign_pointer and
/// double_free; invalid_argument: freed with a wrong size, which frees it anyway.
class WEIR_API plain_resource {
 public:
  /// A resource for the device.
  [[nodiscard]] static result<plain_resource> create(weir::device device);
  plain_resource(const plain_resource&) = default;
  plain_resource& operator=(const plain_resource&) = default;

  /// Allocates in the order of `stream`.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees in the order of `stream`, with the size of the request.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  /// Declares that work queued on `stream` until the free may use the memory, too.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  /// The device of the memory.
  [[nodiscard]] weir::device device() const noexcept;
  /// The sum of the requested sizes of live memory.
  [[nodiscard]] bytes in_use() const;

  /// Whether the handle means a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const plain_resource&, const plain_resource&) noexcept = default;

 private:
  explicit plain_resource(std::shared_ptr<resources::driver_memory> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<resources::driver_memory> state_;
};

static_assert(stream_resource<plain_resource>);

}}  // namespace weir::v0
