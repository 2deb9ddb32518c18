// SPDX-License-Identifier: Apache-2.0
// Driver calls: access between devices.
#include <utility>
#include <vector>

#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult state::device_can_access_peer(int* can, CUdevice device, CUdevice peer) {
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device) || !valid_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer ? 1 : 0;  // the devices of a machine are joined each to each
  return CUDA_SUCCESS;
}

CUresult state::device_get_p2p_attribute(int* value, CUdevice_P2PAttribute attribute,
                                         CUdevice source, CUdevice destination) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(source) || !valid_device(destination) || source == destination) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
      *value = 0;  // rank 0 is the fastest
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult state::ctx_enable_peer_access(CUcontext peer, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  const int other = device_of(peer);
  if (device < 0 || other < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (device == other) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  auto enabled = devices[static_cast<std::size_t>(device)].peer_enabled.begin() + other;
  if (*enabled) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  *enabled = true;
  return CUDA_SUCCESS;
}

CUresult state::ctx_disable_peer_access(CUcontext peer) {
  const int device = current_device();
  const int other = device_of(peer);
  if (device < 0 || other < 0) return CUDA_ERROR_INVALID_CONTEXT;
  auto enabled = devices[static_cast<std::size_t>(device)].peer_enabled.begin() + other;
  if (!*enabled) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  std::vector<std::pair<const region*, CUmemAccess_flags>> reached;
  space.for_each([&](const region& area) {
    if (area.device == other) reached.emplace_back(&area, space.rights(area, device));
  });
  *enabled = false;
  for (const auto& [area, before] : reached) {
    space.check_revocation(*area, device, before, space.rights(*area, device),
                           "ctx_disable_peer_access");
  }
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
