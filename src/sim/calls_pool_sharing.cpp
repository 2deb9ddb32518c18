// SPDX-License-Identifier: Apache-2.0
// Driver calls: pools and their allocations in other processes.
#include <fcntl.h>

#include <cstring>

#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult pool_set::import(int descriptor, CUmemoryPool* handle) {
  std::string text;
  std::uint64_t size = 0;
  pool_note note;
  // The driver has no better word for a descriptor that is not a pool's.
  if (!physical::read_note(descriptor, text, size) || !pool_note::decode(text, note)) {
    return CUDA_ERROR_UNKNOWN;
  }
  for (const auto& known : imported_) {
    if (known->nonce() != note.nonce) continue;
    ++known->references;
    *handle = known->handle;
    return CUDA_SUCCESS;
  }
  if (!machine_.valid_device(note.device)) return CUDA_ERROR_INVALID_DEVICE;
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  auto created = imported_pool::create(machine_, note, physical::adopt(own, size));
  if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
  imported_.push_back(created);
  imported_pool& added = *created;
  added.handle = imported_handles_.insert(std::move(created));
  *handle = added.handle;
  return CUDA_SUCCESS;
}

CUresult state::mem_pool_export_to_shareable_handle(void* shareable, CUmemoryPool pool,
                                                    CUmemAllocationHandleType type,
                                                    unsigned long long flags) {
  auto* const exported_pool = pools->find(pool);
  if (shareable == nullptr || exported_pool == nullptr || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((exported_pool->handle_types() & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  // There is no fabric channel, and a pool that asked for one exports nothing at all.
  if ((exported_pool->handle_types() & CU_MEM_HANDLE_TYPE_FABRIC) != 0)
    return CUDA_ERROR_NOT_PERMITTED;
  physical* const pages = exported_pool->store();
  if (pages == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const pool_note note{.nonce = exported_pool->nonce(), .device = exported_pool->device()};
  if (!pages->write_note(note.encode())) return CUDA_ERROR_OPERATING_SYSTEM;
  const int descriptor = ::fcntl(pages->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(shareable, &descriptor, sizeof(descriptor));
  exported_pool->exported = true;
  return CUDA_SUCCESS;
}

CUresult state::mem_pool_import_from_shareable_handle(CUmemoryPool* pool, void* shareable,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags) {
  if (pool == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return pools->import(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)), pool);
}

CUresult state::mem_pool_export_pointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  auto* const owner = pools->holding(address);
  if (data == nullptr || owner == nullptr || !owner->exported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const block* const allocated = owner->find(address);
  if (allocated == nullptr || allocated->address != address) return CUDA_ERROR_INVALID_VALUE;
  *data =
      pool_pointer{
          .nonce = owner->nonce(), .offset = address - owner->base(), .size = allocated->requested}
          .encode();
  return CUDA_SUCCESS;
}

CUresult state::mem_pool_import_pointer(CUdeviceptr* address, CUmemoryPool pool,
                                        CUmemPoolPtrExportData* data) {
  auto* const source = pools->find_imported(pool);
  pool_pointer pointer;
  if (address == nullptr || source == nullptr || data == nullptr ||
      !pool_pointer::decode(*data, pointer)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return source->import(pointer, address);
}

}}}  // namespace weir::v0::sim
