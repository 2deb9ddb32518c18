# SPDX-License-Identifier: Apache-2.0
# Installs BUILD into an empty PREFIX: what an earlier run left there must not help this one.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${PREFIX}
  COMMAND_ERROR_IS_FATAL ANY)

# What belongs to the command, where that was built.
if(EXISTS ${PREFIX}/bin/weir)
  foreach(file IN ITEMS man/man1/weir.1 bash-completion/completions/weir zsh/site-functions/_weir
      fish/vendor_completions.d/weir.fish)
    if(NOT EXISTS ${PREFIX}/share/${file})
      message(FATAL_ERROR "share/${file} was not installed")
    endif()
    file(SIZE ${PREFIX}/share/${file} size)
    if(size EQUAL 0)
      message(FATAL_ERROR "share/${file} is empty")
    endif()
  endforeach()
endif()

# weir run finds what it preloads in the installed tree.
file(GLOB preload ${PREFIX}/lib*/weir/libweir_preload.so ${PREFIX}/lib/*/weir/libweir_preload.so)
if(EXISTS ${PREFIX}/bin/weir AND preload)
  execute_process(COMMAND ${PREFIX}/bin/weir run -- sh -c "echo $LD_PRELOAD" OUTPUT_VARIABLE preloaded
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  file(REAL_PATH "${preloaded}" preloaded)
  file(REAL_PATH "${preload}" preload)
  if(NOT preloaded STREQUAL preload)
    message(FATAL_ERROR "weir run preloads ${preloaded} and not ${preload}")
  endif()
  get_filename_component(folder ${preload} DIRECTORY)
  if(NOT EXISTS ${folder}/python/sitecustomize.py)
    message(FATAL_ERROR "weir/python/sitecustomize.py was not installed")
  endif()
endif()
