// SPDX-License-Identifier: Apache-2.0
// weir::pinned_pool: pinned host memory, cached for reuse.
//
//   auto memory = weir::pinned_pool::create(gpu).value();
//   void* p = memory.allocate(64_MiB, stream);   // the host may write at once
//   weir::copy_bytes(on_device.data(), p, 64_MiB, stream).value();
//   memory.deallocate(p, 64_MiB, stream);        // the copy may still be under way
#pragma once

#include <memory>
#include <utility>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/pool/block_pool.hpp"
#include "weir/pool/memory_kind.hpp"

namespace weir { inline namespace v0 {

/// Pinned host memory that all devices can reach, because pinning costs far more than allocating.
///
/// As block_pool says, with one addition: the host touches this memory whenever it likes, in no
/// stream's order. So a block is reused only when all work queued before its free is done, on the
/// stream of the free too; what allocate() returns is used by nobody, and the host may write it
/// without waiting for anything. Every call takes streams of all devices of the runtime.
class WEIR_API pinned_pool : public block_pool {
 public:
  static constexpr memory_kind kind = memory_kind::pinned;

  [[nodiscard]] static result<pinned_pool> create(weir::device device,
                                                  block_pool_options options = {});

 private:
  explicit pinned_pool(std::shared_ptr<pools::block_cache> state) noexcept
      : block_pool{std::move(state)} {}
};

}}  // namespace weir::v0
