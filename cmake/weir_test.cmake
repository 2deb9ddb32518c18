# SPDX-License-Identifier: Apache-2.0
# weir_test(), weir_benchmark(), weir_example(), weir_fuzz(): one line for each program that shows
# that weir works.
#
#   weir_test(name SOURCES file... [LIBRARIES library...] [LABELS label...] [TIMEOUT seconds]
#             [ARGUMENTS argument...] [ENVIRONMENT NAME=value...] [CHECKED] [OPTIMISED]
#             [THREADED file... | THREADED ALL] [APART file...] [COST seconds] [SHARDS number])
#
# Sources are compiled several at a time (WEIR_UNITY), but for those that APART names, because they call
# things of their own as others do.
#
# CHECKED says that ./dev test builds and runs it with AddressSanitizer, and then not once more without
# (of a test that needs a GPU: that its sources are those of such a test). THREADED names the sources whose
# tests use several threads, and what these need: with ThreadSanitizer the program consists of them, and
# ./dev test builds and runs it with that as well. OPTIMISED says that the test's own code runs so long that it is worth
# optimising. ON_DEMAND says that ./dev test leaves it out.
#
# COST says about how long a test takes that takes more than ten seconds: ctest starts the longest first, so that none
# runs alone at the end. SHARDS says in how many parts, name_1 and so on, ctest runs it, side by side.
#
# Labels say where a test runs. unit (the default), contract and scenario run everywhere; slow ones not
# under sanitizers; tool (the command) and example not under ThreadSanitizer; script and package once, in
# release; gpu on a machine that has one, with the preset gpu, and nowhere else.

find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(Threads REQUIRED)

# What a test may see: every public header, and the inside of every component as "component/header.hpp".
add_library(weir_inside INTERFACE)
target_link_libraries(weir_inside INTERFACE weir weir_warnings)
get_property(weir_components_ GLOBAL PROPERTY WEIR_COMPONENTS)
foreach(component IN LISTS weir_components_)
  target_include_directories(weir_inside INTERFACE ${PROJECT_BINARY_DIR}/components/${component}/private)
endforeach()

# Compiling is most of what a test run costs. The code of the tests themselves is not optimised, where it
# does not run long, and the headers that all of them include are compiled once.
add_library(weir_test_settings INTERFACE)
target_link_libraries(weir_test_settings INTERFACE weir_inside GTest::gmock_main)
target_include_directories(weir_test_settings INTERFACE ${PROJECT_SOURCE_DIR}/tests)
option(WEIR_MUTANTS "The sources hold planted faults (tests/mutation)" OFF)
if(WEIR_MUTANTS)
  target_sources(weir_test_settings INTERFACE ${PROJECT_SOURCE_DIR}/tests/mutation/listener.cpp)
endif()

