/* weir.h: weir for C, and for every language that can call C.
 *
 * The rules of this interface:
 *  - A call that can fail returns a weir_error; weir_ok is 0. What a failed call should have
 * written is untouched. weir_last_error_message() then has the story, for the calling thread.
 *  - Nothing throws, prints or aborts across it. Null where an object is needed, a closed handle
 * and a handle from nowhere are errors, not undefined.
 *  - Any thread may make any call. A handle may be closed while another thread uses it: that call
 *    finishes first, later ones fail.
 *  - Structures begin with struct_size, which the caller sets to sizeof the structure. New members
 *    are only ever added at the end, so programs and libraries of different age understand each
 * other.
 *  - Error numbers, members and signatures never change their meaning within a major version.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stdint.h>

#if defined(__GNUC__)
#define WEIR_C_API __attribute__((visibility("default")))
#else
#define WEIR_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- Version ---------------------------------------------------------------------------------- */

/* The version of this header; weir_version() is that of the library. 1.2.3 is 10203. */
#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0
#define WEIR_VERSION (WEIR_VERSION_MAJOR * 10000 + WEIR_VERSION_MINOR * 100 + WEIR_VERSION_PATCH)

WEIR_C_API int32_t weir_version(void);
/* "0.1.0". */
WEIR_C_API const char* weir_version_text(void);

/* --- Errors ----------------------------------------------------------------------------------- */

/* weir_ok, or one of weir_error_<name> with the names, numbers and meanings in weir/errc.def. */
typedef int32_t weir_error;
enum {
  weir_ok = 0,
#define WEIR_ERRC(name, value, meaning) weir_error_##name = value,
#include "weir/errc.def"
#undef WEIR_ERRC
};

/* "out_of_memory"; "ok" for weir_ok; "unknown" for a number outside the list. */
WEIR_C_API const char* weir_error_name(weir_error code);
/* One line in plain words. */
WEIR_C_API const char* weir_error_meaning(weir_error code);

/* The message of the calling thread's last failed call, with the driver call, its native code and
 * the sizes involved; "" before the first. Good until the thread's next failing call. Cut at 1023
 * bytes. */
WEIR_C_API const char* weir_last_error_message(void);
/* The driver's own result code of that failure; 0 where no driver call was involved. */
WEIR_C_API int32_t weir_last_error_native(void);
/* How many failures were found where none could be returned, since the process began. */
WEIR_C_API uint64_t weir_reported_errors(void);

/* --- Runtimes --------------------------------------------------------------------------------- */

/* A driver with its devices: the machine's own, or a simulated one. */
typedef struct weir_runtime weir_runtime;

/* Opens a runtime. `options` is a list "name=value,name=value" as docs/options.md describes, for
 * instance "runtime=sim,sim_devices=2"; null and "" mean the initial values. */
WEIR_C_API weir_error weir_runtime_open(const char* options, weir_runtime** runtime);

/* The same, with the variables of the environment (WEIR_RUNTIME, ...) between the initial values
 * and `options`. */
WEIR_C_API weir_error weir_runtime_open_from_environment(const char* options,
                                                         weir_runtime** runtime);

/* Closes a runtime. Null is fine; closing twice is weir_error_already_freed. */
WEIR_C_API weir_error weir_runtime_close(weir_runtime* runtime);

typedef struct weir_runtime_info {
  uint32_t struct_size;
  int32_t driver_version; /* 13000 is CUDA 13.0 */
  int32_t device_count;
  char driver[260]; /* the library that was opened, or "simulated"; for people, cut if longer */
} weir_runtime_info;

WEIR_C_API weir_error weir_runtime_get_info(weir_runtime* runtime, weir_runtime_info* info);

/* --- Devices ---------------------------------------------------------------------------------- */

/* What a device can do: bits of weir_device_info.features. */
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

typedef struct weir_device_info {
  uint32_t struct_size;
  uint32_t features;     /* weir_device_... */
  uint64_t total_memory; /* bytes */
  uint64_t granularity;  /* bytes: the unit of physical memory; 0 without virtual memory */
  int32_t compute_major;
  int32_t compute_minor;
  int32_t multiprocessors;
  char name[100];      /* cut if longer */
  char pci_bus_id[16]; /* "0000:18:00.0" */
  uint8_t uuid[16];    /* only with weir_device_has_uuid */
} weir_device_info;

/* Devices count from 0 to device_count - 1; any other number is weir_error_no_device. */
WEIR_C_API weir_error weir_device_get_info(weir_runtime* runtime, int32_t device,
                                           weir_device_info* info);

/* What is free and present on a device, in bytes, by all processes together. Creates the device's
 * context. Either pointer may be null. */
WEIR_C_API weir_error weir_device_get_memory(weir_runtime* runtime, int32_t device, uint64_t* free,
                                             uint64_t* total);

#ifdef __cplusplus
}
#endif

#endif
