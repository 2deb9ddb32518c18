// SPDX-License-Identifier: Apache-2.0
// PyTorch's hooks: CUDAPluggableAllocator and torch.cuda.MemPool.
#include "capi/guard.hpp"
#include "capi/plugin_memory.hpp"
#include "weir_plugins.h"

using namespace weir;
using namespace weir::capi;

extern "C" {

void* weir_torch_malloc(size_t size, int device, void* stream) {
  return plugin_allocate(device, size, {.native = stream});
}

void* weir_torch_malloc_or_throw(size_t size, int device, void* stream) {
  return plugin_allocate_or_throw(device, size, {.native = stream});
}

void weir_torch_free(void* pointer, size_t size, int device, void* stream) {
  static_cast<void>(size);
  // It is the one of the allocation, and may be gone by now: the driver must not be asked about it.
  static_cast<void>(stream);
  plugin_free(pointer, device);
}

void weir_torch_record_stream(void* pointer, void* stream) {
  if (pointer == nullptr) return;
  static_cast<void>(guarded([&]() -> result<void> {
    const plugin_stream user{.native = stream};
    report_unless_gone(ask_owner(plugin_current_device(), [&](const default_allocator& each) {
      return each.object->memory.record_stream(pointer, user.on(*each.object));
    }));
    return {};
  }));
}

void* weir_torch_base_alloc(void* pointer, size_t* size) {
  void* base = nullptr;
  return weir_plugin_base_range(pointer, &base, size) == weir_ok ? base : nullptr;
}

void weir_torch_empty_cache(void) { plugin_empty_caches(); }

void weir_torch_memory_fraction(double fraction, int device) {
  static_cast<void>(guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, default_allocator_of(device));
    report_unless_gone(home.object->memory.set_limit_fraction(fraction));
    return {};
  }));
}

void weir_torch_init(int device_count) {
  static_cast<void>(device_count);
  weir_runtime* runtime = nullptr;
  static_cast<void>(weir_default_runtime(&runtime));  // the first allocation says what is wrong
}
}
