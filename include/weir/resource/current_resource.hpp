// SPDX-License-Identifier: Apache-2.0
// The current resource of each device: the default for code that is given no resource.
#pragma once

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 {

/// The current resource of this thread for the device: that of its innermost resource_scope for the
/// device, else the one that was set, else a caching_allocator with default options, created by the
/// first call and kept.
///
/// Thread-safe. Costs a shared lock and a copy of a shared_ptr: call it once, not for each
/// allocation. The current resource keeps its runtime alive until it is replaced; it is not
/// destroyed at the end of the process.
[[nodiscard]] WEIR_API result<any_resource> current_resource(weir::device device);

/// Makes `memory` the current resource of the device for all threads and returns the previous one,
/// empty if that was the default and was never used. An empty `memory` restores the default, as a
/// new allocator. Existing memory is not affected: free it with the resource that it came from.
///
/// invalid_argument: `memory` is a resource of another device.
WEIR_API result<any_resource> set_current_resource(weir::device device, any_resource memory);

/// Makes `memory` this thread's current resource of its device until the end of the scope. Scopes
/// nest. An empty resource has no effect. Must end on the thread and in the block that created it.
class WEIR_API resource_scope {
 public:
  /// `memory` is this thread's current resource from here on.
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
