// Memory of another process, mapped here.
#pragma once

#include <memory>
#include <vector>

#include "ipc_handle.hpp"
#include "weir/device.hpp"
#include "weir/memory.hpp"
#include "weir/result.hpp"

namespace weir_torch {

/// The physical handles that a handle string names, one behind the other in a range of their own.
///
/// Mapped as long as this object lives. Work that uses the memory must be done before it goes. One
/// thread at a time.
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

}  // namespace weir_torch
