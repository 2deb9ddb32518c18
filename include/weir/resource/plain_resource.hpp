// SPDX-License-Identifier: Apache-2.0
// Plain device memory as a resource: one cuMemAlloc and one cuMemFree for each request.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

namespace resources {
class driver_memory;
}

/// Memory of one device, straight from the driver: nothing is cached, nothing is shared.
///
/// For comparison, for single large buffers, and under adaptors in tests. A shared handle, never
/// empty; equal handles share their memory. Memory that is live when the last handle goes is freed
/// and reported to the error handler (still_live). Any thread.
///
/// **Cost.** An allocation is a driver call of 65–550 µs. A free waits for the stream, and then for
/// whatever else cuMemFree waits for.
///
/// **Captures.** Memory can be allocated while a stream is captured, and belongs to nobody's graph:
/// it must outlive the graphs that use it. Freeing it on a captured stream is capture_forbidden.
///
/// **Bad input.** bad_alignment: no power of two, or above 256 (aligned_resource.hpp helps);
/// size_overflow; bad_stream: of another device; foreign_pointer and double_free;
/// invalid_argument: freed with a wrong size, which frees it all the same.
class WEIR_API plain_resource {
 public:
  [[nodiscard]] static result<plain_resource> create(weir::device device);
  plain_resource(const plain_resource&) = default;
  plain_resource& operator=(const plain_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  [[nodiscard]] weir::device device() const noexcept;
  /// The requested sizes of live memory, summed up.
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
