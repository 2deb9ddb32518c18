// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory pools: the driver's own caching allocator, simulated.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/handles.hpp"
#include "sim/pool.hpp"
#include "sim/pool_import.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// All pools of a machine: one default pool a device, those that users made, and those of other
/// processes. Needs the machine's lock held.
class pool_set {
 public:
  explicit pool_set(state& machine);
  ~pool_set();
  pool_set(const pool_set&) = delete;
  pool_set& operator=(const pool_set&) = delete;

  // --- Asked by other parts ----------------------------------------------------------------------

  /// Whether `address` lies in an allocation of a pool, imported ones included; then its exact
  /// start, size and so on. An allocation's id is never used twice.
  bool allocation(driver::CUdeviceptr address, driver::CUdeviceptr* base, std::size_t* bytes,
                  driver::CUmemoryPool* pool = nullptr, std::uint64_t* id = nullptr);
  /// mem_free on pool memory: nothing is waited for.
  driver::CUresult free_now(driver::CUdeviceptr address);
  /// Host synchronisation with a device happened: completed frees are observed, and what a pool
  /// holds above its release threshold is released.
  void after_synchronize(int device);
  /// The device is short of memory: release every unused reserved byte whose free is complete.
  void release_unused(int device);
  /// A primary context is reset: the device's pools lose everything, and those that users made go.
  void reset(int device);

  // --- For the calls -----------------------------------------------------------------------------

  /// Null for a handle that is not alive, and for an imported pool.
  [[nodiscard]] pool* find(driver::CUmemoryPool handle) const noexcept {
    return own_handles_.find(handle);
  }
  [[nodiscard]] imported_pool* find_imported(driver::CUmemoryPool handle) const noexcept {
    return imported_handles_.find(handle);
  }
  driver::CUmemoryPool create(const driver::CUmemPoolProps& properties);
  driver::CUresult destroy(driver::CUmemoryPool handle);
  /// `device` must exist.
  [[nodiscard]] driver::CUmemoryPool default_of(int device);
  [[nodiscard]] driver::CUmemoryPool current_of(int device);
  void make_current(int device, driver::CUmemoryPool handle);

  /// The pool whose addresses include `address`; null if none.
  [[nodiscard]] pool* holding(std::uint64_t address) noexcept;
  [[nodiscard]] imported_pool* importing(std::uint64_t address) noexcept;
  /// The pool behind a descriptor; the same handle each time it is imported. Takes nothing over.
  driver::CUresult import(int descriptor, driver::CUmemoryPool* handle);

  /// For tests: empty if every pool is as it must be.
  [[nodiscard]] std::string inconsistency() const;

 private:
  driver::CUmemoryPool add(const driver::CUmemPoolProps& properties, bool is_default);
  void drop_finished();

  state& machine_;
  handle_table<driver::CUmemoryPool, pool, 5> own_handles_;
  handle_table<driver::CUmemoryPool, imported_pool, 6> imported_handles_;
  std::vector<std::shared_ptr<pool>> pools_;  // with a handle, or with memory still in use
  std::vector<std::shared_ptr<imported_pool>> imported_;
  std::vector<std::shared_ptr<imported_pool>> leaving_;  // without a handle, with frees to come
  pool* last_held_ = nullptr;                            // most look-ups repeat the pool
  std::vector<driver::CUmemoryPool> defaults_;           // by device; null until first used
  std::vector<driver::CUmemoryPool> current_;            // by device; null: the default
};

}}}  // namespace weir::v0::sim
