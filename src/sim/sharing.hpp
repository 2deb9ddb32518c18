// SPDX-License-Identifier: Apache-2.0
// Handles that travel to other processes: exported memory, and events both sides can see.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "sim/memory.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// An interprocess event: counters in memory that both processes map. The recording side raises
/// `recorded` when it queues the record and `completed` when the record's turn has come; an event
/// is complete when nothing recorded is outstanding.
class shared_event {
 public:
  static std::shared_ptr<shared_event> create();
  /// From the bytes of a handle; null if they are not those of an event that is still there.
  static std::shared_ptr<shared_event> open(const driver::CUipcEventHandle& handle);
  /// Whether the bytes are those of an event of this very process, which must not open it.
  [[nodiscard]] static bool is_own(const driver::CUipcEventHandle& handle) noexcept;
  ~shared_event();
  shared_event(const shared_event&) = delete;
  shared_event& operator=(const shared_event&) = delete;

  [[nodiscard]] driver::CUipcEventHandle handle() const;
  /// The number of the record now being queued.
  std::uint64_t next_record() noexcept;
  void complete(std::uint64_t record) noexcept;
  [[nodiscard]] std::uint64_t recorded() const noexcept;
  [[nodiscard]] bool is_complete(std::uint64_t record) const noexcept;

 private:
  shared_event() = default;
  struct counters;
  counters* counters_ = nullptr;
  int descriptor_ = -1;
};

/// Exported and imported memory of one machine. Needs the machine's lock held.
///
/// A handle names a descriptor of the exporting process, which the importer opens through /proc,
/// and a number drawn at random that the file must hold too: a descriptor that stands for something
/// else by now is not mistaken for the memory. What was opened stays when the exporter frees it.
class sharing {
 public:
  explicit sharing(state& machine) : machine_{machine} {}

  /// The handle of a region of plain memory.
  driver::CUresult export_memory(region& area, driver::CUipcMemHandle& handle);
  /// Opening again what is open gives the same address; each opening must be closed.
  driver::CUresult open_memory(const driver::CUipcMemHandle& handle, int for_device,
                               driver::CUdeviceptr& address);
  /// False if nothing opened begins at `address`.
  bool close_memory(std::uint64_t address);
  /// Closes everything that was opened for `device`.
  void reset(int device);

 private:
  /// One file of another process, mapped as a whole: allocations of a chunk share it.
  struct imported_file {
    std::uint64_t base = 0;
    std::shared_ptr<physical> pages{};
    unsigned regions = 0;
  };
  struct opened_memory {
    std::uint64_t nonce = 0;
    unsigned references = 0;
    int for_device = 0;
  };

  imported_file* map_file(int descriptor, std::uint64_t nonce);
  void unmap(std::uint64_t base);

  state& machine_;
  std::map<std::uint64_t, imported_file> files_{};   // by nonce
  std::map<std::uint64_t, opened_memory> opened_{};  // by address
};

}}}  // namespace weir::v0::sim
