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
/// Mapped until close(), which waits for the device first. One thread at a time.
class opened_memory {
 public:
  /// Throws weir's error as torch's exception.
  opened_memory(const std::string& handle, int device);

  [[nodiscard]] std::uint64_t address() const noexcept {
    return reinterpret_cast<std::uint64_t>(block_->base());
  }
  void close();

 private:
  const weir::device gpu_;
  std::unique_ptr<imported_block> block_;
};

/// Whether a process needs weir to open the memory of this handle.
[[nodiscard]] bool needs_weir(const std::string& handle);

}  // namespace weir_torch