# weir_test_code_(): target `name` is compiled as tests are, OPTIMISED or not.
file(WRITE ${PROJECT_BINARY_DIR}/precompiled.cpp "")
function(weir_test_code_ name optimised)
  set(headers weir_test_headers)
  set(level -O0)
  if(optimised AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT WEIR_SANITIZE)
    set(headers weir_optimised_test_headers)
    set(level -O1)
  endif()
  if(NOT TARGET ${headers})
    add_library(${headers} OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
    weir_test_flags_(${headers} ${level})
    target_precompile_headers(${headers} PRIVATE <chrono> <functional> <memory> <random> <string>
      <thread> <vector> <gmock/gmock.h> <gtest/gtest.h> <weir/weir.hpp>)
  endif()
  weir_test_flags_(${name} ${level})
  target_precompile_headers(${name} REUSE_FROM ${headers})
endfunction()

function(weir_test_flags_ name level)
  target_link_libraries(${name} PRIVATE weir_test_settings)
  if(WEIR_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE ${level})
  endif()
  # A sanitizer's report names the functions of a test without debugging information, too, which would take
  # a quarter of the compilation. That of the library names the lines.
  if(WEIR_SANITIZE)
    target_compile_options(${name} PRIVATE -g0)
  endif()
  # The library has these checks. In the code of the tests they would take a part of the compilation; an invalid
  # pointer ends the test all the same.
  if(WEIR_SANITIZE MATCHES undefined)
    target_compile_options(${name} PRIVATE -fno-sanitize=vptr,object-size)
  endif()
endfunction()

add_custom_target(weir_tests)           # every weir_test() program
add_custom_target(weir_checked_tests)   # of these: CHECKED ones
add_custom_target(weir_threaded_tests)  # THREADED ones
add_custom_target(weir_release_tests)   # those that are not CHECKED
add_custom_target(weir_counted_tests)   # what ./dev coverage runs: no slow ones, none that need a GPU
add_custom_target(weir_gpu_programs)    # what ./dev gpu runs: tests and benchmarks that need a GPU
add_custom_target(weir_products)  # what a user sees: libraries, command, examples
add_dependencies(weir_products weir weir_shared)
add_dependencies(weir_gpu_programs weir_shared)

# weir_patience_(): seconds in `variable` as they are where every call is checked or counted.
function(weir_patience_ variable)
  if(WEIR_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Coverage")
    math(EXPR seconds "4 * ${${variable}}")
    set(${variable} ${seconds} PARENT_SCOPE)
  endif()
endfunction()

# weir_register_(): target `name` becomes a test.
function(weir_register_ name default_label)
  # TIMEOUT, too, is read as a list: those who pass on what they got may have none.
  cmake_parse_arguments(PARSE_ARGV 2 test "" "" "TIMEOUT;COST;SHARDS;LABELS;ARGUMENTS;ENVIRONMENT")
  if(NOT test_LABELS)
    set(test_LABELS ${default_label})
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 300)
  endif()
  weir_patience_(test_TIMEOUT)
  if(gpu IN_LIST test_LABELS)  # where the report of ./dev gpu looks
    list(APPEND test_ENVIRONMENT GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/report/tests/${name}.xml)
  endif()
  if(NOT test_COST)
    set(test_COST 0)
  endif()
  set(tests ${name})
  if(test_SHARDS)
    list(APPEND test_ENVIRONMENT GTEST_TOTAL_SHARDS=${test_SHARDS})
    set(tests "")
    foreach(shard RANGE 1 ${test_SHARDS})
      list(APPEND tests ${name}_${shard})
    endforeach()
  endif()
  set(shard 0)
  foreach(test IN LISTS tests)
    add_test(NAME ${test} COMMAND ${name} ${test_ARGUMENTS})
    set_tests_properties(${test} PROPERTIES LABELS "${test_LABELS}" TIMEOUT ${test_TIMEOUT} COST ${test_COST}
      ENVIRONMENT "${test_ENVIRONMENT}")
    if(test_SHARDS)
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT GTEST_SHARD_INDEX=${shard})
    endif()
    math(EXPR shard "${shard} + 1")
  endforeach()
endfunction()

# weir_test_sources(name [OPTIMISED] file...): sources that are compiled once and linked into several programs,
# as one of their LIBRARIES.
function(weir_test_sources name)
  cmake_parse_arguments(PARSE_ARGV 1 test "OPTIMISED" "" "")
  add_library(${name} OBJECT ${test_UNPARSED_ARGUMENTS})
  weir_test_code_(${name} ${test_OPTIMISED})
  if(WEIR_UNITY)
    weir_unity(${name})
  endif()
endfunction()

