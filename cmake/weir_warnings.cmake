# SPDX-License-Identifier: Apache-2.0
# weir_warnings: the warnings every target of this project is built with.
#
# Left out are g++'s guesses about values, pointers and bounds along paths that it has inlined. They
# change with its version and are mostly about the insides of std::function, std::variant and
# std::string; the sanitizers, which run the code, know better. clang also checks that what a mutex
# guards is touched with the mutex held (src/base/mutex.hpp).
add_library(weir_warnings INTERFACE)
target_compile_options(weir_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wcast-align
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized -Wno-array-bounds -Wno-restrict
    -Wno-stringop-overflow -Wno-stringop-overread -Wno-mismatched-new-delete>
  $<$<BOOL:${WEIR_WERROR}>:-Werror>)
