/* SPDX-License-Identifier: Apache-2.0 */
/* A C program that uses weir: a simulated runtime, its devices, and an error. */
#include <stdio.h>
#include <string.h>

#include "weir.h"

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, weir_last_error_message());
  return 1;
}

int main(void) {
  weir_runtime* runtime = NULL;
  weir_runtime_info info = {.struct_size = sizeof info};
  weir_device_info device = {.struct_size = sizeof device};

  if (weir_version() != WEIR_VERSION) return failed("header and library differ");
  if (weir_runtime_open("runtime=sim,sim_devices=2", &runtime) != weir_ok) return failed("open");
  if (weir_runtime_get_info(runtime, &info) != weir_ok) return failed("runtime");
  if (info.device_count != 2) return failed("two devices");
  if (weir_device_get_info(runtime, 1, &device) != weir_ok) return failed("device");
  if (weir_device_get_info(runtime, 2, &device) != weir_error_no_device) return failed("no device");
  if (strlen(weir_last_error_message()) == 0) return failed("a message");
  printf("weir %s: %d x %s\n", weir_version_text(), (int)info.device_count, device.name);
  if (weir_runtime_close(runtime) != weir_ok) return failed("close");
  return 0;
}
