// SPDX-License-Identifier: Apache-2.0
// The resource that a device's memory comes from where nobody names one.
#pragma once

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// The resource of this thread for the device: that of its innermost resource_scope for the device,
/// else the one that was set, else a caching_allocator with default options, created by the first
/// call and kept.
///
/// Any thread. Costs a lock for reading and a shared_ptr: call it once, not for each allocation.
/// The current resource keeps its runtime alive until it is replaced; at the end of the process
/// nothing is torn down.
[[nodiscard]] WEIR_API result<any_resource> current_resource(weir::device device);

/// Makes `memory` the current resource of the device for all threads and returns the one before,
/// empty if that was the default and never used. An empty `memory` brings the default back, as a
/// new allocator. Memory is not affected: what the old one handed out must be freed with it.
///
/// invalid_argument: `memory` is a resource of another device.
WEIR_API result<any_resource> set_current_resource(weir::device device, any_resource memory);

/// Makes `memory` this thread's current resource of its device until the end of the scope; scopes
/// nest. An empty one changes nothing. Stays on the thread and in the block that created it.
class WEIR_API resource_scope {
 public:
  [[nodiscard]] explicit resource_scope(any_resource memory) noexcept;
  ~resource_scope();
  resource_scope(const resource_scope&) = delete;
  resource_scope& operator=(const resource_scope&) = delete;

 private:
  friend WEIR_API result<any_resource> current_resource(weir::device device);

  any_resource memory_;
  resource_scope* enclosing_;
};

}}  // namespace weir::v0
