// SPDX-License-Identifier: Apache-2.0
// weir::pinned_pool: pinned host memory, cached for reuse.
//
//   auto memory = weir::pinned_pool::create(gpu).value();
//   void* p = memory.allocate(64_MiB, stream);   // the host may write at once
//   weir::copy_bytes(on_device.data(), p, 64_MiB, stream).value();
//   memory.deallocate(p, 64_MiB, stream);        // the copy may still be running
#pragma once

#include <memory>
#include <utility>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/pool/block_pool.hpp"
#include "weir/pool/memory_kind.hpp"

namespace weir { inline namespace v0 {

/// A pool of pinned host memory that all devices can access. It avoids the high cost of pinning.
///
/// A block_pool with one difference: the host uses this memory without stream order. So a block is
/// reused only when all work queued before its free is complete, also on the stream of the free. No
/// work uses what allocate() returns, and the host may write it at once. Every call takes streams
/// of all devices of the runtime.
class WEIR_API pinned_pool : public block_pool {
 public:
  /// The kind of the memory, for any_resource.
  static constexpr memory_kind kind = memory_kind::pinned;

  /// A pool of the device's runtime.
  [[nodiscard]] static result<pinned_pool> create(weir::device device,
                                                  block_pool_options options = {});

 private:
  explicit pinned_pool(std::shared_ptr<pools::block_cache> state) noexcept
      : block_pool{std::move(state)} {}
};

}}  // namespace weir::v0