function(weir_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "CHECKED;OPTIMISED;ON_DEMAND" "TIMEOUT;COST;SHARDS"
    "SOURCES;THREADED;LIBRARIES;LABELS;ARGUMENTS;ENVIRONMENT;APART")
  if(WEIR_SANITIZE AND (slow IN_LIST test_LABELS OR gpu IN_LIST test_LABELS))
    return()  # it would be compiled for nothing
  endif()
  if(WEIR_SANITIZE MATCHES thread AND test_THREADED AND NOT test_THREADED STREQUAL "ALL")
    set(test_SOURCES ${test_THREADED})
  endif()
  add_executable(${name} ${test_SOURCES})
  target_link_libraries(${name} PRIVATE ${test_LIBRARIES})
  weir_test_code_(${name} ${test_OPTIMISED})
  if(WEIR_UNITY)
    weir_unity(${name})
    set_source_files_properties(${test_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  add_dependencies(weir_tests ${name})
  if(NOT slow IN_LIST test_LABELS AND NOT gpu IN_LIST test_LABELS)
    add_dependencies(weir_counted_tests ${name})
  endif()
  if(NOT test_LABELS)
    set(test_LABELS unit)
  endif()
  if(gpu IN_LIST test_LABELS)
    add_dependencies(weir_gpu_programs ${name})
  endif()
  if(test_CHECKED)
    add_dependencies(weir_checked_tests ${name})
    list(APPEND test_LABELS checked)
  elseif(test_ON_DEMAND)
    list(APPEND test_LABELS on_demand)
  else()
    add_dependencies(weir_release_tests ${name})
  endif()
  if(test_THREADED)
    add_dependencies(weir_threaded_tests ${name})
    list(APPEND test_LABELS threaded)
    if(WEIR_SANITIZE MATCHES thread)  # sweeps of one thread have no race to find, and are long
      list(APPEND test_ENVIRONMENT
        "GTEST_FILTER=-*.any_driver_call_may_fail:*.any_call_of_*_may_fail:*.what_it_costs_*")
    endif()
  endif()
  weir_register_(${name} unit LABELS ${test_LABELS} TIMEOUT ${test_TIMEOUT} COST ${test_COST} SHARDS ${test_SHARDS}
    ARGUMENTS ${test_ARGUMENTS} ENVIRONMENT ${test_ENVIRONMENT})
endfunction()

# weir_example(name SOURCES file... [LIBRARIES ...]): a program a user could write: it links weir::weir
# and sees what is installed. Running it is a test.
function(weir_example name)
  cmake_parse_arguments(PARSE_ARGV 1 example "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ARGUMENTS;ENVIRONMENT")
  add_executable(${name} ${example_SOURCES})
  target_link_libraries(${name} PRIVATE weir::weir weir_warnings ${example_LIBRARIES})
  if(WEIR_DEVELOPER AND example_SOURCES MATCHES "\\.cpp$")
    if(NOT TARGET weir_example_headers)
      add_library(weir_example_headers OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
      target_link_libraries(weir_example_headers PRIVATE weir::weir weir_warnings)
      target_precompile_headers(weir_example_headers PRIVATE <weir/weir.hpp>)
    endif()
    target_precompile_headers(${name} REUSE_FROM weir_example_headers)
  endif()
  add_dependencies(weir_products ${name})
  weir_register_(${name} example LABELS example ${example_LABELS} TIMEOUT ${example_TIMEOUT}
    ARGUMENTS ${example_ARGUMENTS} ENVIRONMENT ${example_ENVIRONMENT})
endfunction()

# weir_benchmark(name SOURCES file... [LIBRARIES ...] [LABELS gpu]): a Google Benchmark program.
# benchmarks.txt in the build tree lists them for ./dev: name, path and labels, a line each.
file(WRITE ${PROJECT_BINARY_DIR}/benchmarks.txt "")
add_custom_target(weir_benchmarks)
function(weir_benchmark name)
  cmake_parse_arguments(PARSE_ARGV 1 bench "" "" "SOURCES;LIBRARIES;LABELS")
  add_executable(${name} ${bench_SOURCES})
  target_link_libraries(${name} PRIVATE weir_inside benchmark::benchmark_main ${bench_LIBRARIES})
  if(NOT TARGET weir_benchmark_headers)
    add_library(weir_benchmark_headers OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
    target_link_libraries(weir_benchmark_headers PRIVATE weir_inside benchmark::benchmark_main)
    target_precompile_headers(weir_benchmark_headers PRIVATE <benchmark/benchmark.h> <string> <thread> <vector> <weir/weir.hpp>)
  endif()
  target_precompile_headers(${name} REUSE_FROM weir_benchmark_headers)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
  add_dependencies(weir_benchmarks ${name})
  if(gpu IN_LIST bench_LABELS)
    add_dependencies(weir_gpu_programs ${name})
  endif()
  list(JOIN bench_LABELS "," labels)
  file(APPEND ${PROJECT_BINARY_DIR}/benchmarks.txt
    "${name} ${PROJECT_BINARY_DIR}/benchmarks/${name} ${labels}\n")
endfunction()

# weir_fuzz(name SOURCES file... LIBRARIES component...): a libFuzzer program; nothing without WEIR_FUZZ. It
# links the components it names, e.g. weir_base, so that no others need to be built for it, or weir_inside.
# Seeds stand in corpus/<name>/ beside the caller's CMakeLists.txt, if it has any.
set(WEIR_FUZZ_SECONDS 20 CACHE STRING "How long ctest lets each fuzz target run")
set(WEIR_FUZZ_SEED 1 CACHE STRING "Where it begins, so that a run can be repeated; 0: anywhere")
add_custom_target(weir_fuzzers)
function(weir_fuzz name)
  if(NOT WEIR_FUZZ)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 fuzz "" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${fuzz_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE weir_warnings ${fuzz_LIBRARIES})
  target_compile_options(${name} PRIVATE -O0 -g0)
  target_precompile_headers(${name} REUSE_FROM weir_test_headers)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  add_dependencies(weir_fuzzers ${name})
  # New inputs stay in the build tree, as the start of the next run; seeds are read only.
  set(found ${PROJECT_BINARY_DIR}/fuzz/corpus/${name})
  file(MAKE_DIRECTORY ${found})
  set(seeds ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
  if(NOT EXISTS ${seeds})
    set(seeds "")
  endif()
  math(EXPR timeout "${WEIR_FUZZ_SECONDS} + 30")
  # To look for leaks takes longer than the run; the tests of what is fuzzed look for them.
  weir_register_(${name} fuzz TIMEOUT ${timeout} ENVIRONMENT LSAN_OPTIONS=detect_leaks=0 ARGUMENTS -max_total_time=${WEIR_FUZZ_SECONDS}
    -seed=${WEIR_FUZZ_SEED} -timeout=20 -print_final_stats=1 ${found} ${seeds})
endfunction()
