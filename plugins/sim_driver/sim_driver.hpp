// SPDX-License-Identifier: Apache-2.0
// What the exported functions of the simulated driver call.
#pragma once

#include <span>
#include <string_view>
#include <type_traits>

#include "weir/driver/table.hpp"

namespace weir_sim_driver {

/// A row of calls.def as the library exports it.
struct exported_call {
  std::string_view symbol;
  int version;
  void* function;
  void* per_thread;  ///< where a null stream is the thread's own; null: it makes no difference
};

/// In the order of calls.def; written by cmake/weir_driver_exports.cmake.
[[nodiscard]] std::span<const exported_call> exported_calls() noexcept;

/// The process's machine, made at the first call of anything; in a child once more, if the parent
/// had not initialized the driver. Null: the environment asks for one that cannot be.
[[nodiscard]] const weir::driver::table* machine_calls() noexcept;
/// The driver is initialized: from now on it does not survive a fork.
void machine_is_used() noexcept;

template <class... Parameters, class... Arguments>
weir::driver::CUresult answer(weir::driver::CUresult (*weir::driver::table::*call)(Parameters...),
                              Arguments... arguments) {
  const weir::driver::table* const calls = machine_calls();
  if (calls == nullptr) return weir::driver::CUDA_ERROR_SYSTEM_NOT_READY;
  if constexpr (std::is_same_v<decltype(call), decltype(&weir::driver::table::init)>)
    if (call == &weir::driver::table::init) machine_is_used();
  return (calls->*call)(arguments...);
}

[[nodiscard]] inline weir::driver::CUstream per_thread(weir::driver::CUstream stream) noexcept {
  return stream != nullptr ? stream : weir::driver::per_thread_stream();
}

}  // namespace weir_sim_driver
