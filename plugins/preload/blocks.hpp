// SPDX-License-Identifier: Apache-2.0
// The program's device memory: each block, and whether weir or the driver serves it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "weir/driver/types.hpp"

namespace weir_preload {

class device_heap;

enum class served_as : std::uint8_t {
  plain,    ///< by weir, for cuMemAlloc: for every stream at once
  ordered,  ///< by weir, for cuMemAllocAsync: in the order of a stream
  driver,   ///< passed on to the driver, and counted
};

struct served_block {
  weir::driver::CUdeviceptr address = 0;
  std::size_t bytes = 0;
  served_as kind = served_as::driver;
  int device = 0;
  weir::driver::CUcontext context = nullptr;  ///< that it ends with; only of the driver's
  std::uint64_t serial = 0;                   ///< counts the blocks of the process, from 1
  std::uint64_t stream = 0;                   ///< as recordings number it; only of the driver's
  bool is_managed = false;              ///< does not count towards the limit; only of the driver's
  std::shared_ptr<device_heap> heap{};  ///< null: the driver's
};

/// Every live block by its address. A lock for some hundred nanoseconds; any thread.
class block_table {
 public:
  /// Its serial number. May throw std::bad_alloc; then nothing has changed.
  std::uint64_t insert(served_block block);
  /// The block that begins there, which is no longer in the table: of several threads that free the
  /// same pointer one gets it.
  [[nodiscard]] std::optional<served_block> take(weir::driver::CUdeviceptr address) noexcept;
  /// Puts back what was taken; never throws, as there was room for it: at worst it is lost to us.
  void put_back(served_block block) noexcept;
  /// The block that the address lies in, anywhere.
  [[nodiscard]] std::optional<served_block> containing(
      weir::driver::CUdeviceptr address) const noexcept;
  [[nodiscard]] bool has_any(const device_heap& heap) const noexcept;
  /// Takes all blocks of a heap.
  [[nodiscard]] std::vector<served_block> take_all(const device_heap& heap);
  /// Takes all blocks of the driver's that end with a context.
  [[nodiscard]] std::vector<served_block> take_all(weir::driver::CUcontext context);
  void clear() noexcept;

 private:
  template <class Matches>
  [[nodiscard]] std::vector<served_block> take_where(const Matches& matches);

  mutable std::mutex mutex_;
  std::map<weir::driver::CUdeviceptr, served_block> blocks_;
  std::uint64_t last_serial_ = 0;
};

}  // namespace weir_preload
