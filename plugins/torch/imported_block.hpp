// Memory of another process, mapped here.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
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
  explicit imported_block(weir::address_range range) : base_{range.base()} {
    ranges_.push_back(std::move(range));
  }
  imported_block(weir::device gpu, weir::device_address plain) : base_{plain}, plain_on_{gpu} {}
  [[nodiscard]] static weir::result<std::unique_ptr<imported_block>> open_plain(
      weir::device gpu, const plain_handle& handle);

  weir::device_address base_;
  std::vector<weir::address_range> ranges_;  // one or none; outlives the mappings
  std::vector<weir::mapping> mappings_;
  std::optional<weir::device> plain_on_;
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
