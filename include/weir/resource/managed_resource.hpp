// SPDX-License-Identifier: Apache-2.0
// managed_resource: managed memory; one cuMemAllocManaged and one cuMemFree for each request.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

namespace resources {
class driver_memory;
}

/// A resource of memory that migrates between the host and the devices on demand. The host may use
/// it at any time if the device has concurrent_managed_access, otherwise only while no work runs.
///
/// The driver has no stream-ordered free for managed memory: a free here waits for the work queued
/// on the stream, on the calling thread. Everything else is as for plain_resource, including
/// captures and bad input.
class WEIR_API managed_resource {
 public:
  /// The kind of the memory, for any_resource.
  static constexpr memory_kind kind = memory_kind::managed;

  /// A resource for the device. not_supported: the device has no managed memory.
  [[nodiscard]] static result<managed_resource> create(weir::device device);
  managed_resource(const managed_resource&) = default;
  managed_resource& operator=(const managed_resource&) = default;

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
  friend bool operator==(const managed_resource&, const managed_resource&) noexcept = default;

 private:
  explicit managed_resource(std::shared_ptr<resources::driver_memory> shared) noexcept
      : state_{std::move(shared)} {}

  std::shared_ptr<resources::driver_memory> state_;
};

static_assert(stream_resource<managed_resource>);

}}  // namespace weir::v0
