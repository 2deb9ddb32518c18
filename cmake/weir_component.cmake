# SPDX-License-Identifier: Apache-2.0
# weir_component(): one folder of src/ as one target that can see only the components it may use.
#
#   weir_component(<name> [COMMAND_ONLY] PUBLIC_HEADERS weir/<name>/x.hpp... [DEPENDS lower-component...] [LIBRARIES library...])
#
# A COMMAND_ONLY component is not part of the library weir; what needs it links weir_<name>_component.
#
# Every component gets a folder of links in the build tree: its public headers under public/ and its own
# folder under private/<component>/. A target's include path is made of the folders of the components it
# depends on and nothing else, so an include that goes against the order of the components finds no file.
# What a path with ".." could still reach, cmake/check_layers.py refuses.

function(weir_library_properties target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE weir_warnings)
endfunction()

# For developers the standard headers that most components include are compiled once. They are in every
# source's sight then, included or not; the build of tests/package/add_subdirectory does without.
if(WEIR_DEVELOPER)
  file(WRITE ${PROJECT_BINARY_DIR}/precompiled_component.cpp "")
  add_library(weir_component_headers OBJECT ${PROJECT_BINARY_DIR}/precompiled_component.cpp)
  weir_library_properties(weir_component_headers)
  target_precompile_headers(weir_component_headers PRIVATE <algorithm> <array> <atomic> <chrono> <functional>
    <map> <memory> <mutex> <optional> <string> <utility> <variant> <vector>)
endif()

# Several sources in one compilation take half the time. A name that is local to one source may then shadow a
# local name of another, which is allowed. Turn it off when you change one source at a time (the debug preset does).
option(WEIR_UNITY "Compile the sources of a component together" ON)
set(WEIR_UNITY_BATCH 16 CACHE STRING "How many sources WEIR_UNITY compiles at a time; 0: all of a target")
add_library(weir_shadows INTERFACE)
target_compile_options(weir_shadows INTERFACE -Wno-shadow)

# Where fuzzers see which way their inputs take: components that read what others wrote, and the allocator. To
# mark the way costs a third of the compilation.
set(weir_fuzzed_components_ base order placement heap sharing trace capi formats)

# Components that read bytes of other processes and of files: their pointers are checked for alignment.
set(weir_reading_components_ sharing trace formats)

set_property(GLOBAL PROPERTY WEIR_COMPONENTS "")
set_property(GLOBAL PROPERTY WEIR_PUBLIC_HEADERS "")

function(weir_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${WEIR_UNITY_BATCH})
  target_link_libraries(${target} PRIVATE weir_shadows)  # behind weir_warnings: the last word counts
endfunction()

function(weir_component name)
  cmake_parse_arguments(PARSE_ARGV 1 component "COMMAND_ONLY" "" "PUBLIC_HEADERS;DEPENDS;LIBRARIES")
  set(view ${PROJECT_BINARY_DIR}/components/${name})
  file(REMOVE_RECURSE ${view})  # a header that left the component must not stay in its view
  file(MAKE_DIRECTORY ${view}/public ${view}/private)
  foreach(header IN LISTS component_PUBLIC_HEADERS)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/include/${header})
      message(FATAL_ERROR "component ${name}: include/${header} does not exist")
    endif()
    get_filename_component(folder ${view}/public/${header} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/${header} ${view}/public/${header} SYMBOLIC)
  endforeach()
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${name} ${view}/private/${name} SYMBOLIC)

  # All sources of the folder belong to the component, without a list to keep: there is no file in a component
  # that is built in one configuration and not in another, and a new file is found by the next build.
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  add_library(weir_${name} OBJECT ${sources})
  weir_library_properties(weir_${name})
  if(WEIR_UNITY)
    weir_unity(weir_${name})
  endif()
  if(TARGET weir_component_headers)
    target_precompile_headers(weir_${name} REUSE_FROM weir_component_headers)
  endif()
  if(WEIR_FUZZ AND name IN_LIST weir_fuzzed_components_)
    target_compile_options(weir_${name} PRIVATE
      -fsanitize-coverage=inline-8bit-counters,pc-table,indirect-calls,trace-cmp)
  endif()
  if(WEIR_SANITIZE MATCHES undefined AND name IN_LIST weir_reading_components_)
    target_compile_options(weir_${name} PRIVATE -fsanitize=alignment -fno-sanitize-recover=alignment)
  endif()
  target_include_directories(weir_${name} PUBLIC ${view}/public PRIVATE ${view}/private)
  set(seen ${name})
  foreach(lower IN LISTS component_DEPENDS)
    get_property(seen_by_lower GLOBAL PROPERTY WEIR_SEEN_BY_${lower})
    list(APPEND seen ${seen_by_lower})
    target_link_libraries(weir_${name} PUBLIC weir_${lower})
  endforeach()
  target_link_libraries(weir_${name} PUBLIC ${component_LIBRARIES})
  list(REMOVE_DUPLICATES seen)
  foreach(lower IN LISTS seen)
    target_include_directories(weir_${name} PRIVATE ${PROJECT_BINARY_DIR}/components/${lower}/private)
  endforeach()
  set_property(GLOBAL PROPERTY WEIR_SEEN_BY_${name} ${seen})
  if(component_COMMAND_ONLY)
    add_library(weir_${name}_component STATIC $<TARGET_OBJECTS:weir_${name}>)
    target_link_libraries(weir_${name}_component PUBLIC weir ${component_LIBRARIES})
    target_include_directories(weir_${name}_component PUBLIC ${view}/private)
    foreach(lower IN LISTS component_DEPENDS)
      if(TARGET weir_${lower}_component)
        target_link_libraries(weir_${name}_component PUBLIC weir_${lower}_component)
      endif()
    endforeach()
  else()
    set_property(GLOBAL APPEND PROPERTY WEIR_COMPONENTS ${name})
    set_property(GLOBAL APPEND PROPERTY WEIR_PUBLIC_HEADERS ${component_PUBLIC_HEADERS})
  endif()
endfunction()
