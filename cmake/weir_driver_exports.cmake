# SPDX-License-Identifier: Apache-2.0
# weir_driver_exports(<target>): the functions that a driver library exports, one a row of calls.def, in a
# source of the target. plugins/sim_driver/sim_driver.hpp has what they call.
#
# Run as a script it writes that source. A row whose call takes a stream becomes two functions: the second,
# whose name ends in _ptsz, is for programs whose null stream is the thread's own.
if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${CALLS} calls)
  set(row "WEIR_DRIVER_CALL\\(([a-z0-9_]+), ([A-Za-z0-9]+), ([0-9]+), ([A-Za-z0-9_]+), (required|optional),[ \n]*\\(([^()]*)\\)\\)")
  string(REGEX MATCHALL "${row}" rows "${calls}")
  set(functions "")
  set(table "")
  foreach(each IN LISTS rows)
    string(REGEX MATCH "${row}" each "${each}")
    set(member ${CMAKE_MATCH_1})
    set(symbol ${CMAKE_MATCH_2})
    set(version ${CMAKE_MATCH_3})
    set(exported ${CMAKE_MATCH_4})
    set(parameters "${CMAKE_MATCH_6}")
    string(REPLACE ", " ";" arguments "${parameters}")
    list(TRANSFORM arguments REPLACE "^.*[ *]([a-z_0-9]+)$" ", \\1")
    string(REPLACE ";" "" arguments "${arguments}")
    string(APPEND functions "extern \"C\" CUresult ${exported}(${parameters}) {
  return answer(&table::${member}${arguments});\n}\n")
    set(variant nullptr)
    # What destroys a stream names it.
    if(parameters MATCHES "CUstream stream(,|$)" AND NOT member STREQUAL stream_destroy)
      string(REGEX REPLACE ", stream(,|$)" ", per_thread(stream)\\1" arguments "${arguments}")
      string(APPEND functions "extern \"C\" CUresult ${exported}_ptsz(${parameters}) {
  return answer(&table::${member}${arguments});\n}\n")
      set(variant "reinterpret_cast<void*>(&${exported}_ptsz)")
    endif()
    string(APPEND table
      "    {\"${symbol}\", ${version}, reinterpret_cast<void*>(&${exported}), ${variant}},\n")
  endforeach()
  file(WRITE ${OUTPUT} "// Written by cmake/weir_driver_exports.cmake from calls.def.\n#include \"sim_driver.hpp\"\n
using namespace weir::driver;\nusing namespace weir_sim_driver;\n\n${functions}
namespace weir_sim_driver {\n\nstatic const exported_call rows[] = {\n${table}};\n
std::span<const exported_call> exported_calls() noexcept { return rows; }\n
}  // namespace weir_sim_driver\n")
  return()
endif()

function(weir_driver_exports target)
  set(calls ${PROJECT_SOURCE_DIR}/include/weir/driver/calls.def)
  set(script ${PROJECT_SOURCE_DIR}/cmake/weir_driver_exports.cmake)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/exports.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D CALLS=${calls} -D OUTPUT=${output} -P ${script}
    DEPENDS ${calls} ${script} COMMENT "Writing the driver's exports" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
