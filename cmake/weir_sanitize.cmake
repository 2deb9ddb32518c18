# WEIR_SANITIZE: the sanitizers to build with, as -fsanitize takes them; the presets set it.
set(WEIR_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined")
if(WEIR_SANITIZE)
  # -O1 and line tables: stacks worth reading without paying for full debug information.
  add_compile_options(-O1 -g1 -fno-omit-frame-pointer -fsanitize=${WEIR_SANITIZE}
    -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${WEIR_SANITIZE})
endif()
