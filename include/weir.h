/* SPDX-License-Identifier: Apache-2.0 */
/* weir.h: the C interface of weir, also for other languages that can call C.
 *
 * The rules of this interface; docs/c.md is the guide to it:
 *  - A call that can fail returns a weir_error; weir_ok is 0. A failed call does not change its
 *    output parameters, except the pointer of an allocation, which becomes null.
 *    weir_last_error_message() then describes the failure, for the calling thread.
 *  - No call throws, prints or aborts, unless a handler of the user does
 *    (weir_allocator_set_out_of_memory_handler).
 *  - Handles are unique numbers in the form of pointers. Null instead of an object, a closed
 * handle, a handle of another kind and an arbitrary pointer are errors, not undefined behaviour.
 * Closing null does nothing; closing twice is weir_error_closed.
 *  - Any thread may make any call. A handle may be closed while another thread uses it: that call
 *    finishes first, later ones fail. Objects keep alive what they depend on: runtimes, streams and
 *    allocators may be closed in any order.
 *  - Structures begin with struct_size, which the caller sets to sizeof the structure. New members
 *    are only added at the end, so programs and libraries of different versions work together. In
 * an array each element has it, and that of the first one is the distance between elements.
 *  - Texts are written to a buffer of the caller, cut to `capacity` with a null character at the
 * end. `length`, if not null, receives the length of the whole text without it. A capacity of 0
 *    queries the length only.
 *  - A null weir_stream* is the legacy stream of the device that the call is about. Sizes are in
 *    bytes.
 *  - Error numbers, members and signatures never change their meaning within a major version.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WEIR_C_API __attribute__((visibility("default")))
#else
#define WEIR_C_API
#endif

/* Before a function that will be removed; `instead` says what replaces it. A program that defines
 * WEIR_NO_DEPRECATION_WARNINGS is not warned. */
#if defined(__GNUC__) && !defined(WEIR_NO_DEPRECATION_WARNINGS)
#define WEIR_C_DEPRECATED(instead) __attribute__((deprecated(instead)))
#else
#define WEIR_C_DEPRECATED(instead)
#endif

