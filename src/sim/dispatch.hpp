// SPDX-License-Identifier: Apache-2.0
// How a call through the table reaches its machine: slots, thunks, and what surrounds every call.
#pragma once

#include <memory>
#include <mutex>

#include "sim/state.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// A driver call has no argument that says which machine is meant, so each machine of a process
/// gets a slot with thunks of its own.
inline constexpr int slot_count = 8;

/// Takes a free slot for `machine`; -1 if all are taken.
int take_slot(state* machine) noexcept;
void leave_slot(int slot) noexcept;
/// The table whose calls lead to `slot`; lives as long as the process.
[[nodiscard]] const driver::table& table_of(int slot) noexcept;

/// Counts the forks between this process and the one that loaded the library.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

/// The lock of a machine, held by this thread while it is inside one of its functions. Everything
/// in state that says "the machine's lock" means the one taken here.
class machine_lock {
 public:
  explicit machine_lock(state& machine);
  ~machine_lock();
  machine_lock(const machine_lock&) = delete;
  machine_lock& operator=(const machine_lock&) = delete;

  [[nodiscard]] std::unique_lock<std::mutex>& lock() noexcept { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
  std::unique_lock<std::mutex>* outer_;
};

/// Whether this thread is inside one of the machine's functions, with its lock held.
[[nodiscard]] bool holds_lock(const state& machine) noexcept;

/// While one lives, driver calls of this thread answer CUDA_ERROR_NOT_PERMITTED: the thread runs a
/// host function or a destructor callback of the user's.
class host_function_scope {
 public:
  host_function_scope() noexcept;
  ~host_function_scope();
  host_function_scope(const host_function_scope&) = delete;
  host_function_scope& operator=(const host_function_scope&) = delete;
};

}}}  // namespace weir::v0::sim
