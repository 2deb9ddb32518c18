/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is linked with the driver. */
#include "driver.h"

#define CALL(symbol, version, exported, parameters) extern int exported parameters;
DRIVER_CALLS
#undef CALL

int linked_find(void);

int linked_find(void) {
#define CALL(symbol, version, exported, parameters) p_##symbol = exported;
  DRIVER_CALLS
#undef CALL
  return 1;
}
