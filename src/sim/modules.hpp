// SPDX-License-Identifier: Apache-2.0
// PTX modules and the callables that stand behind their entries.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/handles.hpp"
#include "sim/ptx.hpp"
#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// An entry of a loaded module.
struct loaded_function {
  ptx_entry entry;
  int device = 0;
};

struct loaded_module {
  driver::CUmodule handle = nullptr;
  ptx_module text;
  int device = 0;
  /// Handles of the functions that were asked for, by name.
  std::map<std::string, driver::CUfunction, std::less<>> functions;
};

/// Known kernels and loaded modules. Needs the machine's lock held.
class module_set {
 public:
  explicit module_set(state& machine) : machine_{machine} {}

  void add(kernel definition);
  /// The callable of that name; null if the machine knows none.
  [[nodiscard]] std::shared_ptr<const kernel> find(const std::string& name) const;

  driver::CUresult load(const void* image, int device, driver::CUmodule* module);
  driver::CUresult unload(driver::CUmodule module);
  /// The device's context is reset: its modules are gone.
  void reset(int device);
  driver::CUresult get_function(driver::CUmodule module, const char* name,
                                driver::CUfunction* function);

  handle_table<driver::CUfunction, loaded_function, 13> function_handles;

 private:
  state& machine_;
  handle_table<driver::CUmodule, loaded_module, 12> module_handles_;
  std::map<std::string, std::shared_ptr<const kernel>, std::less<>> kernels_;
};

}}}  // namespace weir::v0::sim
