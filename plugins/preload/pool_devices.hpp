// SPDX-License-Identifier: Apache-2.0
// The devices of the pools that the program made.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "weir/driver/types.hpp"

namespace weir_preload {

/// The driver does not say where a pool's memory lies, so it is noted when the pool is made. A pool
/// that ends keeps its entry until its handle is used again. Any thread.
class pool_devices {
 public:
  /// May throw std::bad_alloc; then the pool is not known.
  void add(weir::driver::CUmemoryPool pool, int device) {
    const std::lock_guard lock{mutex_};
    devices_.insert_or_assign(pool, device);
  }
  [[nodiscard]] std::optional<int> of(weir::driver::CUmemoryPool pool) const noexcept {
    const std::lock_guard lock{mutex_};
    const auto entry = devices_.find(pool);
    return entry == devices_.end() ? std::nullopt : std::optional{entry->second};
  }

 private:
  mutable std::mutex mutex_;
  std::map<weir::driver::CUmemoryPool, int> devices_;
};

}  // namespace weir_preload
