// SPDX-License-Identifier: Apache-2.0
// Memory that a process running weir shares, opened by one that does not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "imported_block.hpp"

namespace weir_torch {

/// For torch.multiprocessing in a process whose allocator is torch's own: memory that such a
/// process cannot open by itself, because its physical handles have several sizes or because it may
/// not trace the process that shares them.
///
/// Mapped until a close() that succeeds, which waits for the device first and leaves captures
/// valid. Without one the destructor waits; what it cannot wait for stays mapped until a later one
/// can. One thread at a time.
class opened_memory {
 public:
  /// Throws weir's error as torch's exception.
  opened_memory(const std::string& handle, int device);
  ~opened_memory();
  opened_memory(const opened_memory&) = delete;
  opened_memory& operator=(const opened_memory&) = delete;

  [[nodiscard]] std::uint64_t address() const noexcept {
    return reinterpret_cast<std::uint64_t>(block_->base());
  }
  /// Idempotent. Throws where the device cannot be waited for: the memory is still mapped then, and
  /// queued work may use it. A device that is lost or gone does no work.
  void close();

 private:
  const weir::device gpu_;
  std::unique_ptr<imported_block> block_;
};

/// Whether a process needs weir to open the memory of this handle.
[[nodiscard]] bool needs_weir(const std::string& handle);

}  // namespace weir_torch
