/* SPDX-License-Identifier: Apache-2.0 */
/* The tests that are written in C: each answers null, or the condition that did not hold. */
#ifndef WEIR_TESTS_C_TESTS_H
#define WEIR_TESTS_C_TESTS_H

#include "weir.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_C_TESTS(test)                                                                         \
  test(version) test(errors) test(runtime) test(bad_input) test(options) test(tags) test(streams)  \
      test(watching) test(events) test(closed_and_null) test(memory) test(memory_bad_input)        \
          test(blocks_and_counters) test(limits_and_release) test(pools) test(captures)            \
              test(snapshots) test(recording) test(out_of_memory_null) test(out_of_memory_reclaim) \
                  test(out_of_memory_handler) test(out_of_memory_jump) test(stream_pools)          \
                      test(stream_pools_bad_input) test(block_pools) test(buffers)                 \
                          test(managed_buffers) test(managed_placement) test(pinned_buffers)       \
                              test(buffer_pools) test(descriptors) test(suspended_memory)          \
                                  test(growable_memory)

#define WEIR_DECLARE(name) const char* weir_test_##name(void);
WEIR_C_TESTS(WEIR_DECLARE)
#undef WEIR_DECLARE

/* A folder for the files of this run; it goes with the program. */
const char* weir_test_folder(void);
/* Over two ends of a link. */
const char* weir_test_link(weir_runtime* runtime, weir_link* giver, weir_link* taker);

/* Two processes, one at either end of a socket pair. */
const char* weir_test_this_process(int32_t socket);
const char* weir_test_other_process(int32_t socket);

#define REQUIRE(condition)               \
  do {                                   \
    if (!(condition)) return #condition; \
  } while (0)
#define REQUIRE_OK(call) REQUIRE((call) == weir_ok)
/* Something small to work on. */
#define SMALL_MACHINE "runtime=sim,sim_devices=2,sim_capacity=1GiB"

#ifdef __cplusplus
}
#endif

#endif
