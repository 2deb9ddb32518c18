/* SPDX-License-Identifier: Apache-2.0 */
/* weir_plugins.h: weir behind the allocator hooks of other programs, with their exact signatures.
 *
 * The state behind these functions lives as long as the process and needs no owner: memory comes
 * from weir_default_allocator(device), so the environment (WEIR_HEAP_POLICY, ...) or
 * weir_default_set_options() configures it. Give their addresses, or the name of libweir.so and
 * theirs, to the program:
 *
 *   torch.cuda.memory.CUDAPluggableAllocator("libweir.so", "weir_torch_malloc_or_throw",
 *                                            "weir_torch_free")
 *
 * Rules for all of them:
 *  - Any thread may call, at any time, with or without a lock of the caller's: nothing here calls
 *    back. Memory is 512-byte aligned.
 *  - Zero bytes give null. A request that fails gives null, and
 *    weir_last_error_message() describes it; those named _or_throw throw std::bad_alloc instead (in
 * fact weir::out_of_memory, whose what() has the report) and weir::failure for errors other than a
 *    lack of memory. They are for C++ callers alone: an exception must not pass through C.
 *  - Frees take memory from any of weir's process allocators. What is wrong with a free goes to the
 *    error handler (weir_set_error_handler). Frees that come when the driver is shut down already,
 *    or the device's context is gone, are silent: there is nothing left to free.
 *  - Streams are CUstream or cudaStream_t; null is the legacy stream. These allocators have the
 *    option heap_allow_unreleased_streams unless the environment or the program switches it off: a
 * stream is queried only in calls that name it, and may be destroyed without notice once none will.
 *    weir_plugin_release_stream() and, for streams that stay, weir_watch_stream() let memory change
 *    streams sooner.
 */
#ifndef WEIR_PLUGINS_H
#define WEIR_PLUGINS_H

#include <stddef.h>
#include <stdint.h>

#include "weir.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- PyTorch ---------------------------------------------------------------------------------- */

/* As torch.cuda.MemPool's allocator: torch frees its caches and retries when it gets null. */
WEIR_C_API void* weir_torch_malloc(size_t size, int device, void* stream);
/* As the allocator of the whole program (change_current_allocator), where torch would take null for
 * memory. */
WEIR_C_API void* weir_torch_malloc_or_throw(size_t size, int device, void* stream);
/* On the stream of the allocation, which is the one that torch hands in and which may be gone by
 * now. The size is not checked: torch hands in what it rounded. */
WEIR_C_API void weir_torch_free(void* pointer, size_t size, int device, void* stream);
/* For set_record_stream_fn. Without it memory used on further streams is reused too early. */
WEIR_C_API void weir_torch_record_stream(void* pointer, void* stream);
/* For set_base_alloc_fn: where the block begins that `pointer` lies in, and its size. Null if it is
 * none of weir's. */
WEIR_C_API void* weir_torch_base_alloc(void* pointer, size_t* size);
/* For set_reset_fn: torch.cuda.empty_cache(). */
WEIR_C_API void weir_torch_empty_cache(void);
/* For set_memory_fraction_fn: torch.cuda.set_per_process_memory_fraction(). */
WEIR_C_API void weir_torch_memory_fraction(double fraction, int device);
/* For set_init_fn: opens the driver, so that the first allocation need not. */
WEIR_C_API void weir_torch_init(int device_count);

/* --- CuPy ------------------------------------------------------------------------------------- */

/* For cupy.cuda.memory.CFunctionAllocator; `context` is not used. CuPy says no stream: memory
 * belongs to the one that weir_plugin_set_stream() named, and is freed on that. CuPy below 14.1
 * takes null for memory and cannot be thrown at: ask for memory from Python there. */
WEIR_C_API void* weir_cupy_malloc(void* context, size_t size, int device);
WEIR_C_API void* weir_cupy_malloc_or_throw(void* context, size_t size, int device);
WEIR_C_API void weir_cupy_free(void* context, void* pointer, int device);

/* --- ONNX Runtime ----------------------------------------------------------------------------- */

/* For gpu_external_alloc, gpu_external_free and gpu_external_empty_cache: the device is the calling
 * thread's current one (that of its CUDA context; 0 if it has none), the stream as with CuPy. */
WEIR_C_API void* weir_ort_alloc(size_t size);
WEIR_C_API void* weir_ort_alloc_or_throw(size_t size);
WEIR_C_API void weir_ort_free(void* pointer);
WEIR_C_API void weir_ort_empty_cache(void);

/* --- For all of them -------------------------------------------------------------------------- */

/* The stream that requests of the calling thread on this device are for, where the hook says none.
 * The legacy stream until it is set; null sets it back. A stream that is set must live until
 * another is. weir_error_no_device; weir_error_bad_stream: it is of another device. */
WEIR_C_API weir_error weir_plugin_set_stream(int32_t device, void* stream);
/* `stream` is about to be destroyed: what was freed on it is free for every stream once its work is
 * done, and not only once the whole device was seen idle. */
WEIR_C_API weir_error weir_plugin_release_stream(int32_t device, void* stream);
/* What a new request could get (free on the device, or cached by weir), and the device's total. */
WEIR_C_API weir_error weir_plugin_get_memory(int32_t device, size_t* free, size_t* total);
/* As weir_torch_base_alloc, for any hook that needs a range. weir_error_foreign_pointer. */
WEIR_C_API weir_error weir_plugin_base_range(const void* pointer, void** base, size_t* size);

#ifdef __cplusplus
}
#endif

#endif
