// What the exported functions of the simulated driver call.
#pragma once

#include <span>
#include <string_view>

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

/// The process's machine, made at the first call of anything. Null: the environment asks for one
/// that cannot be.
[[nodiscard]] const weir::driver::table* machine_calls() noexcept;

template <class... Parameters, class... Arguments>
weir::driver::CUresult answer(weir::driver::CUresult (*weir::driver::table::*call)(Parameters...),
                              Arguments... arguments) {
  const weir::driver::table* const calls = machine_calls();
  if (calls == nullptr) return weir::driver::CUDA_ERROR_SYSTEM_NOT_READY;
  return (calls->*call)(arguments...);
}

[[nodiscard]] inline weir::driver::CUstream per_thread(weir::driver::CUstream stream) noexcept {
  return stream != nullptr ? stream : weir::driver::per_thread_stream();
}

}  // namespace weir_sim_driver
