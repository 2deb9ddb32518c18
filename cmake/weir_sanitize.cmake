# SPDX-License-Identifier: Apache-2.0
# WEIR_SANITIZE: the sanitizers to build with, as -fsanitize takes them; the presets set it.
set(WEIR_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined")
if(WEIR_SANITIZE)
  # Line tables: stacks worth reading without paying for full debug information. Instrumented code takes twice as long
  # to compile with -O1, which is more than the tests gain by it.
  add_compile_options(-O0 -g1 -fno-omit-frame-pointer -fsanitize=${WEIR_SANITIZE}
    -fno-sanitize-recover=all)
  # To check each pointer for null and alignment takes a quarter of the library's compilation. An access through null
  # ends the program all the same. Clang refuses casts that raise the alignment (-Wcast-align), but not those by way of
  # void*: components that read bytes of others keep that check (weir_component.cmake).
  if(WEIR_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=null,alignment)
  endif()
  add_link_options(-fsanitize=${WEIR_SANITIZE})
  # Instrumented programs are large, and LLVM's linker is quick with them.
  find_program(WEIR_LLD ld.lld)
  mark_as_advanced(WEIR_LLD)
  if(WEIR_LLD AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
    add_link_options(-fuse-ld=lld)
  endif()
endif()
