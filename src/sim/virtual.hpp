// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: reservations of the user's, and physical handles.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "sim/handles.hpp"
#include "sim/memory.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// What a physical handle stands for. The handle holds one reference and each mapping of it one:
/// pages and capacity go back with the last of them, in whichever order they go.
struct allocation {
  std::shared_ptr<physical> pages{};
  std::shared_ptr<capacity_claim> claim{};  ///< null for host memory and imported memory
  driver::CUmemAllocationProp properties{};
  std::uint64_t size = 0;
  std::uint64_t id = 0;  ///< CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
  /// Each create, import and retain must be paired with a release.
  unsigned references = 1;
  driver::CUmemGenericAllocationHandle handle = 0;

  [[nodiscard]] bool on_host() const noexcept {
    return properties.location.type != driver::CU_MEM_LOCATION_TYPE_DEVICE;
  }
};

/// Handles and reservations of one machine. Needs the machine's lock held.
class handle_set {
 public:
  handle_table<driver::CUmemGenericAllocationHandle, allocation, 8> table;
  std::map<std::uint64_t, std::uint64_t> reservations;  ///< base -> size, of mem_address_reserve

  /// The reservation that contains `address`; end() if none does.
  [[nodiscard]] std::map<std::uint64_t, std::uint64_t>::const_iterator reservation(
      std::uint64_t address) const noexcept;

  /// What this process knows already by another descriptor of the same file: two views of one
  /// memory share pages, history and capacity.
  [[nodiscard]] std::shared_ptr<allocation> known(int descriptor) const;
  void remember(const std::shared_ptr<allocation>& memory);

 private:
  using file_key = std::pair<std::uint64_t, std::uint64_t>;  // device and inode
  std::map<file_key, std::weak_ptr<allocation>> by_file_;
};

}}}  // namespace weir::v0::sim
