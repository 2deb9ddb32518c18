/* SPDX-License-Identifier: Apache-2.0 */
/* A library that looks like libcuda from outside: every call of the table, each of which answers
 * with the number of its row. Built several times, with these switches:
 *
 *   FAKE_VERSION      what cuDriverGetVersion says (13000 is CUDA 13.0)
 *   FAKE_RESULT       what cuDriverGetVersion answers (0 is success)
 *   FAKE_EXPORTS      whether the calls are exported (a version script may take some away again)
 *   FAKE_PROC_ADDRESS 0: no cuGetProcAddress; 1: the form of CUDA 11.3; 2: the form of 12.0 as well
 *   FAKE_HIDES        a symbol that cuGetProcAddress pretends not to know
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FAKE_EXPORTS
#define FAKE_CALL __attribute__((visibility("default")))
#else
#define FAKE_CALL __attribute__((visibility("hidden")))
#endif

enum {
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) row_##member,
#include "weir/driver/calls.def"
};

/* One call a row, under the exported name. The number of the row marks it; no result is that large.
 */
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  FAKE_CALL int exported(int* first);                                         \
  int exported(int* first) {                                                  \
    if (row_##member != row_driver_get_version) return 100000 + row_##member; \
    *first = FAKE_VERSION;                                                    \
    return FAKE_RESULT;                                                       \
  }
#include "weir/driver/calls.def"

#if FAKE_PROC_ADDRESS
struct row {
  const char* symbol;
  int version;
  int (*function)(int*);
};
static const struct row rows[] = {
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  {#symbol, version, exported},
#include "weir/driver/calls.def"
};

enum {
  success = 0,
  invalid_value = 1,
  found = 0,
  symbol_not_found = 1,
  version_not_sufficient = 2
};

/* The newest signature of `symbol` that is not newer than `version`, as the driver does it. */
static int look_up(const char* symbol, void** function, int version, uint64_t flags, int* status) {
  const struct row* best = NULL;
  size_t i;
  *function = NULL;
  *status = symbol_not_found;
  /* Only legacy default streams will do; and no driver knows the future. What stands in the other
   * places then means nothing. */
  if (flags != 1 || version > FAKE_VERSION) {
    memcpy(function, &rows[0].function, sizeof(*function));
    *status = found;
    return invalid_value;
  }
  if (strcmp(symbol, FAKE_HIDES) == 0) {
    memcpy(function, &rows[0].function, sizeof(*function));
    return success;
  }
  for (i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    if (strcmp(rows[i].symbol, symbol) != 0) continue;
    if (best == NULL) *status = version_not_sufficient;
    if (rows[i].version <= version && (best == NULL || rows[i].version > best->version))
      best = &rows[i];
  }
  if (best == NULL) return success;
  *status = found;
  memcpy(function, &best->function, sizeof(*function));
  return success;
}

__attribute__((visibility("default"))) int cuGetProcAddress(const char* symbol, void** function,
                                                            int version, uint64_t flags);
int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  int status;
  int answer = look_up(symbol, function, version, flags, &status);
  /* Who knows the second form is to be asked in it. */
  if (FAKE_PROC_ADDRESS == 2) return invalid_value;
  return answer == success && status != found ? 500 : answer;
}
#endif

#if FAKE_PROC_ADDRESS == 2
__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol, void** function,
                                                               int version, uint64_t flags,
                                                               int* status);
int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags,
                        int* status) {
  return look_up(symbol, function, version, flags, status);
}
#endif
