// SPDX-License-Identifier: Apache-2.0
// Modules: which images load, and what their entries stand for.
#include "sim/modules.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// Compiled code, alone or in NVIDIA's container: real, but not for a machine of callables.
bool is_compiled(const char* image) {
  // Compared as strings: an image of text may end before its fourth byte.
  return std::strncmp(image,
                      "\x7f"
                      "ELF",
                      4) == 0 ||
         std::strncmp(image, "\x50\xed\x55\xba", 4) == 0;
}

/// The newest PTX ISA that a driver reads, by the CUDA version of the driver.
int newest_isa(int driver_version) {
  constexpr std::array<std::pair<int, int>, 20> since{
      {{13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85}, {12040, 84}, {12030, 83},
       {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}, {11070, 77}, {11060, 76}, {11050, 75},
       {11040, 74}, {11030, 73}, {11020, 72}, {11010, 71}, {11000, 70}, {0, 65}}};
  return std::find_if(since.begin(), since.end(),
                      [&](const auto& row) { return driver_version >= row.first; })
      ->second;
}

}  // namespace

void module_set::add(kernel definition) {
  auto known = std::make_shared<const kernel>(std::move(definition));
  kernels_.insert_or_assign(known->name, known);
}

std::shared_ptr<const kernel> module_set::find(const std::string& name) const {
  const auto known = kernels_.find(name);
  return known == kernels_.end() ? nullptr : known->second;
}

CUresult module_set::load(const void* image, int device, CUmodule* module) {
  const char* const text = static_cast<const char*>(image);
  if (is_compiled(text)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  auto loaded = std::make_shared<loaded_module>();
  loaded->device = device;
  const CUresult read = read_ptx(text, loaded->text);
  if (read != CUDA_SUCCESS) return read;
  if (loaded->text.version > newest_isa(machine_.options.driver_version)) {
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  const device_spec& spec = machine_.devices[static_cast<std::size_t>(device)].spec;
  if (loaded->text.target > spec.compute_major * 10 + spec.compute_minor) {
    return CUDA_ERROR_INVALID_PTX;
  }
  loaded->handle = *module = module_handles_.insert(loaded);
  return CUDA_SUCCESS;
}

CUresult module_set::unload(CUmodule module) {
  const auto unloaded = module_handles_.erase(module);
  if (!unloaded) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& [name, function] : unloaded->functions) function_handles.erase(function);
  return CUDA_SUCCESS;
}

void module_set::reset(int device) {
  std::vector<CUmodule> modules;
  module_handles_.for_each([&](const loaded_module& module) {
    if (module.device == device) modules.push_back(module.handle);
  });
  for (const CUmodule module : modules) unload(module);
}

CUresult module_set::get_function(CUmodule module, const char* name, CUfunction* function) {
  loaded_module* const owner = module_handles_.find(module);
  if (owner == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto known = owner->functions.find(std::string_view{name});
      known != owner->functions.end()) {
    *function = known->second;
    return CUDA_SUCCESS;
  }
  const auto& entries = owner->text.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const ptx_entry& each) { return each.name == name; });
  if (entry == entries.end()) return CUDA_ERROR_NOT_FOUND;
  *function = function_handles.insert(
      std::make_shared<loaded_function>(loaded_function{*entry, owner->device}));
  owner->functions.emplace(name, *function);
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
