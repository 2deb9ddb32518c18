// SPDX-License-Identifier: Apache-2.0
// Memory of another process, mapped here.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "ipc_handle.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir_torch {

/// The memory that a handle string names: physical handles, one behind the other in a range of
/// their own, or plain memory that the driver mapped.
///
/// Mapped as long as this object lives. Work that uses the memory must be done before it is
/// destroyed (unmap_queue). One thread at a time.
class imported_block {
 public:
  /// Memory of any process on this machine, whether weir or torch's own allocator shares it there.
  [[nodiscard]] static weir::result<std::unique_ptr<imported_block>> open(weir::device gpu,
                                                                          std::string_view handle);
  /// The memory of these descriptors, which stay the caller's.
  [[nodiscard]] static weir::result<std::unique_ptr<imported_block>> open(
      weir::device gpu, std::span<const std::uint64_t> sizes,
      const std::vector<weir::descriptor>& descriptors);
  ~imported_block();
  imported_block(const imported_block&) = delete;
  imported_block& operator=(const imported_block&) = delete;

  /// Lets another device reach the memory. Plain memory is reached by who has access to the device.
  [[nodiscard]] weir::result<void> enable_peer(weir::device other) const;

  [[nodiscard]] void* base() const noexcept { return reinterpret_cast<void*>(base_); }

 private:
  imported_block(weir::device gpu, weir::address_range range) : gpu_{gpu}, base_{range.base()} {
    ranges_.push_back(std::move(range));
  }
  imported_block(weir::device gpu, weir::device_address plain)
      : gpu_{gpu}, base_{plain}, is_plain_{true} {}
  /// Addresses for handles of these sizes, without memory.
  [[nodiscard]] static weir::result<std::unique_ptr<imported_block>> reserve(
      weir::device gpu, std::span<const std::uint64_t> sizes);
  /// Maps the next handles, whose descriptors stay the caller's.
  [[nodiscard]] weir::result<void> append(std::span<const std::uint64_t> sizes,
                                          std::span<const weir::descriptor> descriptors);
  [[nodiscard]] static weir::result<std::unique_ptr<imported_block>> open_plain(
      weir::device gpu, const plain_handle& handle);

  const weir::device gpu_;
  weir::device_address base_;
  const bool is_plain_ = false;
  weir::bytes mapped_{};
  std::vector<weir::address_range> ranges_;  // one or none; outlives the mappings
  std::vector<weir::mapping> mappings_;
};

/// Waits until all work that is queued on the device is done, on whatever stream, and leaves every
/// capture valid, unlike device::synchronize(). An error other than device_lost and driver_gone:
/// nothing is known about the work.
[[nodiscard]] weir::result<void> wait_for_all_work(weir::device gpu);

/// Whether no work can be using the device's memory after such a wait.
[[nodiscard]] inline bool may_unmap(const weir::result<void>& waited) noexcept {
  return waited || waited.code() == weir::errc::device_lost ||
         waited.code() == weir::errc::driver_gone;
}

/// Imported blocks of one device that nobody refers to any more. Unmapped when the device has done
/// all its queued work, on all streams; kept where it cannot be waited for, and while torch says
/// that a capture is under way: the graph may use them. Any thread.
class unmap_queue {
 public:
  explicit unmap_queue(weir::device gpu) : device_{gpu} {}
  unmap_queue(const unmap_queue&) = delete;
  unmap_queue& operator=(const unmap_queue&) = delete;

  /// To be unmapped with the next drain(). Without host memory for that it is unmapped now, or,
  /// where the device cannot be waited for, when the process ends.
  void add(std::unique_ptr<imported_block> block) noexcept;
  /// Waits for the device and unmaps all of them, unless a capture is under way. Those that could
  /// not be waited for stay for the next call.
  void drain(bool is_capturing) noexcept;

 private:
  const weir::device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<imported_block>> blocks_;
};

}  // namespace weir_torch
