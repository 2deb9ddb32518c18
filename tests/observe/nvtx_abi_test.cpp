// SPDX-License-Identifier: Apache-2.0
// weir's declarations of NVTX's extension for memory are those of the toolkit's header.
#include <cstddef>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtMem.h>

#include "observe/nvtx.hpp"

namespace weir::observe::nvtx { namespace {

#define WEIR_SAME(ours, our_member, theirs, their_member)                      \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member)); \
  static_assert(sizeof(ours::our_member) == sizeof(static_cast<theirs*>(nullptr)->their_member))

static_assert(version == NVTX_VERSION);
static_assert(memory_module == NVTX_EXT_MODULEID_MEM);
static_assert(memory_compatibility == NVTX_EXT_COMPATID_MEM);
static_assert(heap_register == NVTX3EXT_CBID_nvtxMemHeapRegister);
static_assert(heap_unregister == NVTX3EXT_CBID_nvtxMemHeapUnregister);
static_assert(regions_register == NVTX3EXT_CBID_nvtxMemRegionsRegister);
static_assert(regions_unregister == NVTX3EXT_CBID_nvtxMemRegionsUnregister);
static_assert(regions_name == NVTX3EXT_CBID_nvtxMemRegionsName);
static_assert(sub_allocator == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR);
static_assert(virtual_addresses == NVTX_MEM_TYPE_VIRTUAL_ADDRESS);
static_assert(ascii == NVTX_MESSAGE_TYPE_ASCII);
static_assert(by_pointer == NVTX_MEM_REGION_REF_TYPE_POINTER);

static_assert(sizeof(module_segment) == sizeof(nvtxExtModuleSegment_t));
WEIR_SAME(module_segment, slot_count, nvtxExtModuleSegment_t, slotCount);
WEIR_SAME(module_segment, slots, nvtxExtModuleSegment_t, functionSlots);
static_assert(sizeof(module_info) == sizeof(nvtxExtModuleInfo_t));
WEIR_SAME(module_info, struct_size, nvtxExtModuleInfo_t, structSize);
WEIR_SAME(module_info, module, nvtxExtModuleInfo_t, moduleId);
WEIR_SAME(module_info, compatibility, nvtxExtModuleInfo_t, compatId);
WEIR_SAME(module_info, segment_count, nvtxExtModuleInfo_t, segmentsCount);
WEIR_SAME(module_info, segments, nvtxExtModuleInfo_t, segments);
WEIR_SAME(module_info, get_export, nvtxExtModuleInfo_t, getExportFunction);

static_assert(sizeof(virtual_range) == sizeof(nvtxMemVirtualRangeDesc_t));
WEIR_SAME(virtual_range, size, nvtxMemVirtualRangeDesc_t, size);
WEIR_SAME(virtual_range, pointer, nvtxMemVirtualRangeDesc_t, ptr);
static_assert(sizeof(heap_description) == sizeof(nvtxMemHeapDesc_t));
WEIR_SAME(heap_description, compatibility, nvtxMemHeapDesc_t, extCompatID);
WEIR_SAME(heap_description, struct_size, nvtxMemHeapDesc_t, structSize);
WEIR_SAME(heap_description, usage, nvtxMemHeapDesc_t, usage);
WEIR_SAME(heap_description, type, nvtxMemHeapDesc_t, type);
WEIR_SAME(heap_description, range_size, nvtxMemHeapDesc_t, typeSpecificDescSize);
WEIR_SAME(heap_description, range, nvtxMemHeapDesc_t, typeSpecificDesc);
WEIR_SAME(heap_description, category, nvtxMemHeapDesc_t, category);
WEIR_SAME(heap_description, message_type, nvtxMemHeapDesc_t, messageType);
WEIR_SAME(heap_description, message, nvtxMemHeapDesc_t, message);
static_assert(sizeof(register_batch) == sizeof(nvtxMemRegionsRegisterBatch_t));
WEIR_SAME(register_batch, type, nvtxMemRegionsRegisterBatch_t, regionType);
WEIR_SAME(register_batch, heap, nvtxMemRegionsRegisterBatch_t, heap);
WEIR_SAME(register_batch, count, nvtxMemRegionsRegisterBatch_t, regionCount);
WEIR_SAME(register_batch, element_size, nvtxMemRegionsRegisterBatch_t, regionDescElementSize);
WEIR_SAME(register_batch, elements, nvtxMemRegionsRegisterBatch_t, regionDescElements);
WEIR_SAME(register_batch, handles, nvtxMemRegionsRegisterBatch_t, regionHandleElementsOut);
static_assert(sizeof(unregister_batch) == sizeof(nvtxMemRegionsUnregisterBatch_t));
WEIR_SAME(unregister_batch, reference_type, nvtxMemRegionsUnregisterBatch_t, refType);
WEIR_SAME(unregister_batch, count, nvtxMemRegionsUnregisterBatch_t, refCount);
WEIR_SAME(unregister_batch, element_size, nvtxMemRegionsUnregisterBatch_t, refElementSize);
WEIR_SAME(unregister_batch, elements, nvtxMemRegionsUnregisterBatch_t, refElements);
static_assert(sizeof(region_name) == sizeof(nvtxMemRegionNameDesc_t));
WEIR_SAME(region_name, reference_type, nvtxMemRegionNameDesc_t, regionRefType);
WEIR_SAME(region_name, name_type, nvtxMemRegionNameDesc_t, nameType);
WEIR_SAME(region_name, region, nvtxMemRegionNameDesc_t, region);
WEIR_SAME(region_name, name, nvtxMemRegionNameDesc_t, name);
static_assert(sizeof(name_batch) == sizeof(nvtxMemRegionsNameBatch_t));
WEIR_SAME(name_batch, count, nvtxMemRegionsNameBatch_t, regionCount);
WEIR_SAME(name_batch, element_size, nvtxMemRegionsNameBatch_t, regionElementSize);
WEIR_SAME(name_batch, elements, nvtxMemRegionsNameBatch_t, regionElements);

#undef WEIR_SAME

}  // namespace
}  // namespace weir::observe::nvtx
