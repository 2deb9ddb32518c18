// Memory of another process, mapped here.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "ipc_handle.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir_torch {

/// The physical handles that an ipc_handle names, one behind the other in a range of their own.
///
/// Mapped as long as this object lives. Work that uses the memory must be done before it is
/// destroyed (unmap_queue). One thread at a time.
class imported_block {
 public:
  [[nodiscard]] static weir::result<std::unique_ptr<imported_block>> open(
      weir::device gpu, const ipc_handle& handle, const std::vector<weir::descriptor>& descriptors);

  [[nodiscard]] void* base() const noexcept { return reinterpret_cast<void*>(range_.base()); }

 private:
  explicit imported_block(weir::address_range range) : range_{std::move(range)} {}

  weir::address_range range_;  // outlives the mappings
  std::vector<weir::mapping> mappings_;
};

/// Imported blocks of one device that nobody refers to any more. Unmapped when the device has done
/// all its queued work, on all streams; not while a capture is under way, which the wait would
/// invalidate. Any thread.
class unmap_queue {
 public:
  explicit unmap_queue(weir::device gpu) : device_{gpu} {}
  unmap_queue(const unmap_queue&) = delete;
  unmap_queue& operator=(const unmap_queue&) = delete;

  /// To be unmapped with the next drain().
  void add(std::unique_ptr<imported_block> block) noexcept;
  /// Waits for the device and unmaps all of them, unless a capture is under way.
  void drain(bool is_capturing) noexcept;

 private:
  const weir::device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<imported_block>> blocks_;
};

}  // namespace weir_torch
