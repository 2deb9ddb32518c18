/* SPDX-License-Identifier: Apache-2.0 */
/* The same in C. A call that frees twice returns the error, so only the leak goes unreturned. */
#include <stdio.h>
#include <string.h>

#include "weir.h"

#define CHECK(call)                                       \
  do {                                                    \
    if ((call) != weir_ok) {                              \
      fprintf(stderr, "%s\n", weir_last_error_message()); \
      return 1;                                           \
    }                                                     \
  } while (0)

static void ignore(void* context, weir_error code, const char* message) {
  (void)context, (void)code, (void)message;
}

int main(int count, char** words) {
  weir_runtime* machine = NULL;
  weir_allocator* memory = NULL;
  CHECK(weir_runtime_open(NULL, &machine));
  CHECK(weir_allocator_create(machine, 0, NULL, &memory));
  for (int i = 1; i < count; ++i) {
    if (strcmp(words[i], "handler") == 0) weir_set_error_handler(ignore, NULL);
    if (strcmp(words[i], "leak") == 0) {
      void* p = NULL;
      CHECK(weir_allocator_allocate(memory, 4096, NULL, &p));
    }
    if (strcmp(words[i], "limit") == 0) {
      uint64_t limit = 0;
      CHECK(weir_allocator_get_limit(memory, &limit));
      printf("%llu\n", (unsigned long long)limit);
    }
  }
  CHECK(weir_allocator_close(memory));
  return weir_runtime_close(machine) != weir_ok;
}
