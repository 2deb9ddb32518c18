// SPDX-License-Identifier: Apache-2.0
// Managed memory as a resource: one cuMemAllocManaged and one cuMemFree for each request.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

namespace resources {
class driver_memory;
}

/// Memory that moves between the host and the devices on demand. The host may use it, too: at any
/// time where the device has concurrent_managed_access, otherwise only while no work runs.
///
/// The driver knows no stream order for managed memory. Here a free waits for the work that is
/// queued on the stream, and then frees: the order holds, and the calling thread pays for it.
/// Otherwise everything is as with plain_resource, captures and bad input included.
class WEIR_API managed_resource {
 public:
  static constexpr memory_kind kind = memory_kind::managed;

  /// not_supported: the device has no managed memory.
  [[nodiscard]] static result<managed_resource> create(weir::device device);
  managed_resource(const managed_resource&) = default;
  managed_resource& operator=(const managed_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  [[nodiscard]] weir::device device() const noexcept;
  /// The requested sizes of live memory, summed up.
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
