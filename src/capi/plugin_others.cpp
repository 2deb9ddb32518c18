// SPDX-License-Identifier: Apache-2.0
// The hooks of CuPy and ONNX Runtime, which name no stream.
#include "capi/plugin_memory.hpp"
#include "weir_plugins.h"

using namespace weir;
using namespace weir::capi;

namespace {

constexpr plugin_stream the_threads_own{.native = nullptr, .named_by_thread = true};

}  // namespace

extern "C" {

void* weir_cupy_malloc(void* context, size_t size, int device) {
  static_cast<void>(context);
  return plugin_allocate(device, size, the_threads_own);
}

void* weir_cupy_malloc_or_throw(void* context, size_t size, int device) {
  static_cast<void>(context);
  return plugin_allocate_or_throw(device, size, the_threads_own);
}

void weir_cupy_free(void* context, void* pointer, int device) {
  static_cast<void>(context);
  plugin_free(pointer, device);
}

void* weir_ort_alloc(size_t size) {
  return plugin_allocate(plugin_requested_device(), size, the_threads_own);
}

void* weir_ort_alloc_or_throw(size_t size) {
  return plugin_allocate_or_throw(plugin_requested_device(), size, the_threads_own);
}

void weir_ort_free(void* pointer) { plugin_free(pointer, plugin_current_device()); }

void weir_ort_empty_cache(void) { plugin_empty_caches(); }
}
