/* SPDX-License-Identifier: Apache-2.0 */
/* Versions, errors, runtimes and devices as a C program uses them. */
#include <stddef.h>
#include <string.h>

#include "c_tests.h"

_Static_assert(weir_ok == 0, "success is zero");
_Static_assert(weir_error_invalid_argument == 1 && weir_error_internal == 30, "numbers are ABI");
/* Layouts are ABI: later versions may only add at the end. */
_Static_assert(offsetof(weir_runtime_info, struct_size) == 0, "the size comes first");
_Static_assert(offsetof(weir_runtime_info, driver) == 12, "ABI");
_Static_assert(sizeof(weir_runtime_info) == 272, "ABI");
_Static_assert(offsetof(weir_device_info, struct_size) == 0, "the size comes first");
_Static_assert(offsetof(weir_device_info, total_memory) == 8, "ABI");
_Static_assert(offsetof(weir_device_info, name) == 36, "ABI");
_Static_assert(offsetof(weir_device_info, uuid) == 152, "ABI");
_Static_assert(sizeof(weir_device_info) == 168, "ABI");
_Static_assert(sizeof(weir_option_info) == 64, "ABI");
_Static_assert(sizeof(weir_memory_stats) == 256, "ABI");
_Static_assert(offsetof(weir_memory_stats, cached) == 88, "ABI");
_Static_assert(sizeof(weir_block_info) == 48, "ABI");
_Static_assert(sizeof(weir_tag_stats) == 264, "ABI");
_Static_assert(sizeof(weir_snapshot_info) == 272, "ABI");
_Static_assert(sizeof(weir_pool_info) == 408, "ABI");
_Static_assert(sizeof(weir_physical_info) == 24, "ABI");
_Static_assert(sizeof(weir_recorder_options) == 32, "ABI");
_Static_assert(sizeof(weir_recorder_stats) == 40, "ABI");
_Static_assert(sizeof(weir_stream_pool_config) == 32, "ABI");
_Static_assert(sizeof(weir_stream_pool_stats) == 64, "ABI");
_Static_assert(sizeof(weir_block_pool_stats) == 144, "ABI");
_Static_assert(sizeof(weir_buffer_info) == 32, "ABI");
_Static_assert(sizeof(weir_managed_info) == 280, "ABI");
_Static_assert(sizeof(weir_buffer_pool_options) == 24, "ABI");
_Static_assert(sizeof(weir_buffer_pool_stats) == 56, "ABI");
_Static_assert(sizeof(weir_shared_piece) == 16, "ABI");
_Static_assert(sizeof(weir_imported_info) == 24, "ABI");
_Static_assert(sizeof(weir_shared_info) == 32, "ABI");
_Static_assert(sizeof(weir_offer_info) == 24, "ABI");

const char* weir_test_version(void) {
  REQUIRE(weir_version() == WEIR_VERSION);
  REQUIRE(strcmp(weir_version_text(), "") != 0);
  return NULL;
}

const char* weir_test_errors(void) {
  REQUIRE(strcmp(weir_error_name(weir_ok), "ok") == 0);
  REQUIRE(strcmp(weir_error_name(weir_error_out_of_memory), "out_of_memory") == 0);
  REQUIRE(strcmp(weir_error_name(4711), "unknown") == 0);
  REQUIRE(strcmp(weir_error_meaning(weir_error_out_of_memory),
                 "not enough memory for the request") == 0);
  REQUIRE(weir_error_meaning(-1)[0] != '\0');
  return NULL;
}

