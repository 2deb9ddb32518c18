# SPDX-License-Identifier: Apache-2.0
# weir_embed_viewer(<target>): the page of the report, from viewer/ into a source of the target.
#
# Run as a script it writes that source: the page, its style, and its scripts as one.
if(CMAKE_SCRIPT_MODE_FILE)
  # Compilers may refuse string literals that are very long, so every file is one of its own. Together they are
  # one again, longer than every compiler must take; ours do.
  function(literal out)
    set(text "")
    foreach(file IN LISTS ARGN)
      file(READ ${file} content)
      string(APPEND text "    R\"viewer(${content})viewer\"\n")
    endforeach()
    set(${out} "${text}" PARENT_SCOPE)
  endfunction()
  list(TRANSFORM SCRIPTS PREPEND ${VIEWER}/js/)
  literal(page ${VIEWER}/page.html)
  literal(style ${VIEWER}/style.css)
  literal(script ${SCRIPTS})
  file(WRITE ${OUTPUT} "// Written by cmake/weir_viewer.cmake from viewer/.\n#include \"report/template.hpp\"\n
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \"-Woverlength-strings\"
namespace weir { inline namespace v0 { namespace report {\n
const std::string_view page_template{\n${page}};
const std::string_view page_style{\n${style}};
const std::string_view page_script{\n    \"(() => {\\n'use strict';\\n\"\n${script}    \"})();\\n\"};\n
}}}  // namespace weir::v0::report
#pragma GCC diagnostic pop\n")
  return()
endif()

# In this order they become one script: a file may use what stands in those before it.
set(WEIR_VIEWER_SCRIPTS unpack.js words.js store.js zstd.js recording.js snapshot.js lifetimes.js grouping.js made.js drop.js chart.js timeline.js arena.js pins.js tables.js flame.js comparison.js address.js page.js viewer.js)

function(weir_embed_viewer target)
  set(viewer ${PROJECT_SOURCE_DIR}/viewer)
  set(output ${PROJECT_BINARY_DIR}/viewer.cpp)
  list(TRANSFORM WEIR_VIEWER_SCRIPTS PREPEND ${viewer}/js/ OUTPUT_VARIABLE scripts)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D VIEWER=${viewer} -D OUTPUT=${output} "-DSCRIPTS=${WEIR_VIEWER_SCRIPTS}"
            -P ${PROJECT_SOURCE_DIR}/cmake/weir_viewer.cmake
    DEPENDS ${viewer}/page.html ${viewer}/style.css ${scripts}
            ${PROJECT_SOURCE_DIR}/cmake/weir_viewer.cmake
    COMMENT "Embedding the viewer" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
