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

/// The physical handles that a handle string names, one behind the other in a range of their own.
///
/// Mapped as long as this object lives. Work that uses the memory must be done before it goes
/// (leaving_blocks). One thread at a time.
class imported_block {
 public:
  [[nodiscard]] static weir::result<std::unique_ptr<imported_block>> open(
      weir::device where, const ipc_handle& what, const std::vector<weir::descriptor>& memory);

  [[nodiscard]] void* base() const noexcept { return reinterpret_cast<void*>(range_.base()); }

 private:
  explicit imported_block(weir::address_range range) : range_{std::move(range)} {}

  weir::address_range range_;  // outlives the mappings
  std::vector<weir::mapping> mappings_;
};

/// Blocks of one device that nobody has any more. Unmapped when the device has done all its queued
/// work, whatever stream it is on; not while a capture is under way, which the wait would spoil.
/// Any thread.
class leaving_blocks {
 public:
  explicit leaving_blocks(weir::device where) : device_{where} {}
  leaving_blocks(const leaving_blocks&) = delete;
  leaving_blocks& operator=(const leaving_blocks&) = delete;

  /// To be unmapped with the next call.
  void add(std::unique_ptr<imported_block> block) noexcept;
  void unmap(bool capturing) noexcept;

 private:
  const weir::device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<imported_block>> all_;
};

}  // namespace weir_torch
