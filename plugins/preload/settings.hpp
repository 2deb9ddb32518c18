// SPDX-License-Identifier: Apache-2.0
// The settings of `weir run`, from the environment.
#pragma once

#include <string>

#include "weir/base/options.hpp"

namespace weir_preload {

/// Read once, when the library is loaded, so that a program that changes its environment later
/// changes nothing here. Any thread.
struct settings {
  bool records_only = false;   ///< WEIR_RUN_RECORD_ONLY: nothing is served
  bool frees_async = false;    ///< WEIR_RUN_FREE=async: cuMemFree does not wait
  bool keeps_plain = false;    ///< WEIR_RUN_KEEP has cuMemAlloc: it stays the driver's
  bool keeps_ordered = false;  ///< WEIR_RUN_KEEP has cuMemAllocAsync
  bool is_quiet = false;       ///< WEIR_RUN_QUIET
  std::string record{};        ///< WEIR_RUN_RECORD: the trace; empty: none
  weir::options heap{};        ///< the options of docs/options.md
  std::string problem{};       ///< a variable that cannot be read; then everything is passed on

  [[nodiscard]] static const settings& get();
};

/// The trace of this process and of its `number`th device, counted from 1. %p is the process; the
/// second device's gets .2 before its ending, and another process than the one that was started
/// its own number, where %p does not tell them apart.
[[nodiscard]] std::string trace_path(std::string path, int number, long process, long started);

}  // namespace weir_preload
