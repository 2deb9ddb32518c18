// SPDX-License-Identifier: Apache-2.0
// Driver calls: modules, kernels and host functions.
#include <cstring>
#include <utility>

#include "sim/modules.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult state::module_load_data(CUmodule* module, const void* image) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  return modules->load(image, device, module);
}

CUresult state::module_unload(CUmodule module) { return modules->unload(module); }

CUresult state::module_get_function(CUfunction* function, CUmodule module, const char* name) {
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return modules->get_function(module, name, function);
}

namespace {

using argument_values = std::vector<std::vector<std::byte>>;

bool is_launchable(const std::array<unsigned, 3>& grid, const std::array<unsigned, 3>& block,
                   unsigned shared_bytes) {
  constexpr std::array<unsigned, 3> largest_grid{0x7fff'ffff, 0xffff, 0xffff};
  constexpr std::array<unsigned, 3> largest_block{1024, 1024, 64};
  constexpr unsigned most_shared = 48 << 10;  // more needs a function attribute set first
  for (std::size_t i = 0; i < 3; ++i) {
    if (grid[i] == 0 || grid[i] > largest_grid[i]) return false;
    if (block[i] == 0 || block[i] > largest_block[i]) return false;
  }
  return std::uint64_t{block[0]} * block[1] * block[2] <= 1024 && shared_bytes <= most_shared;
}

/// The buffer form of the arguments: a list of keys, each with its value, up to a null.
bool find_buffer(void* const* extra, const std::byte*& buffer, std::size_t& size) {
  const void* const buffer_key = reinterpret_cast<void*>(std::uintptr_t{1});
  const void* const size_key = reinterpret_cast<void*>(std::uintptr_t{2});
  for (; *extra != nullptr; extra += 2) {
    if (*extra == buffer_key) {
      buffer = static_cast<const std::byte*>(extra[1]);
    } else if (*extra == size_key) {
      if (extra[1] == nullptr) return false;
      size = *static_cast<const std::size_t*>(extra[1]);
    } else {
      return false;
    }
  }
  return buffer != nullptr;
}

/// Copies the arguments: the caller may reuse its memory as soon as the call returns.
bool copy_arguments(const ptx_entry& entry, void** parameters, void** extra,
                    argument_values& values) {
  if (parameters != nullptr && extra != nullptr) return false;
  const std::byte* buffer = nullptr;
  std::size_t size = 0;
  if (extra != nullptr && !find_buffer(extra, buffer, size)) return false;
  for (std::size_t i = 0; i < entry.parameters.size(); ++i) {
    const ptx_parameter& each = entry.parameters[i];
    const std::byte* from = nullptr;
    if (buffer != nullptr) {
      if (each.offset + each.size > size) return false;
      from = buffer + each.offset;
    } else if (parameters != nullptr) {
      from = static_cast<const std::byte*>(parameters[i]);
    }
    if (from == nullptr) return false;
    values.emplace_back(from, from + each.size);
  }
  return true;
}

bool same_parameters(const ptx_entry& entry, const kernel& definition) {
  if (entry.parameters.size() != definition.parameters.size()) return false;
  for (std::size_t i = 0; i < entry.parameters.size(); ++i) {
    if (entry.parameters[i].size != definition.parameters[i]) return false;
  }
  return true;
}

}  // namespace

CUresult state::launch_kernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared_bytes, CUstream stream_handle, void** parameters,
                              void** extra) {
  const loaded_function* const function = modules->function_handles.find(handle);
  const auto stream = find_stream(stream_handle);
  if (function == nullptr || !stream || stream->device != function->device) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const std::array grid{grid_x, grid_y, grid_z};
  const std::array block{block_x, block_y, block_z};
  if (!is_launchable(grid, block, shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto values = std::make_shared<argument_values>();
  if (!copy_arguments(function->entry, parameters, extra, *values)) return CUDA_ERROR_INVALID_VALUE;

  const auto definition = modules->find(function->entry.name);
  if (!definition) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (!same_parameters(function->entry, *definition)) return CUDA_ERROR_INVALID_VALUE;

  work task{.type = CU_GRAPH_NODE_TYPE_KERNEL,
            .label = "kernel " + definition->name,
            .takes = definition->takes};
  if (definition->accesses)
    definition->accesses(kernel_arguments{grid, block, *values}, task.accesses);
  if (definition->run) {
    task.body = [definition, grid, block, values] {
      definition->run(kernel_arguments{grid, block, *values});
      return CUDA_SUCCESS;
    };
  }
  return submit(stream, std::move(task));
}

CUresult state::launch_host_func(CUstream stream_handle, CUhostFn function, void* user_data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(stream_handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  return submit(stream, {.type = CU_GRAPH_NODE_TYPE_HOST,
                         .label = "host function",
                         .body =
                             [function, user_data] {
                               function(user_data);
                               return CUDA_SUCCESS;
                             },
                         .host_function = true});
}

}}}  // namespace weir::v0::sim
