// SPDX-License-Identifier: Apache-2.0
// Driver calls: what the machine knows about a pointer.
#include <array>
#include <cstring>

#include "sim/pools.hpp"
#include "sim/state.hpp"
#include "sim/virtual.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

constexpr int unknown_device = -2;

/// One pointer and the memory it points into.
class pointee {
 public:
  pointee(state& machine, CUdeviceptr address) : machine_{machine}, address_{address} {
    area_ = machine.space.find(address);
    if (area_ == nullptr) return;
    base_ = area_->base;
    size_ = area_->size;
    id_ = area_->id;
    if (area_->kind == memory_kind::pool || area_->pool != nullptr) {
      // Between its allocations a pool's memory is nobody's.
      if (!machine.pools->allocation(address, &base_, &size_, &pool_, &id_)) area_ = nullptr;
    } else if (area_->kind == memory_kind::mapped) {
      const auto within = machine.space.handles->reservation(address);
      base_ = within->first;
      size_ = within->second;
    }
  }

  [[nodiscard]] bool known() const noexcept { return area_ != nullptr; }

  CUresult get(void* data, CUpointer_attribute attribute) const;

 private:
  [[nodiscard]] bool on_host() const noexcept { return area_->device < 0; }
  [[nodiscard]] bool is(memory_kind kind) const noexcept { return area_->kind == kind; }
  /// Whether the host may follow the pointer.
  [[nodiscard]] bool host_visible() const noexcept { return on_host() || is(memory_kind::managed); }
  [[nodiscard]] CUcontext context() const noexcept {
    return area_->owner < 0 ? nullptr : machine_.context_of(area_->owner);
  }
  [[nodiscard]] int ordinal() const noexcept {
    if (!on_host()) return area_->device;
    return area_->owner < 0 ? 0 : area_->owner;
  }
  [[nodiscard]] CUmemAccess_flags rights(int device) const {
    return machine_.space.rights(*area_, device);
  }
  [[nodiscard]] bool any_rights() const {
    for (int device = 0; machine_.valid_device(device); ++device) {
      if (rights(device) != CU_MEM_ACCESS_FLAGS_PROT_NONE) return true;
    }
    return false;
  }
  [[nodiscard]] std::uint64_t mapping_base() const noexcept;
  [[nodiscard]] std::uint64_t mapping_size() const noexcept;

  CUresult get_identity(void* data, CUpointer_attribute attribute) const;
  CUresult get_extent(void* data, CUpointer_attribute attribute) const;
  CUresult get_ability(void* data, CUpointer_attribute attribute) const;

  state& machine_;
  CUdeviceptr address_;
  const region* area_ = nullptr;
  CUdeviceptr base_ = 0;
  std::size_t size_ = 0;
  std::uint64_t id_ = 0;
  CUmemoryPool pool_ = nullptr;
};

template <class T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof(value));
  return CUDA_SUCCESS;
}

std::uint64_t pointee::mapping_base() const noexcept {
  if (is(memory_kind::registered)) return area_->base / 4096 * 4096;
  return area_->mapping_size != 0 ? area_->mapping_base : area_->base;
}

std::uint64_t pointee::mapping_size() const noexcept {
  if (is(memory_kind::registered)) return (area_->end() + 4095) / 4096 * 4096 - mapping_base();
  if (area_->mapping_size != 0) return area_->mapping_size;
  return (area_->size + device_page - 1) / device_page * device_page;
}

CUresult pointee::get_identity(void* data, CUpointer_attribute attribute) const {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, context());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: {
      const bool reachable = any_rights();
      put<CUdeviceptr>(data, reachable ? address_ : 0);
      return reachable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      put<CUdeviceptr>(data, host_visible() ? address_ : 0);
      return host_visible() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<std::uint64_t>(data, id_);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<std::uint64_t>(data, area_->mapped ? area_->mapped->id : area_->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<int>(data, is(memory_kind::managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, ordinal());
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, pool_);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult pointee::get_extent(void* data, CUpointer_attribute attribute) const {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put<CUdeviceptr>(data, base_);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put<std::size_t>(data, size_);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put<CUdeviceptr>(data, mapping_base());
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put<std::size_t>(data, mapping_size());
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<int>(data, 1);
    default:
      return get_identity(data, attribute);
  }
}

CUresult pointee::get_ability(void* data, CUpointer_attribute attribute) const {
  const bool plain = is(memory_kind::plain);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      if (!plain) return CUDA_ERROR_INVALID_VALUE;
      return put<std::array<std::uint64_t, 2>>(data, {});  // no third device to hand them to
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<int>(data, is(memory_kind::managed));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put<int>(data, plain);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<int>(data,
                      plain || (area_->mapped &&
                                area_->mapped->properties.allocFlags.gpuDirectRDMACapable != 0));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<std::uint64_t>(
          data, area_->mapped
                    ? static_cast<unsigned>(area_->mapped->properties.requestedHandleTypes)
                    : 0U);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
      const int device = machine_.current_device();
      return put<std::uint64_t>(data, device < 0 ? 0U : static_cast<unsigned>(rights(device)));
    }
    default:
      return get_extent(data, attribute);
  }
}

CUresult pointee::get(void* data, CUpointer_attribute attribute) const {
  return known() ? get_ability(data, attribute) : CUDA_ERROR_INVALID_VALUE;
}

bool is_attribute(CUpointer_attribute attribute) {
  return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT &&
         attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

/// What a list of attributes holds for a pointer that the machine does not know: it is the host's.
void put_unknown(const state& machine, void* data, CUpointer_attribute attribute,
                 CUdeviceptr address) {
  const auto within = machine.space.handles->reservation(address);
  const bool reserved = within != machine.space.handles->reservations.end();
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      put<int>(data, 0);
      return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      put<int>(data, unknown_device);
      return;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      put<CUdeviceptr>(data, address);
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (reserved) put<CUdeviceptr>(data, within->first);
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (reserved) put<std::size_t>(data, within->second);
      return;
    default:
      put<std::uint64_t>(data, 0);
  }
}

}  // namespace

CUresult state::pointer_get_attribute(void* data, CUpointer_attribute attribute,
                                      CUdeviceptr address) {
  if (data == nullptr || !is_attribute(attribute)) return CUDA_ERROR_INVALID_VALUE;
  return pointee{*this, address}.get(data, attribute);
}

CUresult state::pointer_get_attributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                       CUdeviceptr address) {
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (!is_attribute(attributes[i]) || data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  const pointee target{*this, address};
  for (unsigned i = 0; i < count; ++i) {
    if (target.known()) {
      target.get(data[i], attributes[i]);
    } else {
      put_unknown(*this, data[i], attributes[i], address);
    }
  }
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