const char* weir_test_runtime(void) {
  weir_runtime* runtime = NULL;
  weir_runtime_info about = {sizeof(about), 0, 0, ""};
  weir_device_info device;
  uint64_t available = 0;
  uint64_t total = 0;

  REQUIRE(weir_runtime_open("runtime=sim,sim_devices=2,sim_capacity=4GiB", &runtime) == weir_ok);
  REQUIRE(runtime != NULL);

  REQUIRE(weir_runtime_get_info(runtime, &about) == weir_ok);
  REQUIRE(about.struct_size == sizeof(about));
  REQUIRE(about.device_count == 2);
  REQUIRE(about.driver_version >= 11020);
  REQUIRE(about.driver[0] != '\0');

  memset(&device, 0xff, sizeof(device));
  device.struct_size = sizeof(device);
  REQUIRE(weir_device_get_info(runtime, 1, &device) == weir_ok);
  REQUIRE(device.struct_size == sizeof(device));
  REQUIRE(device.total_memory == 4ull << 30);
  REQUIRE(device.compute_major == 9 && device.compute_minor == 0);
  REQUIRE(device.multiprocessors > 0);
  REQUIRE((device.features & weir_device_virtual_memory) != 0);
  REQUIRE((device.features & weir_device_memory_pools) != 0);
  REQUIRE((device.features & weir_device_posix_descriptors) != 0);
  REQUIRE(device.granularity == 2u << 20);
  REQUIRE(memchr(device.name, '\0', sizeof(device.name)) != NULL && device.name[0] != '\0');
  REQUIRE(memchr(device.pci_bus_id, '\0', sizeof(device.pci_bus_id)) != NULL);

  REQUIRE(weir_device_get_memory(runtime, 0, &available, &total) == weir_ok);
  REQUIRE(total == 4ull << 30);
  REQUIRE(available > 0 && available < total); /* a context has its price */
  REQUIRE(weir_device_get_memory(runtime, 0, NULL, NULL) == weir_ok);
  REQUIRE_OK(weir_device_synchronize(runtime, 1));
  REQUIRE(weir_device_synchronize(runtime, 2) == weir_error_no_device);

  REQUIRE(weir_runtime_close(runtime) == weir_ok);
  return NULL;
}

const char* weir_test_bad_input(void) {
  weir_runtime* runtime = NULL;
  weir_runtime* untouched = NULL;
  weir_runtime_info about = {sizeof(about), 0, 0, ""};
  weir_device_info device = {0};
  struct {
    weir_runtime_info known;
    uint32_t from_the_future;
  } newer;

  REQUIRE(weir_runtime_open("runtime=sim", NULL) == weir_error_invalid_argument);
  REQUIRE(weir_runtime_open("runtime=abacus", &untouched) == weir_error_bad_option);
  REQUIRE(untouched == NULL);
  REQUIRE(strstr(weir_last_error_message(), "abacus") != NULL);
  REQUIRE(weir_runtime_open("runtime=cuda,driver_path=libweir_no_such_driver.so", &untouched) ==
          weir_error_driver_unavailable);
  REQUIRE(strstr(weir_last_error_message(), "libweir_no_such_driver.so") != NULL);
  REQUIRE(weir_last_error_native() == 0);

  REQUIRE(weir_runtime_close(NULL) == weir_ok);
  REQUIRE(weir_runtime_get_info(NULL, &about) == weir_error_invalid_argument);
  REQUIRE(weir_runtime_get_info((weir_runtime*)&about, &about) == weir_error_invalid_argument);

  REQUIRE(weir_runtime_open("runtime=sim", &runtime) == weir_ok);
  REQUIRE(weir_runtime_get_info(runtime, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_device_get_info(runtime, 0, NULL) == weir_error_invalid_argument);
  device.struct_size = sizeof(device);
  REQUIRE(weir_device_get_info(runtime, 1, &device) == weir_error_no_device);
  REQUIRE(weir_device_get_info(runtime, -1, &device) == weir_error_no_device);
  REQUIRE(weir_device_get_memory(runtime, 99, NULL, NULL) == weir_error_no_device);

  /* Structures of another age: shorter than the first is refused, longer is filled with zeros. */
  device.struct_size = 0;
  REQUIRE(weir_device_get_info(runtime, 0, &device) == weir_error_bad_version);
  about.struct_size = sizeof(about) - 1;
  about.device_count = -7;
  REQUIRE(weir_runtime_get_info(runtime, &about) == weir_error_bad_version);
  REQUIRE(about.device_count == -7);
  memset(&newer, 0xff, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  REQUIRE(weir_runtime_get_info(runtime, &newer.known) == weir_ok);
  REQUIRE(newer.known.struct_size == sizeof(weir_runtime_info));
  REQUIRE(newer.from_the_future == 0);

  REQUIRE(weir_runtime_close(runtime) == weir_ok);
  REQUIRE(weir_runtime_close(runtime) == weir_error_closed);
  about.struct_size = sizeof(about);
  REQUIRE(weir_runtime_get_info(runtime, &about) == weir_error_closed);
  REQUIRE(strstr(weir_last_error_message(), "closed") != NULL);
  return NULL;
}