/* NOLINTBEGIN(modernize-use-using): this is C */
#ifdef __cplusplus
extern "C" {
#endif

/* --- Version ---------------------------------------------------------------------------------- */

/* The version of this header; weir_version() is that of the library. 1.2.3 is 10203. */
#define WEIR_VERSION_MAJOR 0
/* The second number of the version. */
#define WEIR_VERSION_MINOR 1
/* The third number of the version. */
#define WEIR_VERSION_PATCH 0
/* One number that grows with every release: 1.2.3 is 10203. */
#define WEIR_VERSION (WEIR_VERSION_MAJOR * 10000 + WEIR_VERSION_MINOR * 100 + WEIR_VERSION_PATCH)

/* The version of the library, as WEIR_VERSION. */
WEIR_C_API int32_t weir_version(void);
/* "0.1.0". */
WEIR_C_API const char* weir_version_text(void);

/* --- Errors ----------------------------------------------------------------------------------- */

/* weir_ok, or one of weir_error_<name>; weir/base/errc.def is the list, which only ever grows:
 *
 *   1 invalid_argument   an argument has a value that the call does not accept
 *   2 size_overflow      the size does not fit in the address space
 *   3 bad_alignment      the alignment must be a power of two in the call's range
 *   4 out_of_memory      not enough memory for the request
 *   5 limit_exceeded     the request would exceed a configured limit
 *   6 foreign_pointer    the pointer does not belong to this object
 *   7 double_free        the memory was already freed
 *   8 already_freed      this owner's memory was already freed or released
 *   9 bad_stream         the stream is destroyed or belongs to another device
 *  10 not_ready          the work has not finished
 *  11 capture_forbidden  the call is not allowed during a stream capture
 *  12 capture_invalid    the stream capture was invalidated, or a forked stream was not joined
 *  13 driver_unavailable no usable driver was found on this machine
 *  14 driver_too_old     the driver is too old for weir
 *  15 symbol_missing     the driver lacks a function that weir needs
 *  16 driver_gone        the driver was shut down, or this is a forked child process
 *  17 no_device          the device does not exist
 *  18 device_lost        the device failed and must be reset
 *  19 not_supported      the device or the driver does not support this
 *  20 not_permitted      the operation is not permitted
 *  21 invalid_handle     the handle is unknown to the driver
 *  22 not_mapped         the address range is not mapped
 *  23 already_mapped     the address range is already mapped
 *  24 not_found          the named object does not exist
 *  25 bad_option         unknown option or invalid value
 *  26 bad_version        the other side uses another version
 *  27 peer_closed        the other process closed the connection or ended
 *  28 system             a system call failed
 *  29 driver_error       the driver reported an error
 *  30 internal           internal invariant violated; please report this
 *  31 still_live         memory was still live when its owner was closed
 *  32 closed             the object is closed
 *  33 moved_from         the object is empty or was moved from
 *  34 no_host_memory     the host is out of memory
 *  35 suspended          the memory is suspended
 *  36 memory_damaged     memory corruption: bytes outside a live allocation were overwritten
 */
typedef int32_t weir_error;
enum {
  weir_ok = 0,
/* One row of errc.def as an enumerator. */
#define WEIR_ERRC(name, value, meaning) weir_error_##name = value,
#include "weir/base/errc.def"
#undef WEIR_ERRC
};

/* "out_of_memory"; "ok" for weir_ok; "unknown" for a number outside the list. */
WEIR_C_API const char* weir_error_name(weir_error code);
/* The meaning in one line. */
WEIR_C_API const char* weir_error_meaning(weir_error code);

/* The message of the calling thread's last failed call, with the driver call, its native code and
 * the sizes involved; "" before the first. Valid until the thread's next failing call. Cut at 1023
 * bytes. */
WEIR_C_API const char* weir_last_error_message(void);
/* The driver's own result code of that failure; 0 if no driver call was involved. */
WEIR_C_API int32_t weir_last_error_native(void);
/* How many failures that no call can return occurred since the process began. */
WEIR_C_API uint64_t weir_reported_errors(void);

/* Called for each of those, on the thread that found it, possibly with weir's locks held: it must
 * return, and must not call weir. The message is valid during the call. */
typedef void (*weir_error_handler)(void* context, weir_error code, const char* message);
/* Replaces the process's handler; null removes it. A call of the old one that began on another
 * thread may still be running when this returns. */
WEIR_C_API void weir_set_error_handler(weir_error_handler handler, void* context);
/* From now on such failures are written to standard error if no handler is set and neither the
 * option print_errors nor WEIR_PRINT_ERRORS says otherwise. A program that includes this header and
 * is compiled without NDEBUG calls it before main(). */
WEIR_C_API void weir_mark_debug_program(void);
#include "weir_debug_program.h"

/* --- Options ---------------------------------------------------------------------------------- */

/* A row of the table of options. The texts are valid until the process ends. */
typedef struct weir_option_info {
  uint32_t struct_size;    /* sizeof this structure, set by the caller */
  uint32_t reserved;       /* 0 */
  const char* name;        /* "heap_limit" */
  const char* type;        /* "size", "whole number", "switch", "choice", "duration", "text" */
  const char* initial;     /* as in a list of options */
  const char* values;      /* "1 to 16", "auto, cuda, sim"; "" if the type allows every value */
  const char* unit;        /* "devices", "bytes"; may be "" */
  const char* environment; /* the variable that sets it */
  const char* meaning;     /* one or two sentences, for people */
} weir_option_info;

/* The number of options. */
WEIR_C_API uint32_t weir_option_count(void);
/* Options count from 0; weir_error_not_found beyond the last. */
WEIR_C_API weir_error weir_option_get_info(uint32_t index, weir_option_info* info);
/* The value of the option `name` in the list `options`, or its initial value if the list does not
 * contain it. weir_error_bad_option: the option is unknown, or the list is invalid. */
WEIR_C_API weir_error weir_option_get_value(const char* options, const char* name, char* text,
                                            uint64_t capacity, uint64_t* length);

/* --- Runtimes --------------------------------------------------------------------------------- */

/* A driver with its devices: a real or a simulated one. */
typedef struct weir_runtime weir_runtime;

/* Opens a runtime. `options` is a list "name=value,name=value" as docs/options.md describes, for
 * instance "runtime=sim,sim_devices=2". An option that it does not name has the value of its
 * variable (WEIR_RUNTIME, ...) or its initial value. A variable that cannot be read is reported
 * once and counts as unset. */
WEIR_C_API weir_error weir_runtime_open(const char* options, weir_runtime** runtime);

/* The same, but a variable that cannot be read is weir_error_bad_option. */
WEIR_C_API weir_error weir_runtime_open_from_environment(const char* options,
                                                         weir_runtime** runtime);

/* Closes a runtime. Closing null does nothing; closing twice is weir_error_closed. */
WEIR_C_API weir_error weir_runtime_close(weir_runtime* runtime);

/* What a runtime is. */
typedef struct weir_runtime_info {
  uint32_t struct_size;   /* sizeof this structure, set by the caller */
  int32_t driver_version; /* 13000 is CUDA 13.0 */
  int32_t device_count;   /* the devices are numbered from 0 */
  char driver[260]; /* the library that was opened, or "simulated"; for people, cut if longer */
} weir_runtime_info;

/* What was opened. */
WEIR_C_API weir_error weir_runtime_get_info(weir_runtime* runtime, weir_runtime_info* info);

/* --- Devices ---------------------------------------------------------------------------------- */

/* The capabilities of a device: bits of weir_device_info.features. */
enum {
  weir_device_unified_addressing = 1 << 0,
  weir_device_virtual_memory = 1 << 1,
  weir_device_memory_pools = 1 << 2,
  weir_device_managed_memory = 1 << 3,
  weir_device_concurrent_managed_access = 1 << 4,
  weir_device_posix_descriptors = 1 << 5,
  weir_device_fabric_handles = 1 << 6,
  weir_device_rdma = 1 << 7,
  weir_device_has_uuid = 1 << 8
};

/* What a device is. */
typedef struct weir_device_info {
  uint32_t struct_size;    /* sizeof this structure, set by the caller */
  uint32_t features;       /* weir_device_... */
  uint64_t total_memory;   /* bytes */
  uint64_t granularity;    /* bytes: the unit of physical memory; 0 without virtual memory */
  int32_t compute_major;   /* 9 for compute capability 9.0 */
  int32_t compute_minor;   /* 0 for compute capability 9.0 */
  int32_t multiprocessors; /* number of multiprocessors */
  char name[100];          /* cut if longer */
  char pci_bus_id[16];     /* "0000:18:00.0" */
  uint8_t uuid[16];        /* only with weir_device_has_uuid */
} weir_device_info;

/* Devices count from 0 to device_count - 1; any other number is weir_error_no_device. */
WEIR_C_API weir_error weir_device_get_info(weir_runtime* runtime, int32_t device,
                                           weir_device_info* info);

/* The free and the total memory of a device, in bytes, for all processes together. Creates the
 * device's context. Either pointer may be null. */
WEIR_C_API weir_error weir_device_get_memory(weir_runtime* runtime, int32_t device, uint64_t* free,
                                             uint64_t* total);

/* Waits for all work of the device's context. Not allowed while a stream is being captured. */
WEIR_C_API weir_error weir_device_synchronize(weir_runtime* runtime, int32_t device);

/* The priorities that streams may have; a smaller number goes first. Either pointer may be null. */
WEIR_C_API weir_error weir_device_get_stream_priorities(weir_runtime* runtime, int32_t device,
                                                        int32_t* least, int32_t* greatest);
/* Whether `device` can reach the memory of `other`: 1 or 0. */
WEIR_C_API weir_error weir_device_can_access_peer(weir_runtime* runtime, int32_t device,
                                                  int32_t other, int32_t* can_access);
/* Lets `device` reach plain memory of `other` (enabled = 1), or not (0). Memory of allocators has
 * weir_allocator_enable_peer, memory of pools weir_stream_pool_set_peer. */
WEIR_C_API weir_error weir_device_set_peer_access(weir_runtime* runtime, int32_t device,
                                                  int32_t other, int32_t enabled);

/* --- Streams ---------------------------------------------------------------------------------- */

/* A stream that weir owns, or a reference to any other stream. It knows the stream's number, so
 * that allocations through it need no driver call. */
typedef struct weir_stream weir_stream;

enum {
  weir_stream_blocking =
      1 << 0 /* synchronises with the legacy stream; otherwise it runs independently of it */
};

/* A smaller priority runs first; one out of the device's range is clamped to it. */
WEIR_C_API weir_error weir_stream_create(weir_runtime* runtime, int32_t device, uint32_t flags,
                                         int32_t priority, weir_stream** stream);
/* A reference to a CUstream or cudaStream_t, which must live as long as this; null is the legacy
 * stream, (void*)2 the calling thread's own default stream. Call weir_unwatch_stream before such a
 * stream is destroyed, because querying a destroyed stream crashes the driver.
 * weir_error_bad_stream: it belongs to another device; weir_error_capture_forbidden: it is being
 * captured, and its number cannot be queried now. */
WEIR_C_API weir_error weir_stream_wrap(weir_runtime* runtime, int32_t device, void* native,
                                       weir_stream** stream);
/* Another handle of the same stream, which stays valid after the first one is closed. */
WEIR_C_API weir_error weir_stream_duplicate(weir_stream* stream, weir_stream** duplicate);
/* Closes a handle. With the last handle weir's own stream is destroyed; queued work is still
 * executed. A wrapped stream is not affected. */
WEIR_C_API weir_error weir_stream_close(weir_stream* stream);

/* The CUstream. */
WEIR_C_API weir_error weir_stream_get_native(weir_stream* stream, void** native);
/* The driver's number of the stream, unique in the process. */
WEIR_C_API weir_error weir_stream_get_id(weir_stream* stream, uint64_t* id);
/* Waits until all work queued so far is complete. */
WEIR_C_API weir_error weir_stream_synchronize(weir_stream* stream);
/* Whether all work queued so far is complete: 1 or 0. */
WEIR_C_API weir_error weir_stream_is_complete(weir_stream* stream, int32_t* complete);

enum {
  weir_capture_none = 0,
  weir_capture_active = 1,
  weir_capture_invalidated = 2, /* the capture must be ended */
  weir_capture_implicit = 3 /* the legacy stream, while one that synchronises with it captures */
};
/* Whether the stream is being captured (weir_capture_...), and the capture's number, 0 if not.
 * Never disturbs a capture. `id` may be null. */
WEIR_C_API weir_error weir_stream_get_capture(weir_stream* stream, int32_t* status, uint64_t* id);

/* From now on every allocator and pool of the device counts the stream's work before freed memory
 * leaves its stream, though no request may ever name it. Streams that were named in requests and
 * frees, and those of weir_stream_create, count without this. Watching twice is watching once; it
 * outlasts the handle. The stream must not be null here and in the next: it says which device.
 * weir_error_bad_stream: a thread's default stream. */
WEIR_C_API weir_error weir_watch_stream(weir_stream* stream);
/* The stream will not be used any more: its last work is counted, and it is never queried again.
 * Needed before a stream is destroyed that is watched, or that weir did not create and an allocator
 * or pool has met: the same as release_stream of all of them. */
WEIR_C_API weir_error weir_unwatch_stream(weir_stream* stream);

/* --- Events ----------------------------------------------------------------------------------- */

/* A mark that is recorded after the work queued on a stream, and complete when that work is. */
typedef struct weir_event weir_event;

enum {
  weir_event_timing = 1 << 0,       /* needed by weir_event_get_elapsed */
  weir_event_interprocess = 1 << 1, /* can be shared with another process; excludes timing */
  weir_event_blocking_sync = 1 << 2 /* synchronize sleeps instead of spinning */
};

/* A new event of the device; flags are weir_event_... bits. */
WEIR_C_API weir_error weir_event_create(weir_runtime* runtime, int32_t device, uint32_t flags,
                                        weir_event** event);
/* Closes an event; it may be incomplete. */
WEIR_C_API weir_error weir_event_close(weir_event* event);
/* A null stream is the legacy stream of the event's device. */
WEIR_C_API weir_error weir_event_record(weir_event* event, weir_stream* stream);
/* Behind all work that is queued in the device's context, on any stream. Fails while a stream of
 * the context is being captured, and breaks that capture. weir_error_not_supported: the driver is
 * older than CUDA 12.5. */
WEIR_C_API weir_error weir_event_record_all(weir_event* event);
/* Whether the work before the mark is complete: 1 or 0. An event that was never recorded counts as
 * complete. During a capture in the process this call invalidates the capture, unless the thread's
 * capture mode is relaxed. */
WEIR_C_API weir_error weir_event_is_complete(weir_event* event, int32_t* complete);
WEIR_C_API weir_error weir_event_synchronize(weir_event* event);
/* The time between two marks of timing events. weir_error_not_ready: one is not complete. */
WEIR_C_API weir_error weir_event_get_elapsed(weir_event* from, weir_event* to, float* milliseconds);
/* The CUevent. */
WEIR_C_API weir_error weir_event_get_native(weir_event* event, void** native);
/* Work queued on `stream` from now on waits for the last record of the event. A null stream is the
 * legacy stream of the event's device. */
WEIR_C_API weir_error weir_stream_wait(weir_stream* stream, weir_event* event);

/* --- Counters --------------------------------------------------------------------------------- */

/* An amount, and the most it has been since the peaks were last reset. */
typedef struct weir_gauge {
  uint64_t current; /* the amount now */
  uint64_t peak;    /* the most since the peaks were last reset */
} weir_gauge;

/* What an allocator, one of its pools or one tag holds; docs/stats.md explains each number. Always,
 * for current values (a consistent snapshot) and for peaks: requested <= allocated <= active <=
 * reserved, if nothing was suspended; otherwise weir_suspend_stats has the bound. */
typedef struct weir_memory_stats {
  uint32_t struct_size;      /* sizeof this structure, set by the caller */
  uint32_t reserved_0;       /* 0 */
  weir_gauge requested;      /* allocated and not freed, as requested */
  weir_gauge allocated;      /* the same, rounded to whole blocks */
  weir_gauge active;         /* allocated, and freed memory that other streams may still use */
  weir_gauge reserved;       /* physical memory taken from the driver */
  weir_gauge blocks;         /* live blocks, a count */
  uint64_t cached;           /* reserved - active */
  uint64_t thread_cached;    /* of cached: held by threads for their next request */
  uint64_t pending;          /* active - allocated */
  uint64_t stream_bound;     /* of cached: free only for the stream that used it last */
  uint64_t allocations;      /* successful ones */
  uint64_t frees;            /* successful ones */
  uint64_t hits;             /* allocations served by the thread's cache */
  uint64_t failures;         /* allocations that ended out of memory or at a limit */
  uint64_t handles_created;  /* physical handles or segments taken from the driver */
  uint64_t handles_moved;    /* mapped at another address */
  uint64_t handles_returned; /* moved back to a retained mapping */
  uint64_t handles_released; /* released to the driver */
  uint64_t waits;            /* queued on a stream so that it could reuse memory */
  uint64_t events;           /* recorded to know when memory is free for others */
  uint64_t metadata;         /* host memory of the bookkeeping tables */
  uint64_t heap_hits; /* allocations served by free memory of the heap, without a driver call */
  uint64_t misses;    /* the other ones: the driver was called to reserve, map or wait */
  weir_gauge active_requested; /* requested, with the freed memory that is in active */
  weir_gauge active_blocks;    /* blocks, with the freed ones that are in active */
} weir_memory_stats;

/* --- Tags ------------------------------------------------------------------------------------- */

/* The tag of a name, by number; 0 is no tag. The number does not change while the process runs.
 * weir_error_invalid_argument: the name is empty or longer than 255 bytes;
 * weir_error_limit_exceeded: the process has 1024 names. */
WEIR_C_API weir_error weir_tag_named(const char* name, uint32_t* tag);
/* Valid until the process ends; "" for tag 0, null for an unknown number. */
WEIR_C_API const char* weir_tag_name(uint32_t tag);
/* Sets the tag of the calling thread's allocations. `previous`, if not null, is the tag before:
 * restore it at the end of your scope. */
WEIR_C_API weir_error weir_tag_set_current(uint32_t tag, uint32_t* previous);

/* --- The caching allocator -------------------------------------------------------------------- */

/* Memory of one device for any thread and any stream; docs/allocator.md explains how it works.
 *
 * Order: work queued on a stream after the allocation may use the memory; work queued on a stream
 * before the free may still use it. If further streams used it, call record_stream before the free,
 * or make the stream of the free wait for them. Freed memory leaves its stream only when all work
 * is complete that was queued by then on any known stream (weir_watch_stream); with the option
 * heap_crossing=declared_uses, only the declared uses.
 *
 * Cost: allocations and frees of recently used sizes take no lock, write nothing that threads share
 * and make no driver call; finding the objects behind the handles adds a few nanoseconds. */
typedef struct weir_allocator weir_allocator;

/* `options` is a list of which those that begin with heap_, record, live and budget count. An
 * option that it does not name has the value of its variable (WEIR_HEAP_LIMIT, ...) or its initial
 * value, as for weir_runtime_open(). weir_error_not_supported: the device lacks virtual memory and
 * the policy needs it. */
WEIR_C_API weir_error weir_allocator_create(weir_runtime* runtime, int32_t device,
                                            const char* options, weir_allocator** allocator);
/* The same, with the variables of the environment between the initial values and `options`. */
WEIR_C_API weir_error weir_allocator_create_from_environment(weir_runtime* runtime, int32_t device,
                                                             const char* options,
                                                             weir_allocator** allocator);
/* Releases all memory, after waiting for the streams, and reports live blocks to the error handler
 * (weir_error_still_live). Running calls of other threads finish first or return weir_error_closed.
 * The handle is closed also after a failure; the first failure is returned.
 * weir_error_not_permitted: the process's default allocator. */
WEIR_C_API weir_error weir_allocator_close(weir_allocator* allocator);
/* The number of its device. */
WEIR_C_API weir_error weir_allocator_get_device(weir_allocator* allocator, int32_t* device);

/* Zero bytes give a null pointer and weir_ok. On failure *pointer is null. The alignment is 512, or
 * the one requested: a power of two up to 2 MiB. */
WEIR_C_API weir_error weir_allocator_allocate(weir_allocator* allocator, uint64_t size,
                                              weir_stream* stream, void** pointer);
WEIR_C_API weir_error weir_allocator_allocate_aligned(weir_allocator* allocator, uint64_t size,
                                                      uint64_t alignment, weir_stream* stream,
                                                      void** pointer);
/* The same, but only from memory that is free for the stream now: no driver call, no wait, no new
 * memory. weir_error_not_found: no such memory; the out-of-memory handler is not called. */
WEIR_C_API weir_error weir_allocator_allocate_cached(weir_allocator* allocator, uint64_t size,
                                                     weir_stream* stream, void** pointer);
/* The size of the block that a request of `size` bytes gets: the next multiple of 512.
 * weir_error_size_overflow: it does not fit. */
WEIR_C_API weir_error weir_allocator_rounded_size(uint64_t size, uint64_t* rounded);
/* The size of the segment that a request of `size` bytes takes under PyTorch's rules, which pools
 * with segments and the classic policies follow. */
WEIR_C_API weir_error weir_segment_size(uint64_t size, uint64_t* segment);
/* Freeing null does nothing. weir_error_foreign_pointer: not the start of a block of this
 * allocator; weir_error_double_free; weir_error_bad_stream: a stream of another device. */
WEIR_C_API weir_error weir_allocator_deallocate(weir_allocator* allocator, void* pointer,
                                                weir_stream* stream);
/* Also checks that `size` is the requested size: weir_error_invalid_argument if not; the block is
 * freed anyway. */
WEIR_C_API weir_error weir_allocator_deallocate_sized(weir_allocator* allocator, void* pointer,
                                                      uint64_t size, weir_stream* stream);
/* Frees on the stream that the block was allocated for. */
WEIR_C_API weir_error weir_allocator_free(weir_allocator* allocator, void* pointer);
/* Declares that work queued on `stream` until the free may use the block, too. */
WEIR_C_API weir_error weir_allocator_record_stream(weir_allocator* allocator, void* pointer,
                                                   weir_stream* stream);

/* For a block that was freed and waits for recorded streams: what they do with it comes before
 * everything that the stream of the free does from now on, so that stream may have it at once.
 * `found` is 0 if there is no such block. */
WEIR_C_API weir_error weir_allocator_assume_joined(weir_allocator* allocator, const void* pointer,
                                                   int32_t* found);
/* Kernels and copies of another device of the runtime may use all memory of the allocator, for
 * good. */
WEIR_C_API weir_error weir_allocator_enable_peer(weir_allocator* allocator, int32_t device);

/* The same for a CUstream without a handle of weir's: two driver calls more (50 ns), because the
 * driver recycles its handles. Null is the legacy stream, (void*)2 the thread's own default. */
WEIR_C_API weir_error weir_allocator_allocate_native(weir_allocator* allocator, uint64_t size,
                                                     void* native_stream, void** pointer);
WEIR_C_API weir_error weir_allocator_deallocate_native(weir_allocator* allocator, void* pointer,
                                                       void* native_stream);
WEIR_C_API weir_error weir_allocator_record_stream_native(weir_allocator* allocator, void* pointer,
                                                          void* native_stream);

/* The requested size of the block that begins there. */
WEIR_C_API weir_error weir_allocator_size_of(weir_allocator* allocator, const void* pointer,
                                             uint64_t* size);

enum {
  weir_block_live = 0,          /* allocated and not freed */
  weir_block_thread_cached = 1, /* freed, kept by a thread for its next request */
  weir_block_pending = 2,       /* freed, but a recorded stream may still use it */
  weir_block_stream_bound = 3,  /* free for the stream that used it last */
  weir_block_free = 4,          /* free for every stream */
  weir_block_hole = 5           /* addresses without memory of their own */
};

/* A piece of the address space. */
typedef struct weir_block_info {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  int32_t state;        /* weir_block_... */
  uint64_t address;     /* of the first byte */
  uint64_t size;        /* rounded */
  uint64_t requested;   /* only of live blocks */
  uint64_t stream;      /* number of the stream it was allocated for, or is bound to; 0: none */
  uint32_t pool;        /* number; 0 is the allocator's own */
  uint32_t tag;         /* only of live blocks */
} weir_block_info;

/* The live block that contains `address`. weir_error_foreign_pointer: no such block. */
WEIR_C_API weir_error weir_allocator_find_block(weir_allocator* allocator, const void* address,
                                                weir_block_info* block);

/* The further streams of the block at `address`, by their numbers: of a live block those that
 * record_stream named, of a freed one those that it still waits for. At most `capacity` are
 * written; `count` is how many there are. Takes a snapshot. weir_error_foreign_pointer: no block
 * begins there.
 */
WEIR_C_API weir_error weir_allocator_get_block_streams(weir_allocator* allocator,
                                                       const void* address, uint64_t* streams,
                                                       uint64_t capacity, uint64_t* count);

/* The counters, exact, as a consistent snapshot. Stops all threads' caches for some microseconds.
 */
WEIR_C_API weir_error weir_allocator_get_stats(weir_allocator* allocator, weir_memory_stats* stats);
/* The counters of one tag. */
WEIR_C_API weir_error weir_allocator_get_tag_stats(weir_allocator* allocator, uint32_t tag,
                                                   weir_memory_stats* stats);
/* The counters of one tag. */
typedef struct weir_tag_stats {
  uint32_t struct_size;    /* sizeof this structure, set by the caller */
  uint32_t tag;            /* the number of the tag */
  weir_memory_stats stats; /* its own struct_size is set by the call */
} weir_tag_stats;
/* The counters of all used tags: at most `capacity` of them, the most memory first; `count` is the
 * number of all. `tags` may be null if the capacity is 0. */
WEIR_C_API weir_error weir_allocator_get_stats_by_tag(weir_allocator* allocator,
                                                      weir_tag_stats* tags, uint64_t capacity,
                                                      uint64_t* count);
/* Sets every peak to the current value, also of pools and tags. */
WEIR_C_API weir_error weir_allocator_reset_peaks(weir_allocator* allocator);
/* Sets the counters (allocations, frees, hits, misses, failures, handles, waits, events) to 0, also
 * of pools and tags. */
WEIR_C_API weir_error weir_allocator_reset_counters(weir_allocator* allocator);
/* The out-of-memory report of such a request now: what holds the memory, and what would help, in a
 * few lines. */
WEIR_C_API weir_error weir_allocator_explain(weir_allocator* allocator, uint64_t size,
                                             weir_stream* stream, char* text, uint64_t capacity,
                                             uint64_t* length);
/* A description of an address, for tools and debuggers: "0x7f0000000405 is 6 bytes after a live
 * block: ...", with the block's call stacks if they are recorded (heap_debug_stacks). Under
 * heap_debug also for guards, red zones and freed blocks. weir_error_foreign_pointer: the address
 * is not memory of the allocator. */
WEIR_C_API weir_error weir_allocator_describe_address(weir_allocator* allocator,
                                                      const void* address, char* text,
                                                      uint64_t capacity, uint64_t* length);

/* Releases idle memory to the driver until at most `keep` bytes are reserved; does not wait for
 * streams. `released`, if not null, is how much was released. */
WEIR_C_API weir_error weir_allocator_trim(weir_allocator* allocator, uint64_t keep,
                                          uint64_t* released);
/* Waits for the streams, then releases all memory that is not live. */
WEIR_C_API weir_error weir_allocator_empty_cache(weir_allocator* allocator, uint64_t* released);
/* Until at most `keep` bytes are reserved: waits for the work that may use cached memory, and then
 * evicts what is evictable, the lowest priority first. */
WEIR_C_API weir_error weir_allocator_shrink(weir_allocator* allocator, uint64_t keep,
                                            uint64_t* released);
/* Declares that `stream` will not be used any more. Needed before a stream is destroyed that weir
 * did not create; weir_unwatch_stream does it for all allocators and pools. */
WEIR_C_API weir_error weir_allocator_release_stream(weir_allocator* allocator, weir_stream* stream);

/* As a limit or threshold: no limit. */
#define WEIR_NO_LIMIT UINT64_MAX

/* Limits the physical memory; WEIR_NO_LIMIT removes the limit. Memory above it stays until it is
 * freed. If the allocator has a share of its card's budget (option `budget`), the smaller of this
 * and of the share's ceiling applies. */
WEIR_C_API weir_error weir_allocator_set_limit(weir_allocator* allocator, uint64_t limit);
/* As a fraction of the device's memory, above 0 and at most 1. */
WEIR_C_API weir_error weir_allocator_set_limit_fraction(weir_allocator* allocator, double fraction);
/* The limit in effect: the smaller of the two. */
WEIR_C_API weir_error weir_allocator_get_limit(weir_allocator* allocator, uint64_t* limit);
/* Limits the live memory with this tag; a request above it is weir_error_out_of_memory. */
WEIR_C_API weir_error weir_allocator_set_tag_limit(weir_allocator* allocator, uint32_t tag,
                                                   uint64_t limit);

/* --- Out of memory ---------------------------------------------------------------------------- */

/* Called to free memory because a request of `needed` bytes cannot be met, before it fails. Any
 * number of callbacks can be registered. Returns 1 if it freed something, 0 if not. Called without
 * locks on the thread that allocates; it may use the allocator, but requests made from inside do
 * not call it again. It must return: exceptions and longjmp may not leave it. */
typedef int32_t (*weir_reclaim_callback)(void* context, uint64_t needed);
typedef struct weir_callback weir_callback;
WEIR_C_API weir_error weir_allocator_on_out_of_memory(weir_allocator* allocator,
                                                      weir_reclaim_callback callback, void* context,
                                                      weir_callback** registration);
/* The same before a request takes memory from the driver, at most once for each, so that memory
 * which the callback frees is used first. Its return value is ignored. */
WEIR_C_API weir_error weir_allocator_before_growth(weir_allocator* allocator,
                                                   weir_reclaim_callback callback, void* context,
                                                   weir_callback** registration);
/* Ends the registration. A call that began on another thread may still be running. */
WEIR_C_API weir_error weir_callback_close(weir_callback* registration);

/* Called when a request has failed for want of memory (weir_error_out_of_memory), after everything
 * else was tried: by weir_allocator_allocate, _aligned
 * and _native, and by weir_pool_allocate, at their outermost edge: no lock is held, no object of
 * weir's is on the stack, weir_last_error_message() describes the failure. It may
 *  - return 1: the request is tried again (it must have freed something, or it is called forever);
 *  - return 0: the request fails with its error and a null pointer;
 *  - not return: throw a C++ exception, which passes through weir unharmed, or longjmp out.
 * One an allocator; null removes it. A call of the old one that had begun may still be running. */
typedef int32_t (*weir_out_of_memory_handler)(void* context, weir_allocator* allocator,
                                              uint64_t size, weir_error reason);
WEIR_C_API weir_error weir_allocator_set_out_of_memory_handler(weir_allocator* allocator,
                                                               weir_out_of_memory_handler handler,
                                                               void* context);

/* --- Pools of an allocator -------------------------------------------------------------------- */

/* A private pool of an allocator: memory freed to it is reused by it alone. Blocks are freed
 * through the allocator. After the handle is closed the pool takes no requests; its physical memory
 * is released when its last block is freed. */
typedef struct weir_pool weir_pool;

enum {
  weir_pool_exportable = 1 << 0, /* blocks can be shared with other processes; see Sharing */
  /* For captured graphs: its memory is never moved nor released while the handle is open, and it
   * serves streams that are being captured. */
  weir_pool_for_graphs = 1 << 1
};

/* A private pool of the allocator; flags are weir_pool_... bits. */
WEIR_C_API weir_error weir_pool_create(weir_allocator* allocator, const char* name, uint32_t flags,
                                       weir_pool** pool);
/* Closes the handle. The pool ends when its last block is freed. */
WEIR_C_API weir_error weir_pool_close(weir_pool* pool);
/* An alignment of 0 is 512. */
WEIR_C_API weir_error weir_pool_allocate(weir_pool* pool, uint64_t size, uint64_t alignment,
                                         weir_stream* stream, void** pointer);
/* A block at exactly this address, to restore the state of a snapshot. weir_error_foreign_pointer:
 * the pool has no memory there; weir_error_not_ready: part of it is in use;
 * weir_error_bad_alignment: the address is not a multiple of 512. */
WEIR_C_API weir_error weir_pool_allocate_at(weir_pool* pool, void* address, uint64_t size,
                                            weir_stream* stream);
WEIR_C_API weir_error weir_pool_get_id(weir_pool* pool, uint32_t* id);
/* While enabled (1), a request to the allocator itself for which there is no new memory gets what
 * this pool has free for its stream, before anything that is cached is released. */
WEIR_C_API weir_error weir_pool_set_fallback(weir_pool* pool, int32_t enabled);
WEIR_C_API weir_error weir_pool_get_stats(weir_pool* pool, weir_memory_stats* stats);
/* Waits for the streams, then releases the pool's free memory to the driver. */
WEIR_C_API weir_error weir_pool_empty_cache(weir_pool* pool, uint64_t* released);
/* Directs the calling thread's requests from the pool's allocator to the pool, until
 * weir_pool_leave on the same thread; calls nest. */
WEIR_C_API weir_error weir_pool_enter(weir_pool* pool);
/* Ends the latest weir_pool_enter. weir_error_invalid_argument: the thread entered no pool. */
WEIR_C_API weir_error weir_pool_leave(void);

/* --- Suspended memory ------------------------------------------------------------------------- */

/* Physical memory can be returned to the driver while its addresses and blocks stay; resuming
 * restores it at the same addresses. docs/suspend.md explains the steps, the state after a failure,
 * and the costs. Both directions do all or nothing: after an error nothing has changed, unless a
 * release failed twice; then the memory is suspended, and another call tries the release again. */

enum {
  weir_contents_keep = 0,   /* copied to the host, and back when it is resumed */
  weir_contents_discard = 1 /* lost: afterwards the contents are undefined */
};
enum {
  weir_backup_pinned = 0,  /* the device copies to it directly; slow to allocate */
  weir_backup_pageable = 1 /* plain memory, which the system may swap */
};
/* What an allocation with a suspended tag, or from a suspended pool, does. */
enum {
  weir_requests_fail = 0,  /* weir_error_suspended */
  weir_requests_wait = 1,  /* waits until another thread has resumed it */
  weir_requests_resume = 2 /* resumes it first */
};
/* Which streams weir_..._suspend_async() waits for before it releases the memory. The calls that
 * wait, and evictions, always wait for all streams. */
enum {
  /* All streams of the device. During the wait the driver blocks other threads that queue work. */
  weir_streams_all = 0,
  /* Streams that the allocator has met in requests, that were given to weir_watch_stream(), or that
   * synchronise with the legacy stream. Other threads can queue work. No other stream may still use
   * the memory. */
  weir_streams_known = 1
};

/* Reports the progress of copying contents after each chunk; in the last call `done` is `total`.
 * Called on the thread that suspends or resumes, without locks; it may use the allocator, but must
 * not wait for the memory in transfer. It must return. Not called if nothing is copied. */
typedef void (*weir_progress_callback)(void* context, uint64_t done, uint64_t total);

/* The choices of a suspension. */
typedef struct weir_suspend_options {
  uint32_t struct_size;            /* sizeof this structure, set by the caller */
  int32_t contents;                /* weir_contents_... */
  int32_t backup;                  /* weir_backup_...: the host memory that contents are kept in */
  int32_t requests;                /* weir_requests_... */
  uint64_t chunk;                  /* the most bytes that one copy has; 0: 32 MiB */
  weir_progress_callback progress; /* may be null */
  void* context;                   /* of progress */
  int32_t streams;                 /* weir_streams_...: of the calls that do not wait */
  uint32_t reserved_0;             /* 0 */
} weir_suspend_options;
/* The default choices of a suspension. */
#define WEIR_SUSPEND_OPTIONS_INIT                                                                \
  {                                                                                              \
    sizeof(weir_suspend_options), weir_contents_keep, weir_backup_pinned, weir_requests_fail, 0, \
        NULL, NULL, weir_streams_all, 0                                                          \
  }

/* The choices of a resume. */
typedef struct weir_resume_options {
  uint32_t struct_size;            /* sizeof this structure, set by the caller */
  uint32_t reserved_0;             /* 0 */
  weir_progress_callback progress; /* may be null */
  void* context;                   /* of progress */
} weir_resume_options;
/* The default choices of a resume. */
#define WEIR_RESUME_OPTIONS_INIT \
  { sizeof(weir_resume_options), 0, NULL, NULL }

/* The choices of a tag or pool that will be suspended. */
typedef struct weir_suspendable_options {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  /* 1: a request that finds no memory may suspend it before callbacks are called and before the
   * request fails. The lowest priority is evicted first; a request for evictable memory evicts only
   * lower priorities than its own. Requests to the memory resume it; resume it before its blocks
   * are used. */
  int32_t evictable;
  int32_t priority;    /* lower priorities are evicted first */
  uint32_t reserved_0; /* 0 */
  /* How it is evicted; null: contents are kept in pinned memory, and requests resume. */
  const weir_suspend_options* eviction;
} weir_suspendable_options;
/* The default choices of suspendable memory. */
#define WEIR_SUSPENDABLE_OPTIONS_INIT \
  { sizeof(weir_suspendable_options), 0, 0, 0, NULL }

/* What suspending did. All 0: it was already suspended, or had no memory. */
typedef struct weir_suspend_outcome {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t reserved_0;  /* 0 */
  uint64_t released;    /* physical memory that was returned to the driver */
  uint64_t saved;       /* contents that were copied to the host */
  uint64_t
      not_suspended; /* physical memory of pools that cannot be suspended; only if all were meant */
} weir_suspend_outcome;

/* What resuming did. All 0: it was not suspended. */
typedef struct weir_resume_outcome {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t reserved_0;  /* 0 */
  uint64_t reserved;    /* physical memory that was taken from the driver */
  uint64_t restored;    /* contents that were copied back */
} weir_resume_outcome;

/* Counters in addition to weir_memory_stats. Always, for current values and for peaks: requested <=
 * allocated <= active <= reserved_and_suspended. */
typedef struct weir_suspend_stats {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t reserved_0;  /* 0 */
  uint64_t suspended;   /* returned physical memory that resuming needs */
  /* Host memory held for contents, in use or not; of a tag or pool, the saved contents. */
  weir_gauge backup;
  weir_gauge reserved_and_suspended; /* reserved + suspended */
} weir_suspend_stats;

/* Gives the tag a private pool: from now on requests with this tag, outside captures and without a
 * pool of their own, are served from it. Earlier allocations stay where they are. Later calls
 * change the options; null means the defaults. weir_error_invalid_argument: tag 0, or a chunk below
 * 512 bytes; weir_error_not_supported: the device has no virtual memory. */
WEIR_C_API weir_error weir_allocator_declare_suspendable(weir_allocator* allocator, uint32_t tag,
                                                         const weir_suspendable_options* options);
/* A pool that will be suspended: its memory comes in large pieces, which makes suspending fast.
 * Other pools can be suspended, too. `flags` as for weir_pool_create. */
WEIR_C_API weir_error weir_pool_create_suspendable(weir_allocator* allocator, const char* name,
                                                   uint32_t flags,
                                                   const weir_suspendable_options* options,
                                                   weir_pool** pool);

/* These calls return the physical memory to the driver, after waiting for all work that was queued
 * in the device's context before. Blocks stay live and keep their addresses, which must not be used
 * until the memory is resumed. `options` may be null (contents are kept, requests fail); `outcome`
 * may be null. weir_error_not_found: the tag was not declared; weir_error_capture_forbidden: a
 * stream is being captured; weir_error_no_host_memory: for the contents; weir_error_not_supported:
 * handles of the memory were exported (sharing), or the policy is a classic one. */
WEIR_C_API weir_error weir_allocator_suspend_tag(weir_allocator* allocator, uint32_t tag,
                                                 const weir_suspend_options* options,
                                                 weir_suspend_outcome* outcome);
WEIR_C_API weir_error weir_pool_suspend(weir_pool* pool, const weir_suspend_options* options,
                                        weir_suspend_outcome* outcome);
/* The same for everything: the allocator's default pool and all other pools. */
WEIR_C_API weir_error weir_allocator_suspend(weir_allocator* allocator,
                                             const weir_suspend_options* options,
                                             weir_suspend_outcome* outcome);

/* These calls restore the memory at the same addresses, with the contents that were kept. Memory
 * that the allocator caches elsewhere is released for it, and evictable memory may be evicted.
 * `options` and `outcome` may be null. weir_error_out_of_memory: it stays suspended and can be
 * resumed later. */
WEIR_C_API weir_error weir_allocator_resume_tag(weir_allocator* allocator, uint32_t tag,
                                                const weir_resume_options* options,
                                                weir_resume_outcome* outcome);
WEIR_C_API weir_error weir_pool_resume(weir_pool* pool, const weir_resume_options* options,
                                       weir_resume_outcome* outcome);
WEIR_C_API weir_error weir_allocator_resume(weir_allocator* allocator,
                                            const weir_resume_options* options,
                                            weir_resume_outcome* outcome);

/* The same without waiting. The call returns at once; a background thread suspends the memory when
 * the work queued before is complete, on all streams unless `streams` says otherwise. From now on
 * no further uses may be queued. Later failures go to the error handler and leave the memory in
 * place. `progress` is called on the background thread. */
WEIR_C_API weir_error weir_allocator_suspend_tag_async(weir_allocator* allocator, uint32_t tag,
                                                       const weir_suspend_options* options);
WEIR_C_API weir_error weir_pool_suspend_async(weir_pool* pool, const weir_suspend_options* options);
WEIR_C_API weir_error weir_allocator_suspend_async(weir_allocator* allocator,
                                                   const weir_suspend_options* options);
/* Resumes without waiting for the copies: creates and maps the memory, all or nothing, queues the
 * copies, and makes work queued on `stream` from now on wait for them; uses on other streams must
 * wait for `stream`. A suspension that has not taken effect yet is cancelled at no cost. For
 * contents in pageable memory the call waits. weir_error_capture_forbidden: the stream is being
 * captured. */
WEIR_C_API weir_error weir_allocator_resume_tag_async(weir_allocator* allocator, uint32_t tag,
                                                      weir_stream* stream,
                                                      weir_resume_outcome* outcome);
WEIR_C_API weir_error weir_pool_resume_async(weir_pool* pool, weir_stream* stream,
                                             weir_resume_outcome* outcome);
WEIR_C_API weir_error weir_allocator_resume_async(weir_allocator* allocator, weir_stream* stream,
                                                  weir_resume_outcome* outcome);

/* Whether the memory is suspended: 1 or 0; 0 for an undeclared tag and while a suspension is in
 * progress. */
WEIR_C_API weir_error weir_allocator_is_tag_suspended(weir_allocator* allocator, uint32_t tag,
                                                      int32_t* suspended);
WEIR_C_API weir_error weir_pool_is_suspended(weir_pool* pool, int32_t* suspended);
/* Whether the memory of the live block that contains `address` is suspended.
 * weir_error_foreign_pointer: no live block contains it. */
WEIR_C_API weir_error weir_allocator_is_address_suspended(weir_allocator* allocator,
                                                          const void* address, int32_t* suspended);

/* What is suspended, of the whole allocator. */
WEIR_C_API weir_error weir_allocator_get_suspend_stats(weir_allocator* allocator,
                                                       weir_suspend_stats* stats);
/* What is suspended, of one tag. */
WEIR_C_API weir_error weir_allocator_get_tag_suspend_stats(weir_allocator* allocator, uint32_t tag,
                                                           weir_suspend_stats* stats);
/* What is suspended, of one pool. */
WEIR_C_API weir_error weir_pool_get_suspend_stats(weir_pool* pool, weir_suspend_stats* stats);

/* Allocates host memory (weir_backup_...) for `size` bytes of contents in advance; pinning takes
 * about a second for 2 GiB. weir_error_no_host_memory: the host has less; nothing is kept. */
WEIR_C_API weir_error weir_allocator_reserve_backup(weir_allocator* allocator, uint64_t size,
                                                    int32_t backup);
/* Returns host memory to the system: all segments (32 MiB and more) without contents. `released`
 * may be null. */
WEIR_C_API weir_error weir_allocator_trim_backup(weir_allocator* allocator, uint64_t* released);

/* --- Captured graphs -------------------------------------------------------------------------- */

/* The memory of one captured graph, private to it. Until weir_capture_end, requests on the captured
 * stream are served from a private pool, which keeps all its memory while this handle, or a graph
 * that it was tied to, exists. */
typedef struct weir_capture weir_capture;

/* Declares a capture; call it before the capture of the stream begins. */
WEIR_C_API weir_error weir_capture_begin(weir_allocator* allocator, weir_stream* stream,
                                         weir_capture** capture);
/* Declares that the capture is over: later requests are served as usual. Idempotent. */
WEIR_C_API weir_error weir_capture_end(weir_capture* capture);
/* Ties the memory to a CUgraph and to executables instantiated from it from now on. */
WEIR_C_API weir_error weir_capture_tie_to_graph(weir_capture* capture, void* native_graph);
/* A new handle of the pool; close it with weir_pool_close. */
WEIR_C_API weir_error weir_capture_get_pool(weir_capture* capture, weir_pool** pool);
WEIR_C_API weir_error weir_capture_close(weir_capture* capture);

/* Declares that captures of any streams may be in progress while it is open: the allocator then
 * queries no stream, so that no call of it can invalidate a capture. For programs that capture
 * without weir_capture_begin, in pools for graphs. */
typedef struct weir_capture_guard weir_capture_guard;
WEIR_C_API weir_error weir_capture_guard_open(weir_allocator* allocator,
                                              weir_capture_guard** guard);
WEIR_C_API weir_error weir_capture_guard_close(weir_capture_guard* guard);

/* --- Growable memory ---------------------------------------------------------------------------
 */

/* Reserved addresses whose pages are committed and decommitted as needed; docs/growable.md. Pages
 * are memory of the allocator: its limits, tags and statistics count them, and its other requests
 * may use what is decommitted.
 *
 * Order: work queued on the stream of a commit from then on may use the pages; work queued so far
 * may still use pages that are decommitted. Keeps the allocator's objects alive. Any thread. */
typedef struct weir_growable weir_growable;

/* Bytes from the begin of the reservation. */
typedef struct weir_byte_range {
  uint64_t offset;
  uint64_t size;
} weir_byte_range;

typedef struct weir_growable_options {
  uint32_t struct_size;
  uint32_t tag;     /* what pages count as; 0: the tag of the thread that commits */
  uint64_t page;    /* a power of two from 2 MiB to 1 GiB */
  const char* name; /* for descriptions; null: "growable" */
} weir_growable_options;
#define WEIR_GROWABLE_OPTIONS_INIT \
  { sizeof(weir_growable_options), 0, 16777216, 0 }

typedef struct weir_growable_stats {
  uint32_t struct_size;
  uint32_t reserved_0;
  uint64_t reserved;    /* addresses */
  uint64_t size;        /* what may be committed: weir_growable_resize */
  uint64_t page;        /* of each page */
  weir_gauge committed; /* pages with memory that the caller may use */
  uint64_t ahead;       /* pages with memory that no commit has asked for yet */
  uint64_t held;        /* decommitted pages that a graph keeps */
  uint64_t suspended;   /* pages whose memory is away: weir_growable_suspend */
  uint64_t commits;     /* pages that were committed */
  uint64_t decommits;   /* pages that were decommitted */
} weir_growable_stats;

/* Addresses without memory, rounded up to whole pages. `options` may be null.
 * weir_error_not_supported: the allocator has no arena (classic policies, heap_debug). */
WEIR_C_API weir_error weir_growable_reserve(weir_allocator* allocator, uint64_t size,
                                            const weir_growable_options* options,
                                            weir_growable** growable);
/* Decommits everything and waits for the work that may use the pages. weir_error_not_ready: a plan
 * is open; weir_error_still_live: that work cannot be waited for, and the handle stays open. */
WEIR_C_API weir_error weir_growable_close(weir_growable* growable);
/* The first byte. Stays the same until the handle is closed. */
WEIR_C_API weir_error weir_growable_get_address(weir_growable* growable, void** address);
WEIR_C_API weir_error weir_growable_get_stats(weir_growable* growable, weir_growable_stats* stats);
/* Whether all pages of the range are committed: 1 or 0. */
WEIR_C_API weir_error weir_growable_is_committed(weir_growable* growable, uint64_t offset,
                                                 uint64_t size, int32_t* committed);
/* Every page that a range touches has memory afterwards: all of them, or after an error none more
 * than before. weir_error_out_of_memory: callbacks were asked before. */
WEIR_C_API weir_error weir_growable_commit(weir_growable* growable, const weir_byte_range* ranges,
                                           uint64_t count, weir_stream* stream);
/* Every page that lies in a range as a whole gives its memory back. */
WEIR_C_API weir_error weir_growable_decommit(weir_growable* growable, const weir_byte_range* ranges,
                                             uint64_t count, weir_stream* stream);
/* Gets memory for pages behind the last committed one, until `watermark` bytes there are ready. */
WEIR_C_API weir_error weir_growable_commit_ahead(weir_growable* growable, uint64_t watermark,
                                                 weir_stream* stream);
/* So much may be committed from now on; at most what was reserved. Pages behind are decommitted. */
WEIR_C_API weir_error weir_growable_resize(weir_growable* growable, uint64_t size,
                                           weir_stream* stream);
/* Gives back pages that are ready ahead. `returned` may be null. */
WEIR_C_API weir_error weir_growable_trim(weir_growable* growable, uint64_t* returned);
/* Gives the memory of all pages back after waiting for all work; addresses stay, and nothing may
 * use them before weir_growable_resume. With `keep` their contents go to pinned host memory.
 * `returned` may be null. weir_error_capture_forbidden: a stream is being captured;
 * weir_error_suspended: of calls that change pages meanwhile. */
WEIR_C_API weir_error weir_growable_suspend(weir_growable* growable, int32_t keep,
                                            uint64_t* returned);
/* Brings all pages back to their addresses, with what was kept: all, or none. */
WEIR_C_API weir_error weir_growable_resume(weir_growable* growable, weir_stream* stream);
/* The pages that are committed now stay mapped, with their memory, as long as the CUgraph and every
 * executable made of it, also if they are decommitted. */
WEIR_C_API weir_error weir_growable_tie_to_graph(weir_growable* growable, void* native_graph);
/* The same until the hold is closed. */
typedef struct weir_growable_hold weir_growable_hold;
WEIR_C_API weir_error weir_growable_hold_pages(weir_growable* growable, weir_growable_hold** hold);
WEIR_C_API weir_error weir_growable_hold_close(weir_growable_hold* hold);

/* Commits and decommits in two steps: prepare does all that can fail. Either of the other two ends
 * the plan and closes its handle; a commit makes no driver call and does not fail. */
typedef struct weir_growable_plan weir_growable_plan;
WEIR_C_API weir_error weir_growable_prepare(weir_growable* growable, const weir_byte_range* commits,
                                            uint64_t commit_count, const weir_byte_range* decommits,
                                            uint64_t decommit_count, weir_stream* stream,
                                            weir_growable_plan** plan);
WEIR_C_API weir_error weir_growable_plan_commit(weir_growable_plan* plan);
WEIR_C_API weir_error weir_growable_plan_abort(weir_growable_plan* plan);

/* --- Snapshots -------------------------------------------------------------------------------- */

/* A consistent snapshot of an allocator. It does not keep the allocator alive. */
typedef struct weir_snapshot weir_snapshot;

/* The size and the counters of a snapshot. */
typedef struct weir_snapshot_info {
  uint32_t struct_size;    /* sizeof this structure, set by the caller */
  int32_t device;          /* the number of the device */
  uint64_t pool_count;     /* the first is the default pool */
  weir_memory_stats stats; /* of the whole allocator */
} weir_snapshot_info;

/* A pool of a snapshot. */
typedef struct weir_pool_info {
  uint32_t struct_size;    /* sizeof this structure, set by the caller */
  uint32_t id;             /* 0 is the allocator's default pool */
  uint64_t block_count;    /* for weir_snapshot_get_blocks() */
  uint64_t physical_count; /* for weir_snapshot_get_physical() */
  char name[128];          /* cut if longer */
  weir_memory_stats stats; /* last, so that it can grow */
} weir_pool_info;

/* A handle or segment of physical memory, and where it is mapped. */
typedef struct weir_physical_info {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t reserved;    /* 0 */
  uint64_t address;     /* where it is mapped */
  uint64_t size;        /* of the handle or segment */
} weir_physical_info;

/* Takes a consistent snapshot of the allocator. */
WEIR_C_API weir_error weir_snapshot_take(weir_allocator* allocator, weir_snapshot** snapshot);
/* Of one pool: its own counters, and that pool alone. */
WEIR_C_API weir_error weir_snapshot_take_pool(weir_pool* pool, weir_snapshot** snapshot);
WEIR_C_API weir_error weir_snapshot_close(weir_snapshot* snapshot);
WEIR_C_API weir_error weir_snapshot_get_info(weir_snapshot* snapshot, weir_snapshot_info* info);
/* Pools count from 0 here; weir_error_not_found beyond the last. */
WEIR_C_API weir_error weir_snapshot_get_pool(weir_snapshot* snapshot, uint64_t pool,
                                             weir_pool_info* info);
/* Copies the blocks of a pool, by address, from number `first` on: at most `capacity`; `count` is
 * how many were written. */
WEIR_C_API weir_error weir_snapshot_get_blocks(weir_snapshot* snapshot, uint64_t pool,
                                               uint64_t first, weir_block_info* blocks,
                                               uint64_t capacity, uint64_t* count);
WEIR_C_API weir_error weir_snapshot_get_physical(weir_snapshot* snapshot, uint64_t pool,
                                                 uint64_t first, weir_physical_info* physical,
                                                 uint64_t capacity, uint64_t* count);

/* --- Recording -------------------------------------------------------------------------------- */

/* Writes what happens to an allocator's memory to a .weirtrace file, while it happens. */
typedef struct weir_recorder weir_recorder;

enum {
  weir_recorder_drop_when_full = 1 << 0, /* drops events and counts them instead of waiting */
  weir_recorder_stacks = 1 << 1,         /* allocations and frees carry their call stacks */
  weir_recorder_uncompressed = 1 << 2
};

/* The choices of a recorder. */
typedef struct weir_recorder_options {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t flags;       /* weir_recorder_... */
  uint32_t ring_events; /* how many events a thread can have waiting; 0: 32768 */
  int32_t level;        /* zstd's, 1 to 19; 0: 3 */
  uint32_t flush_every; /* milliseconds, what a crash may lose; 0: 200 */
  uint32_t reserved;    /* 0 */
  const char* program;  /* for titles; null: the process's name */
} weir_recorder_options;

/* The counters of a recorder. */
typedef struct weir_recorder_stats {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t reserved;    /* 0 */
  uint64_t written;     /* events in the file */
  uint64_t dropped;     /* events lost because a ring was full */
  uint64_t threads;     /* threads that caused events */
  uint64_t file_size;   /* bytes written so far */
} weir_recorder_stats;

/* Begins at once; any number of recorders may record one allocator. `options` may be null. The file
 * appears under its name when the recording is stopped. */
WEIR_C_API weir_error weir_recorder_start(weir_allocator* allocator, const char* path,
                                          const weir_recorder_options* options,
                                          weir_recorder** recorder);
/* Puts a remark between the events. */
WEIR_C_API weir_error weir_recorder_marker(weir_recorder* recorder, const char* text);
/* Returns when everything received so far is in the file. */
WEIR_C_API weir_error weir_recorder_flush(weir_recorder* recorder);
WEIR_C_API weir_error weir_recorder_get_stats(weir_recorder* recorder, weir_recorder_stats* stats);
/* Ends the recording and closes the handle; says whether all was written. */
WEIR_C_API weir_error weir_recorder_close(weir_recorder* recorder);

/* --- The driver's stream-ordered pools -------------------------------------------------------- */

/* A stream-ordered pool of the driver. */
typedef struct weir_stream_pool weir_stream_pool;

enum {
  weir_stream_pool_posix_descriptor = 1 << 0, /* can be shared with other processes */
  /* Rules by which memory freed on another stream is reused, switched off: */
  weir_stream_pool_no_event_dependencies = 1 << 1,
  weir_stream_pool_no_opportunistic = 1 << 2,
  weir_stream_pool_no_internal_dependencies = 1 << 3
};

/* The choices of a driver pool. */
typedef struct weir_stream_pool_config {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t flags;       /* weir_stream_pool_... */
  uint64_t initial;     /* reserved at once */
  uint64_t max;         /* the most that is reserved; 0: what the device has */
  uint64_t threshold;   /* what stays reserved unused; WEIR_NO_LIMIT keeps everything, and one below
                           `initial` is raised to it */
} weir_stream_pool_config;
/* The default choices of a driver pool. */
#define WEIR_STREAM_POOL_CONFIG_INIT \
  { sizeof(weir_stream_pool_config), 0, 0, 0, WEIR_NO_LIMIT }

/* The counters of a driver pool. */
typedef struct weir_stream_pool_stats {
  uint32_t struct_size;   /* sizeof this structure, set by the caller */
  uint32_t reserved_0;    /* 0 */
  weir_gauge reserved;    /* the driver's figures, of all users of the pool */
  weir_gauge used;        /* bytes in use, in requested sizes */
  weir_gauge allocations; /* made through this library and not freed, a count */
  uint64_t allocated;     /* their bytes */
} weir_stream_pool_stats;

/* What weir_stream_pool_get_attribute and set_attribute take: the driver's numbers. */
enum {
  weir_stream_pool_reuse_follow_event_dependencies = 1, /* 0 or 1 */
  weir_stream_pool_reuse_opportunistic = 2,
  weir_stream_pool_reuse_internal_dependencies = 3,
  weir_stream_pool_release_threshold = 4,
  weir_stream_pool_reserved = 5,      /* read only */
  weir_stream_pool_reserved_peak = 6, /* can be set to 0, which means: to what is reserved now */
  weir_stream_pool_used = 7,          /* read only */
  weir_stream_pool_used_peak = 8      /* like reserved_peak */
};

/* `config` may be null: a pool that keeps everything, grows as needed and is not shared. */
WEIR_C_API weir_error weir_stream_pool_create(weir_runtime* runtime, int32_t device,
                                              const weir_stream_pool_config* config,
                                              weir_stream_pool** pool);
/* Whether weir_stream_pool_create would refuse the configuration on every device:
 * weir_error_invalid_argument. Needs no driver. */
WEIR_C_API weir_error weir_stream_pool_config_validate(const weir_stream_pool_config* config);
/* The number of its device. */
WEIR_C_API weir_error weir_stream_pool_get_device(weir_stream_pool* pool, int32_t* device);
/* The device's default pool, which cudaMallocAsync uses too. Each call returns a new handle;
 * closing it does not affect the pool. */
WEIR_C_API weir_error weir_stream_pool_open_default(weir_runtime* runtime, int32_t device,
                                                    weir_stream_pool** pool);
/* The pool of a descriptor from another process; the descriptor stays the caller's. It cannot
 * allocate: only weir_stream_pool_import_pointer works. */
WEIR_C_API weir_error weir_stream_pool_import(weir_runtime* runtime, int32_t device,
                                              int32_t descriptor, weir_stream_pool** pool);
/* Destroys the pool, unless it is the device's default pool. Memory that is not freed stays valid,
 * but cannot be freed through this handle any more: `remaining`, if not null, is its size. */
WEIR_C_API weir_error weir_stream_pool_close(weir_stream_pool* pool, uint64_t* remaining);

/* As weir_allocator_allocate; an alignment of 0 is 256. */
WEIR_C_API weir_error weir_stream_pool_allocate(weir_stream_pool* pool, uint64_t size,
                                                uint64_t alignment, weir_stream* stream,
                                                void** pointer);
/* The stream must have been made to wait for the work that used the memory. As
 * weir_allocator_deallocate and _sized. */
WEIR_C_API weir_error weir_stream_pool_deallocate(weir_stream_pool* pool, void* pointer,
                                                  weir_stream* stream);
WEIR_C_API weir_error weir_stream_pool_deallocate_sized(weir_stream_pool* pool, void* pointer,
                                                        uint64_t size, weir_stream* stream);
/* Declares that work queued on `stream` until the free may use the memory, too: the stream of the
 * free then waits for it. The stream may belong to any device. weir_error_capture_forbidden: the
 * stream is being captured. */
WEIR_C_API weir_error weir_stream_pool_record_stream(weir_stream_pool* pool, void* pointer,
                                                     weir_stream* stream);
/* The CUmemoryPool. */
WEIR_C_API weir_error weir_stream_pool_get_native(weir_stream_pool* pool, void** native);
/* The figures of the pool; they are not a consistent snapshot. */
WEIR_C_API weir_error weir_stream_pool_get_stats(weir_stream_pool* pool,
                                                 weir_stream_pool_stats* stats);
/* The current value: 0 or 1 for flags, bytes for the others. weir_error_not_supported: the pool is
 * imported. */
WEIR_C_API weir_error weir_stream_pool_get_attribute(weir_stream_pool* pool, int32_t attribute,
                                                     uint64_t* value);
/* weir_error_invalid_argument: a flag that is neither 0 nor 1, a threshold above `max`, a peak that
 * is not 0, or a figure that is read only. */
WEIR_C_API weir_error weir_stream_pool_set_attribute(weir_stream_pool* pool, int32_t attribute,
                                                     uint64_t value);
/* Every peak becomes the current value. */
WEIR_C_API weir_error weir_stream_pool_reset_peaks(weir_stream_pool* pool);
/* Releases idle memory to the driver until at most `keep` bytes are reserved, in the driver's whole
 * units. Does not wait: memory stays if the host has not waited for its free. */
WEIR_C_API weir_error weir_stream_pool_trim(weir_stream_pool* pool, uint64_t keep,
                                            uint64_t* released);
/* Lets another device of the runtime use the pool's memory (enabled = 1), or not (0). */
WEIR_C_API weir_error weir_stream_pool_set_peer(weir_stream_pool* pool, int32_t device,
                                                int32_t enabled);
/* What a device of the runtime may do with the pool's memory: 0, weir_read or weir_read_write. */
WEIR_C_API weir_error weir_stream_pool_get_peer(weir_stream_pool* pool, int32_t device,
                                                int32_t* rights);

/* A descriptor for weir_stream_pool_import in another process; the caller closes it. */
WEIR_C_API weir_error weir_stream_pool_export(weir_stream_pool* pool, int32_t* descriptor);
/* A pointer in the driver's 64 opaque bytes, for a process that imported the pool. */
WEIR_C_API weir_error weir_stream_pool_export_pointer(weir_stream_pool* pool, const void* pointer,
                                                      uint8_t bytes[64]);
/* Memory of the exporter, and its size; freed with weir_stream_pool_deallocate, before the exporter
 * frees it. weir_error_foreign_pointer: the bytes are not those of a pointer of this pool;
 * weir_error_already_mapped: it is imported already; weir_error_not_supported: this pool is not
 * imported. */
WEIR_C_API weir_error weir_stream_pool_import_pointer(weir_stream_pool* pool,
                                                      const uint8_t bytes[64], weir_stream* stream,
                                                      void** pointer, uint64_t* size);

/* --- Pools of whole blocks -------------------------------------------------------------------- */

/* Blocks by size that are cached when they are freed: of plain device memory for drivers without
 * pools, or of pinned host memory, which is reused only when no work uses it any more. */
typedef struct weir_block_pool weir_block_pool;

/* The counters of a bin pool or pinned pool. */
typedef struct weir_block_pool_stats {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t reserved_0;  /* 0 */
  weir_gauge requested; /* allocated and not freed, as requested */
  weir_gauge allocated; /* the same, rounded to whole blocks */
  weir_gauge reserved;  /* taken from the driver */
  weir_gauge blocks;    /* live blocks, a count */
  uint64_t cached;      /* freed, and not allocated again */
  uint64_t pending;     /* of cached: waits for recorded streams */
  uint64_t allocations; /* successful ones; this and the following: since reset_counters */
  uint64_t frees;       /* successful ones */
  uint64_t hits;        /* allocations served by a cached block */
  uint64_t misses;      /* allocations served by the driver */
  uint64_t failures;    /* requests that ended out of memory */
  uint64_t waits;       /* queued on a stream so that it could reuse memory */
  uint64_t events;      /* recorded to know when memory is free for others */
} weir_block_pool_stats;

enum {
  /* A freed block waits only for its own and for recorded streams before it goes to another stream,
   * and not for the work of all streams that weir knows. */
  weir_block_pool_declared_uses = 1 << 0
};

/* The choices of a bin pool or pinned pool. */
typedef struct weir_block_pool_options {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t flags;       /* weir_block_pool_... */
  uint64_t threshold;   /* the most that is cached; WEIR_NO_LIMIT caches everything */
} weir_block_pool_options;
/* The default choices of a bin pool or pinned pool. */
#define WEIR_BLOCK_POOL_OPTIONS_INIT \
  { sizeof(weir_block_pool_options), 0, WEIR_NO_LIMIT }

/* Memory from anywhere, for the pools made on it; two callbacks in place of the driver.
 *
 * `allocate` writes the address of `size` bytes on the pool's device, aligned to 512, that nothing
 * uses any more, and returns weir_ok, or an error; weir_error_out_of_memory: it has none now.
 * `native_stream` is the CUstream of the request; a bin pool passes the legacy one. `deallocate`
 * gets what it wrote, with the same size; no work uses it any more. Called from any thread with the
 * context of the device current, by a pool of an allocator with the allocator's lock held: they
 * must not use that allocator or pool, nor wait for a thread that may. They must stay callable
 * until the last pool made on the source is closed and its last block freed. */
typedef weir_error (*weir_source_allocate)(void* context, uint64_t size, void* native_stream,
                                           void** memory);
/* Takes back what the allocate function returned, with the same size. */
typedef weir_error (*weir_source_deallocate)(void* context, void* memory, uint64_t size);
/* Two functions through which a pool gets its memory, instead of from the driver. */
typedef struct weir_memory_source {
  uint32_t struct_size;              /* sizeof this structure, set by the caller */
  uint32_t reserved;                 /* 0 */
  void* context;                     /* passed to both functions */
  weir_source_allocate allocate;     /* must not be null */
  weir_source_deallocate deallocate; /* must not be null */
} weir_memory_source;

/* `options` may be null: everything is cached. */
WEIR_C_API weir_error weir_bin_pool_create(weir_runtime* runtime, int32_t device,
                                           const weir_block_pool_options* options,
                                           weir_block_pool** pool);
/* With blocks from `source` instead of from the driver. */
WEIR_C_API weir_error weir_bin_pool_create_from_source(weir_runtime* runtime, int32_t device,
                                                       const weir_block_pool_options* options,
                                                       const weir_memory_source* source,
                                                       weir_block_pool** pool);
WEIR_C_API weir_error weir_pinned_pool_create(weir_runtime* runtime, int32_t device,
                                              const weir_block_pool_options* options,
                                              weir_block_pool** pool);
/* A private pool of an allocator in segments that come from `source`; weir_pool_close closes it.
 * With `one_block` not 0, a segment is one block. */
WEIR_C_API weir_error weir_pool_create_from_source(weir_allocator* allocator, const char* name,
                                                   const weir_memory_source* source,
                                                   int32_t one_block, weir_pool** pool);
/* The number of its device. */
WEIR_C_API weir_error weir_block_pool_get_device(weir_block_pool* pool, int32_t* device);
/* The size of the block that a request of `size` bytes gets. weir_error_size_overflow: none. */
WEIR_C_API weir_error weir_block_pool_rounded_size(uint64_t size, uint64_t* rounded);
/* Releases all memory; blocks that are still live are reported to the error handler. */
WEIR_C_API weir_error weir_block_pool_close(weir_block_pool* pool);
/* As weir_allocator_...; an alignment of 0 is 256. A bin pool allocates on streams of its device, a
 * pinned pool on those of every device; deallocate and record_stream take streams of every device.
 */
WEIR_C_API weir_error weir_block_pool_allocate(weir_block_pool* pool, uint64_t size,
                                               uint64_t alignment, weir_stream* stream,
                                               void** pointer);
WEIR_C_API weir_error weir_block_pool_deallocate(weir_block_pool* pool, void* pointer,
                                                 weir_stream* stream);
WEIR_C_API weir_error weir_block_pool_free(weir_block_pool* pool, void* pointer);
WEIR_C_API weir_error weir_block_pool_record_stream(weir_block_pool* pool, void* pointer,
                                                    weir_stream* stream);
WEIR_C_API weir_error weir_block_pool_release_stream(weir_block_pool* pool, weir_stream* stream);
WEIR_C_API weir_error weir_block_pool_get_stats(weir_block_pool* pool,
                                                weir_block_pool_stats* stats);
/* Every peak becomes the current value. */
WEIR_C_API weir_error weir_block_pool_reset_peaks(weir_block_pool* pool);
/* Every count since the pool was created becomes 0; what is live, cached and reserved stays. */
WEIR_C_API weir_error weir_block_pool_reset_counters(weir_block_pool* pool);
/* As weir_allocator_trim and weir_allocator_empty_cache. */
WEIR_C_API weir_error weir_block_pool_trim(weir_block_pool* pool, uint64_t keep,
                                           uint64_t* released);
WEIR_C_API weir_error weir_block_pool_empty_cache(weir_block_pool* pool, uint64_t* released);
/* Limits the cached memory. Memory above the limit is released at once, after waiting for the
 * streams. */
WEIR_C_API weir_error weir_block_pool_set_threshold(weir_block_pool* pool, uint64_t threshold);
WEIR_C_API weir_error weir_block_pool_get_threshold(weir_block_pool* pool, uint64_t* threshold);

/* --- Buffers ---------------------------------------------------------------------------------- */

/* Memory with an owner: freed when its handle is closed, after the work queued on its stream. */
typedef struct weir_buffer weir_buffer;

enum {
  weir_buffer_device = 0,  /* on a device; the host may not touch it */
  weir_buffer_managed = 1, /* moves between host and devices on demand */
  weir_buffer_pinned = 2   /* on the host, locked there; devices may touch it, too */
};

/* What a buffer is. */
typedef struct weir_buffer_info {
  uint32_t struct_size;    /* sizeof this structure, set by the caller */
  int32_t kind;            /* weir_buffer_... */
  uint64_t size;           /* bytes */
  void* data;              /* null of a device buffer of zero bytes */
  uint64_t device_address; /* where devices see it */
} weir_buffer_info;

/* What is in new memory: `flags` of the functions that create or take a buffer. */
enum {
  weir_buffer_zeroed = 1 << 0 /* zeros, by a fill queued on the stream; without it: undefined */
};

/* From an allocator. `flags`: 0 or weir_buffer_zeroed. The stream must outlive the buffer, or be
 * left with hand_over. */
WEIR_C_API weir_error weir_buffer_create(weir_allocator* allocator, uint64_t size, uint32_t flags,
                                         weir_stream* stream, weir_buffer** buffer);
/* The same with the `size` bytes of `data`. The copy is queued: `data` must stay as it is until the
 * stream has completed it. */
WEIR_C_API weir_error weir_buffer_create_copy(weir_allocator* allocator, const void* data,
                                              uint64_t size, weir_stream* stream,
                                              weir_buffer** buffer);
/* From a pool of blocks, and freed to it; weir_buffer_close frees on the stream. */
WEIR_C_API weir_error weir_buffer_create_pooled(weir_block_pool* pool, uint64_t size,
                                                uint32_t flags, weir_stream* stream,
                                                weir_buffer** buffer);
/* Straight from the driver (cuMemAlloc), nothing cached. */
WEIR_C_API weir_error weir_buffer_create_plain(weir_runtime* runtime, int32_t device, uint64_t size,
                                               weir_buffer** buffer);
/* Pinned host memory of zeros that every device reaches over the bus. Nothing orders host and
 * devices but what the program waits for. */
WEIR_C_API weir_error weir_buffer_create_pinned(weir_runtime* runtime, int32_t device,
                                                uint64_t size, weir_buffer** buffer);
/* A buffer of a pool is freed to the pool. */
WEIR_C_API weir_error weir_buffer_close(weir_buffer* buffer);
WEIR_C_API weir_error weir_buffer_get_info(weir_buffer* buffer, weir_buffer_info* info);
/* Of buffers of an allocator, and plain ones: the bytes that both sizes have stay, new ones are
 * undefined. weir_error_not_supported: another buffer. */
WEIR_C_API weir_error weir_buffer_resize(weir_buffer* buffer, uint64_t size);
/* Of the same: belongs to `next` from now on, which waits for the old stream. */
WEIR_C_API weir_error weir_buffer_hand_over(weir_buffer* buffer, weir_stream* next);
/* Of buffers of an allocator or a pool, and plain ones: work queued on `stream` until the memory is
 * freed may use it, too. Call it at any time before the free, as weir_allocator_record_stream.
 * weir_buffer_resize to more than the capacity frees the memory: record streams again for the new
 * address. weir_error_not_supported: a managed buffer, which has weir_buffer_use_on; a pinned one,
 * which no stream orders. */
WEIR_C_API weir_error weir_buffer_record_stream(weir_buffer* buffer, weir_stream* stream);
/* Of buffers of an allocator, and plain ones: the buffer's stream waits for the work that is queued
 * on `other` so far, and for nothing that is queued there later. */
WEIR_C_API weir_error weir_buffer_join(weir_buffer* buffer, weir_stream* other);

/* --- Managed buffers -------------------------------------------------------------------------- */

/* Memory that host and devices see at one address, each when it is safe: work queued on a stream
 * may use it after weir_buffer_use_on, and the host may between weir_buffer_begin_host and
 * weir_buffer_end_host. Everything in this part is weir_error_not_supported of other buffers. */

/* Who may use managed memory. Binding only on devices without concurrent managed access; a hint to
 * others. */
enum {
  weir_attach_global = 0, /* every stream; the host only while the whole device is idle */
  weir_attach_host = 1,   /* the host at any time, and no device */
  weir_attach_single = 2  /* one stream; the host while that stream is idle */
};

/* Where managed memory can be: the number of a device, or one of these. */
#define WEIR_PLACE_HOST (-1)
/* A node of the host's memory; weir_error_not_supported with drivers older than CUDA 12.2. */
#define WEIR_PLACE_HOST_NODE(node) (-2 - (node))
/* No place. */
#define WEIR_PLACE_NONE INT32_MIN

/* For work on the device's streams. A null stream is the device's legacy stream;
 * weir_error_bad_stream: it is of another device. weir_error_invalid_argument: the size is 0. */
WEIR_C_API weir_error weir_buffer_create_managed(weir_runtime* runtime, int32_t device,
                                                 uint64_t size, uint32_t flags, int32_t attachment,
                                                 weir_stream* stream, weir_buffer** buffer);
/* The same with the `size` bytes of `data`, copied by the host before the call returns. */
WEIR_C_API weir_error weir_buffer_create_managed_copy(weir_runtime* runtime, int32_t device,
                                                      const void* data, uint64_t size,
                                                      int32_t attachment, weir_stream* stream,
                                                      weir_buffer** buffer);

/* Work that is queued on `stream` next may use the buffer: call it before each piece of work, also
 * on the stream it was created for. weir_error_not_ready: the host has the buffer.
 * weir_error_bad_stream, weir_error_not_permitted: on a device without concurrent managed access,
 * the memory is attached to another stream, or to the host. */
WEIR_C_API weir_error weir_buffer_use_on(weir_buffer* buffer, weir_stream* stream);
/* Waits for the streams of weir_buffer_use_on, and, on a device without concurrent managed access,
 * for all its work; until weir_buffer_end_host the host may touch the memory, and use_on, prefetch,
 * attach and resize are weir_error_not_ready. They nest. */
WEIR_C_API weir_error weir_buffer_begin_host(weir_buffer* buffer);
/* The same, but waits only for `event`, which was recorded after all work on the buffer. */
WEIR_C_API weir_error weir_buffer_begin_host_after(weir_buffer* buffer, weir_event* event);
/* The same without waiting. weir_error_not_ready: a stream has not completed its work;
 * weir_error_not_supported: the driver cannot tell without waiting, because the device has no
 * concurrent managed access and the memory is global. */
WEIR_C_API weir_error weir_buffer_try_begin_host(weir_buffer* buffer);
WEIR_C_API weir_error weir_buffer_end_host(weir_buffer* buffer);

/* The next five are about `size` bytes from `offset` on; a size of 0 is up to the end. The driver
 * rounds outwards to pages. weir_error_invalid_argument: bytes outside the buffer;
 * weir_error_not_supported: the device has no concurrent managed access; weir_error_no_device. */

/* Queues a move to a place. */
WEIR_C_API weir_error weir_buffer_prefetch(weir_buffer* buffer, uint64_t offset, uint64_t size,
                                           int32_t place, weir_stream* stream);
/* Mostly read (enabled = 1): each reader gets a copy; a write ends all but the writer's. */
WEIR_C_API weir_error weir_buffer_advise_read_mostly(weir_buffer* buffer, uint64_t offset,
                                                     uint64_t size, int32_t enabled);
/* Where pages should stay; WEIR_PLACE_NONE withdraws the advice. */
WEIR_C_API weir_error weir_buffer_advise_preferred(weir_buffer* buffer, uint64_t offset,
                                                   uint64_t size, int32_t place);
/* Accesses from a place reach the pages without moving them (enabled = 1). */
WEIR_C_API weir_error weir_buffer_advise_accessed_by(weir_buffer* buffer, uint64_t offset,
                                                     uint64_t size, int32_t place, int32_t enabled);

/* The driver's record of a range of managed memory. */
typedef struct weir_managed_info {
  uint32_t struct_size;       /* sizeof this structure, set by the caller */
  int32_t attachment;         /* weir_attach_..., of the whole buffer */
  int32_t read_mostly;        /* 1 or 0 */
  int32_t preferred;          /* a place, or WEIR_PLACE_NONE */
  int32_t last_prefetch;      /* a place, or WEIR_PLACE_NONE */
  uint32_t accessed_by_count; /* how many there are */
  int32_t accessed_by[64];    /* places, in no order; cut if there are more */
} weir_managed_info;

/* The driver's record of the range; nothing where its pages differ. It does not tell where pages
 * are now, only where they were prefetched to last. */
WEIR_C_API weir_error weir_buffer_get_managed_info(weir_buffer* buffer, uint64_t offset,
                                                   uint64_t size, weir_managed_info* info);

/* Changes who may use the memory, in the stream's order. weir_attach_single gives it to that
 * stream, which must not be the legacy one (weir_error_invalid_argument). */
WEIR_C_API weir_error weir_buffer_attach(weir_buffer* buffer, int32_t attachment,
                                         weir_stream* stream);
/* Other memory: the old bytes as far as there are, then zeros. Waits for the streams that use the
 * old memory; advice about it is lost. */
WEIR_C_API weir_error weir_buffer_resize_managed(weir_buffer* buffer, uint64_t size,
                                                 weir_stream* stream);

/* --- Buffer pools ----------------------------------------------------------------------------- */

/* Buffers of plain device memory on all devices, cached by device and rounded size when they are
 * closed, up to bounds. */
typedef struct weir_buffer_pool weir_buffer_pool;

enum {
  /* A freed buffer waits only for its own and for recorded streams before it goes to another
   * stream; without it, for the work of all known streams (see weir_watch_stream). */
  weir_buffer_pool_declared_uses = 1 << 0
};

/* The choices of a buffer pool. */
typedef struct weir_buffer_pool_options {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t flags;       /* weir_buffer_pool_... */
  uint64_t max_cached;  /* bytes that are cached on each device; WEIR_NO_LIMIT: all */
  uint64_t
      max_idle_time; /* nanoseconds that an unused buffer is cached; WEIR_NO_LIMIT: without end */
} weir_buffer_pool_options;
/* The default choices of a buffer pool. */
#define WEIR_BUFFER_POOL_OPTIONS_INIT \
  { sizeof(weir_buffer_pool_options), 0, WEIR_NO_LIMIT, WEIR_NO_LIMIT }

/* The counters of a buffer pool. */
typedef struct weir_buffer_pool_stats {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  uint32_t reserved_0;  /* 0 */
  uint64_t hits; /* takes served by a cached buffer; this and the next two: since reset_counters */
  uint64_t misses;  /* takes served by the driver */
  uint64_t returns; /* buffers that were freed */
  uint64_t cached;  /* bytes freed and not taken again */
  weir_gauge taken; /* bytes, rounded; of several devices the peak is the sum of theirs */
} weir_buffer_pool_stats;

/* `options` may be null: nothing is bounded. */
WEIR_C_API weir_error weir_buffer_pool_create(const weir_buffer_pool_options* options,
                                              weir_buffer_pool** pool);
/* It serves no more takes and caches nothing. Buffers that are taken stay valid; closing them then
 * waits for their stream. All devices are attempted; the first failure is returned. */
WEIR_C_API weir_error weir_buffer_pool_close(weir_buffer_pool* pool);
/* `size` bytes for work queued on the stream from now on, with weir_buffer_zeroed or without. The
 * stream must not be null here, and in the next two: it says which device.
 * weir_error_invalid_argument: the size is 0. */
WEIR_C_API weir_error weir_buffer_pool_take(weir_buffer_pool* pool, uint64_t size, uint32_t flags,
                                            weir_stream* stream, weir_buffer** buffer);
/* The same, but only if a cached buffer is known to be free for the stream; weir_error_not_found:
 * none is, and nothing was counted. No driver call but for the fill of zeros. */
WEIR_C_API weir_error weir_buffer_pool_take_cached(weir_buffer_pool* pool, uint64_t size,
                                                   uint32_t flags, weir_stream* stream,
                                                   weir_buffer** buffer);
/* As weir_buffer_close, but after the work queued on `stream`, which has been made to wait for that
 * on the buffer's own. weir_error_foreign_pointer: a buffer of another pool, or of none; the handle
 * is closed only on success. */
WEIR_C_API weir_error weir_buffer_pool_free(weir_buffer_pool* pool, weir_buffer* buffer,
                                            weir_stream* stream);

/* The following calls apply to one device; with a null runtime to all, and `device` is ignored. */

/* A device that no buffer was taken on has zeros. */
WEIR_C_API weir_error weir_buffer_pool_get_stats(weir_buffer_pool* pool, weir_runtime* runtime,
                                                 int32_t device, weir_buffer_pool_stats* stats);
/* Every peak becomes the current value. */
WEIR_C_API weir_error weir_buffer_pool_reset_peaks(weir_buffer_pool* pool, weir_runtime* runtime,
                                                   int32_t device);
/* Hits, misses and returns become 0. */
WEIR_C_API weir_error weir_buffer_pool_reset_counters(weir_buffer_pool* pool, weir_runtime* runtime,
                                                      int32_t device);
/* Releases cached memory that nothing uses any more to the driver until at most `keep` bytes are
 * reserved on the device, or on each, and what is over the pool's bounds in any case. Waits for
 * nothing. */
WEIR_C_API weir_error weir_buffer_pool_trim(weir_buffer_pool* pool, weir_runtime* runtime,
                                            int32_t device, uint64_t keep, uint64_t* released);
/* The same for all that is cached, after waiting for the streams. */
WEIR_C_API weir_error weir_buffer_pool_empty_cache(weir_buffer_pool* pool, weir_runtime* runtime,
                                                   int32_t device, uint64_t* released);

/* --- Copies ----------------------------------------------------------------------------------- */

/* Queue a copy, or a fill with one byte value, of memory of any kind. The stream must not be null
 * here: it says which device. */
WEIR_C_API weir_error weir_copy(void* to, const void* from, uint64_t size, weir_stream* stream);
WEIR_C_API weir_error weir_fill(void* to, uint8_t value, uint64_t size, weir_stream* stream);

/* --- Sharing by descriptors ------------------------------------------------------------------- */

/* A physical handle, as a descriptor that another process can import. The bearer of a descriptor
 * reaches all `size` bytes of it. */
typedef struct weir_shared_piece {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  int32_t descriptor;   /* the receiver of the structure closes it */
  uint64_t size;        /* of the physical handle */
} weir_shared_piece;

/* Memory of another process, mapped here. Closing it waits until the device has done all its queued
 * work, then unmaps; captures stay valid. If the device cannot be waited for, it stays open, to be
 * closed later. */
typedef struct weir_imported weir_imported;

enum { weir_read = 1, weir_read_write = 2 };

/* The physical handles under a live block of an exportable pool, or of an allocator with the option
 * heap_exportable (other blocks may lie in them then), in the order of their addresses, and the
 * offset of the block in the first. `count` is how many there are; if that is more than `capacity`
 * nothing is exported (weir_error_invalid_argument, and *count is set). The block must not be freed
 * while another process may use it. */
WEIR_C_API weir_error weir_allocator_export_block(weir_allocator* allocator, const void* pointer,
                                                  weir_shared_piece* pieces, uint64_t capacity,
                                                  uint64_t* count, uint64_t* offset);
/* Maps the pieces at consecutive addresses; the descriptors stay the caller's. The sizes must be
 * those of the exporter. `offset` and `size` say which part the address and size of the result
 * mean. */
WEIR_C_API weir_error weir_import_pieces(weir_runtime* runtime, int32_t device,
                                         const weir_shared_piece* pieces, uint64_t count,
                                         uint64_t offset, uint64_t size, int32_t rights,
                                         weir_imported** imported);

/* What was imported. */
typedef struct weir_imported_info {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  int32_t rights;       /* weir_read or weir_read_write */
  uint64_t address;     /* of the imported part */
  uint64_t size;        /* of the imported part */
} weir_imported_info;

/* weir_error_not_permitted: it was revoked; weir_error_peer_closed: the exporter has ended. It
 * stays mapped until it is closed. */
WEIR_C_API weir_error weir_imported_get_info(weir_imported* imported, weir_imported_info* info);
WEIR_C_API weir_error weir_imported_close(weir_imported* imported);

/* --- Sharing over a link ---------------------------------------------------------------------- */

/* Memory that can be shared with other processes, kept until all of them have let go. */
typedef struct weir_shared weir_shared;
/* A connection to one other process over a Unix socket; docs/sharing.md explains which errors of
 * the other process are detected. */
typedef struct weir_link weir_link;
/* A received object or note that was not opened yet. */
typedef struct weir_offer weir_offer;

/* What a shared object is. */
typedef struct weir_shared_info {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  int32_t device;       /* the number of the device */
  uint64_t address;     /* where it is mapped in this process */
  uint64_t size;        /* the requested size */
  uint64_t unit;        /* the size of each of its handles */
} weir_shared_info;

/* `unit` is the size of the handles, which are shared whole; 0: one for all. */
WEIR_C_API weir_error weir_shared_create(weir_runtime* runtime, int32_t device, uint64_t size,
                                         uint64_t unit, weir_shared** shared);
/* A block of an exportable pool, in whole handles. It is freed to the pool once no process can
 * reach it any more. */
WEIR_C_API weir_error weir_shared_allocate(weir_allocator* allocator, weir_pool* pool,
                                           uint64_t size, weir_stream* stream,
                                           weir_shared** shared);
WEIR_C_API weir_error weir_shared_get_info(weir_shared* shared, weir_shared_info* info);
WEIR_C_API weir_error weir_shared_close(weir_shared* shared);

/* Two sockets joined to each other, for weir_link_open in two processes; the caller closes them. */
WEIR_C_API weir_error weir_link_create_sockets(int32_t sockets[2]);
/* Both sides call it, with a socket (SOCK_SEQPACKET) that leads to the other; weir takes it over,
 * also if the call fails.
 * `timeout` is in milliseconds, for calls that have no timeout of their own. */
WEIR_C_API weir_error weir_link_open(weir_runtime* runtime, int32_t socket, uint32_t timeout,
                                     weir_link** link);
WEIR_C_API weir_error weir_link_close(weir_link* link);
/* weir_error_peer_closed: the other process closed the link or died. */
WEIR_C_API weir_error weir_link_check(weir_link* link);
/* Each offers something and sets `grant`, if not null, to a number for weir_link_revoke. A size of
 * 0 is up to the end. */
WEIR_C_API weir_error weir_link_offer_memory(weir_link* link, weir_shared* shared, uint64_t offset,
                                             uint64_t size, int32_t rights, uint64_t* grant);
WEIR_C_API weir_error weir_link_offer_event(weir_link* link, weir_event* event, uint64_t* grant);
WEIR_C_API weir_error weir_link_offer_stream_pool(weir_link* link, weir_stream_pool* pool,
                                                  uint64_t* grant);
/* At most 1024 bytes. */
WEIR_C_API weir_error weir_link_send_note(weir_link* link, const void* note, uint64_t size);
/* Asks the other side to release it and waits. weir_error_not_ready: it has not released it. */
WEIR_C_API weir_error weir_link_revoke(weir_link* link, uint64_t grant, uint32_t timeout);
/* How many offers the other side has not released. */
WEIR_C_API weir_error weir_link_get_outstanding(weir_link* link, uint64_t* count);
/* The next offer or note. weir_error_not_ready: none arrived in time. */
WEIR_C_API weir_error weir_link_receive(weir_link* link, uint32_t timeout, weir_offer** offer);

enum {
  weir_offer_note = 0,
  weir_offer_memory = 1,
  weir_offer_legacy_memory = 2,
  weir_offer_stream_pool = 3,
  weir_offer_pool_pointer = 4,
  weir_offer_event = 5
};

/* What an offer contains. */
typedef struct weir_offer_info {
  uint32_t struct_size; /* sizeof this structure, set by the caller */
  int32_t kind;         /* weir_offer_... */
  int32_t rights;       /* of memory */
  uint32_t reserved;    /* 0 */
  uint64_t size;        /* of memory, or of a note */
} weir_offer_info;

/* What the offer contains. */
WEIR_C_API weir_error weir_offer_get_info(weir_offer* offer, weir_offer_info* info);
/* The first `capacity` bytes of a note. */
WEIR_C_API weir_error weir_offer_get_note(weir_offer* offer, void* note, uint64_t capacity);
/* Opening leaves the offer empty; its handle is still to be closed. Another kind than it is is
 * weir_error_invalid_argument and changes nothing. */
WEIR_C_API weir_error weir_offer_open_memory(weir_offer* offer, weir_imported** imported);
WEIR_C_API weir_error weir_offer_open_event(weir_offer* offer, weir_event** event);
WEIR_C_API weir_error weir_offer_open_stream_pool(weir_offer* offer, weir_stream_pool** pool);
/* What was not opened is returned to the giver. */
WEIR_C_API weir_error weir_offer_close(weir_offer* offer);

/* --- The process's own ------------------------------------------------------------------------ */

/* One runtime and one allocator a device that live as long as the process, for plug-ins that own
 * nothing (weir_plugins.h). Created at the first call, with the options of the environment
 * (WEIR_HEAP_POLICY, ...), except that the machine is the real one (runtime=cuda) and streams may
 * end without notice (heap_allow_unreleased_streams=on) unless something says otherwise; the same
 * handle each time. Closing them is weir_error_not_permitted. */
WEIR_C_API weir_error weir_default_runtime(weir_runtime** runtime);
WEIR_C_API weir_error weir_default_allocator(int32_t device, weir_allocator** allocator);
/* Options that override those of the environment, for what is not created yet: the runtime, and
 * allocators of further devices. Replaces what was set before; null and "" remove it.
 * weir_error_bad_option: the list cannot be read; weir_error_not_permitted: the runtime is open
 * already, and the list would have opened another. */
WEIR_C_API weir_error weir_default_set_options(const char* options);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-use-using) */

#endif
