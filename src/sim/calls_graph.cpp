// SPDX-License-Identifier: Apache-2.0
// Driver calls: graphs and their memory.
#include <algorithm>
#include <utility>

#include "sim/graphs.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

// --- Building and reading -----------------------------------------------------------------------

CUresult state::graph_create(CUgraph* handle, unsigned flags) {
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = graphs->graph_handles.insert(graphs->make_graph());
  return CUDA_SUCCESS;
}

CUresult state::graph_destroy(CUgraph handle) {
  const auto destroyed = graphs->graph_handles.share(handle);
  if (!destroyed || destroyed->capturing) return CUDA_ERROR_INVALID_VALUE;
  graphs->graph_handles.erase(handle);
  graphs->dismantle(*destroyed);
  graphs->run_destructors(lock());
  return CUDA_SUCCESS;
}

CUresult state::graph_get_nodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  const graph* const owner = graphs->graph_handles.find(handle);
  if (owner == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) {
    *count = owner->nodes.size();
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < *count; ++i) {
    nodes[i] = i < owner->nodes.size() ? owner->nodes[i]->handle : nullptr;
  }
  *count = std::min(*count, owner->nodes.size());
  return CUDA_SUCCESS;
}

CUresult state::graph_get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                                std::size_t* count) {
  const graph* const owner = graphs->graph_handles.find(handle);
  if (owner == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::pair<CUgraphNode, CUgraphNode>> edges;
  for (const auto& node : owner->nodes) {
    for (const std::size_t before : node->after) {
      edges.emplace_back(owner->nodes[before]->handle, node->handle);
    }
  }
  if (from == nullptr) {
    *count = edges.size();
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < *count; ++i) {
    std::tie(from[i], to[i]) = i < edges.size() ? edges[i] : std::pair<CUgraphNode, CUgraphNode>{};
  }
  *count = std::min(*count, edges.size());
  return CUDA_SUCCESS;
}

CUresult state::graph_node_get_type(CUgraphNode handle, CUgraphNodeType* type) {
  const graph_node* const node = graphs->node_handles.find(handle);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->content.task.type;
  return CUDA_SUCCESS;
}

CUresult state::graph_add_empty_node(CUgraphNode* node, CUgraph handle,
                                     const CUgraphNode* dependencies, std::size_t count) {
  graph* const to = graphs->graph_handles.find(handle);
  std::vector<std::size_t> after;
  if (node == nullptr || to == nullptr || !graphs->places(*to, dependencies, count, after)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *node = graphs->append(*to, {.device = std::max(current_device(), 0)}, std::move(after));
  return CUDA_SUCCESS;
}

CUresult state::graph_add_mem_alloc_node(CUgraphNode* node, CUgraph handle,
                                         const CUgraphNode* dependencies, std::size_t count,
                                         CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  graph* const to = graphs->graph_handles.find(handle);
  std::vector<std::size_t> after;
  if (node == nullptr || parameters == nullptr || to == nullptr ||
      !graphs->places(*to, dependencies, count, after)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemPoolProps& pool = parameters->poolProps;
  if (parameters->bytesize == 0 || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(pool.location.id)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (parameters->accessDescCount != 0 && parameters->accessDescs == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::vector<CUmemAccessDesc> also_for(
      parameters->accessDescs, parameters->accessDescs + parameters->accessDescCount);
  for (const CUmemAccessDesc& each : also_for) {
    if (each.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(each.location.id)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return graphs->add_allocation(*to, std::move(after), pool.location.id, parameters->bytesize,
                                also_for, node, &parameters->dptr);
}

CUresult state::graph_add_mem_free_node(CUgraphNode* node, CUgraph handle,
                                        const CUgraphNode* dependencies, std::size_t count,
                                        CUdeviceptr address) {
  graph* const to = graphs->graph_handles.find(handle);
  std::vector<std::size_t> after;
  if (node == nullptr || to == nullptr || !graphs->places(*to, dependencies, count, after)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return graphs->add_free(*to, std::move(after), address, node);
}

// --- Launching ----------------------------------------------------------------------------------

CUresult state::graph_instantiate(CUgraphExec* exec, CUgraph handle, unsigned long long flags) {
  constexpr unsigned long long known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                       CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                                       CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  const auto from = graphs->graph_handles.share(handle);
  if (exec == nullptr || !from || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
  // Kernels here are callables on the host; none can launch a graph from the device.
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return graphs->instantiate(from, flags, exec);
}

CUresult state::graph_exec_destroy(CUgraphExec handle) {
  const auto destroyed = graphs->exec_handles.erase(handle);
  if (!destroyed) return CUDA_ERROR_INVALID_VALUE;
  graphs->destroy(destroyed);
  graphs->run_destructors(lock());
  return CUDA_SUCCESS;
}

CUresult state::graph_upload(CUgraphExec handle, CUstream stream_handle) {
  const auto exec = graphs->exec_handles.share(handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(stream_handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = may_use(*stream); failure != CUDA_SUCCESS) return failure;
  if (stream->capturing) return graphs->misuse(stream);
  if (exec->last) flow.wait(stream, *exec->last, exec->last_when);
  return CUDA_SUCCESS;
}

CUresult state::graph_launch(CUgraphExec handle, CUstream stream_handle) {
  const auto exec = graphs->exec_handles.share(handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(stream_handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failure = may_use(*stream); failure != CUDA_SUCCESS) return failure;
  return graphs->launch(exec, stream);
}

// --- Memory -------------------------------------------------------------------------------------

CUresult state::device_graph_mem_trim(CUdevice device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  graphs->memory.trim(device);
  return CUDA_SUCCESS;
}

CUresult state::device_get_graph_mem_attribute(CUdevice device, CUgraphMem_attribute attribute,
                                               void* value) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const graph_memory::counters& memory = graphs->memory.of(device);
  auto* const out = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *out = memory.reserved;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *out = memory.used_peak;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *out = memory.reserved;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *out = memory.reserved_peak;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult state::device_set_graph_mem_attribute(CUdevice device, CUgraphMem_attribute attribute,
                                               void* value) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  // A peak can be reset to what is in use now, which one asks for by a zero.
  if (value == nullptr || *static_cast<std::uint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  graph_memory::counters& memory = graphs->memory.of(device);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      memory.used_peak = memory.reserved;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      memory.reserved_peak = memory.reserved;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}}}  // namespace weir::v0::sim
